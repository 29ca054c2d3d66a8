//! Words that have no place in the tree. Each is put together from parts, so that this file does not break its own rule.

use std::path::Path;

use super::finding::Finding;
use super::tree::{File, Tree};

const UNFINISHED: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
];

const PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/t", "mp/"),
];

const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("maven", ".org"),
    concat!("maven.apache", ".org"),
    concat!("golang", ".org"),
    concat!("deb.debian", ".org"),
    concat!("security.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("arti", "factory"),
];

pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    search(tree.files.iter(), UNFINISHED, stands_alone, "finish it or take it out")
}

pub(super) fn paths(tree: &Tree) -> Vec<Finding> {
    search(
        tree.with(&["rs", "md", "sql", "toml"]),
        PATHS,
        begins_a_path,
        "name the place relative to the project, or ask the environment for it",
    )
}

pub(super) fn hosts(tree: &Tree) -> Vec<Finding> {
    // Cargo writes the registry into the lock file.
    let files = tree.files.iter().filter(|file| {
        Path::new(&file.path)
            .file_name()
            .is_none_or(|name| name != "Cargo.lock")
    });
    search(
        files,
        HOSTS,
        |_, _| true,
        "name the package, not the host it comes from",
    )
}

fn search<'a>(
    files: impl Iterator<Item = &'a File>,
    words: &[&str],
    fits: fn(&str, &str) -> bool,
    todo: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.lines() {
            for word in words {
                if line
                    .match_indices(word)
                    .any(|(place, _)| fits(&line[..place], &line[place + word.len()..]))
                {
                    findings.push(Finding::new(&file.path, number, format!("`{word}`: {todo}")));
                }
            }
        }
    }
    findings
}

fn stands_alone(before: &str, after: &str) -> bool {
    !before.ends_with(in_word) && !after.starts_with(in_word)
}

/// Not the middle of a longer path such as `target/...` or `~/...`; a URL with an absolute path does count.
fn begins_a_path(before: &str, _: &str) -> bool {
    before.ends_with("://") || !before.ends_with(|c: char| in_word(c) || "/.-~}>)$*".contains(c))
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str, findings: usize) {
        assert_eq!(rule(&Tree::of(&[(path, text)])).len(), findings, "{path}: {text}");
    }

    #[test]
    fn unfinished_work() {
        for word in UNFINISHED {
            check(unfinished, "a.rs", &format!("    {word}(\"later\")"), 1);
            check(unfinished, "a.rs", &format!("x{word}x"), 0);
        }
        check(unfinished, "Cargo.toml", "todo = \"deny\"", 0);
    }

    #[test]
    fn paths_of_a_machine() {
        for word in PATHS {
            check(paths, "a.md", &format!("see {word}x"), 1);
            check(paths, "a.rs", &format!("\"{word}x\""), 1);
            check(paths, "a.rs", &format!("\"sqlite://{word}x\""), 1);
            check(paths, "a.md", &format!("see target{word}x"), 0);
            check(paths, "a.sh", &format!("see {word}x"), 0);
        }
    }

    #[test]
    fn hosts_of_registries() {
        for word in HOSTS {
            check(hosts, "a.md", &format!("https://index.{word}/x"), 1);
            check(hosts, "Cargo.lock", &format!("registry+{word}"), 0);
            check(hosts, "fuzz/Cargo.lock", &format!("registry+{word}"), 0);
        }
    }
}
