//! Tests that do not run say why, and tests do not wait on the clock.

use super::finding::Finding;
use super::tree::Tree;

const BARE_IGNORE: &str = concat!("#[ign", "ore]");
const SLEEPS: &[&str] = &["thread::sleep", "time::sleep"];
const PACING: &str = "// pacing:";

pub(super) fn ignored(tree: &Tree) -> Vec<Finding> {
    let lines = tree
        .with(&["rs"])
        .flat_map(|file| file.lines().map(move |(number, line)| (file, number, line)));
    lines
        .filter(|(_, _, line)| line.contains(BARE_IGNORE))
        .map(|(file, number, _)| Finding::new(&file.path, number, "give the reason: #[ignore = \"...\"]"))
        .collect()
}

pub(super) fn sleeping(tree: &Tree) -> Vec<Finding> {
    let tests = tree.with(&["rs"]).filter(|file| file.is_under("tests"));
    let lines = tests.flat_map(|file| file.lines().map(move |(number, line)| (file, number, line)));
    lines
        .filter(|(_, _, line)| SLEEPS.iter().any(|sleep| line.contains(sleep)) && !paces(line))
        .map(|(file, number, _)| {
            Finding::new(
                &file.path,
                number,
                format!("wait on a condition or on virtual time, or end the line with `{PACING} reason`"),
            )
        })
        .collect()
}

fn paces(line: &str) -> bool {
    line.split_once(PACING)
        .is_some_and(|(_, reason)| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str, findings: usize) {
        assert_eq!(rule(&Tree::of(&[(path, text)])).len(), findings, "{path}: {text}");
    }

    #[test]
    fn ignored_tests() {
        check(ignored, "crates/a/src/b.rs", &format!("    {BARE_IGNORE}"), 1);
        check(ignored, "crates/a/src/b.rs", "#[ignore = \"needs an hour\"]", 0);
    }

    #[test]
    fn sleeping_tests() {
        check(sleeping, "crates/a/tests/b.rs", "std::thread::sleep(d);", 1);
        check(sleeping, "crates/a/tests/b/c.rs", "tokio::time::sleep(d).await;", 1);
        check(
            sleeping,
            "crates/a/tests/b.rs",
            "tokio::time::sleep(d).await; // pacing: between two polls",
            0,
        );
        check(
            sleeping,
            "crates/a/tests/b.rs",
            "tokio::time::sleep(d).await; // pacing:",
            1,
        );
        check(sleeping, "crates/a/src/b.rs", "tokio::time::sleep(d).await;", 0);
        check(sleeping, "crates/a/src/tests.rs", "tokio::time::sleep(d).await;", 0);
    }
}
