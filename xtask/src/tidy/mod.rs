//! `cargo xtask tidy`: the house rules that a program can check, each with its reason.

mod arrows;
mod dead;
mod docs;
mod finding;
mod reasons;
mod sequence;
mod size;
mod tests_only;
mod tree;
mod twins;
mod words;

use std::process::ExitCode;

use anyhow::Result;

use finding::Finding;
use tree::Tree;

struct Rule {
    name: &'static str,
    reason: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule {
        name: "arrows",
        reason: "dependencies point down only, so that the core stays free of runtimes and drivers",
        check: arrows::check,
    },
    Rule {
        name: "twins",
        reason: "whoever has read one store has read the other: the same files with the same names",
        check: twins::check,
    },
    Rule {
        name: "module-doc",
        reason: "a file is one idea, and its first line says which",
        check: docs::check,
    },
    Rule {
        name: "dead-file",
        reason: "a file that no module names is never compiled",
        check: dead::check,
    },
    Rule {
        name: "dependency-reason",
        reason: "a dependency is chosen, and its line says why",
        check: reasons::check,
    },
    Rule {
        name: "unfinished",
        reason: "what is handed over is finished",
        check: words::unfinished,
    },
    Rule {
        name: "machine-path",
        reason: "a path of one machine means nothing on another",
        check: words::paths,
    },
    Rule {
        name: "host",
        reason: "where packages come from is for each machine to say",
        check: words::hosts,
    },
    Rule {
        name: "sequence-peek",
        reason: "it reads a sequence without the buffer lock and can see a value up to 32 ahead: rows are lost",
        check: sequence::check,
    },
    Rule {
        name: "ignored-test",
        reason: "a test that does not run says why",
        check: tests_only::ignored,
    },
    Rule {
        name: "sleeping-test",
        reason: "a test that waits on the clock is slow when it passes and flaky when it fails",
        check: tests_only::sleeping,
    },
    Rule {
        name: "size",
        reason: "a file of more than 600 lines is two ideas",
        check: size::check,
    },
];

pub(crate) fn command() -> Result<ExitCode> {
    Ok(if passes()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints every finding, then the reason of each rule that has one. True if there is none.
pub(crate) fn passes() -> Result<bool> {
    let tree = Tree::read()?;
    let mut broken = Vec::new();
    for rule in RULES {
        let findings = (rule.check)(&tree);
        for finding in &findings {
            println!("{}:{}: {}: {}", finding.file, finding.line, rule.name, finding.todo);
        }
        if !findings.is_empty() {
            broken.push(rule);
        }
    }
    for rule in &broken {
        println!("{}, because: {}", rule.name, rule.reason);
    }
    Ok(broken.is_empty())
}
