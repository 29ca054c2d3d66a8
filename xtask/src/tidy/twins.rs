//! The two stores have the same files with the same names.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::tree::Tree;

const TWINS: [&str; 2] = ["crates/eventloom-postgres/src/", "crates/eventloom-sqlite/src/"];

/// Files that only one of the two has, each with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[
    (
        "turn.rs",
        "SQLite lets one writer at a time, so its writers queue; Postgres needs no queue",
    ),
    (
        "marks.rs",
        "SQLite marks in a write transaction like any other: there is no round trip to save",
    ),
    (
        "renewals.rs",
        "Postgres keeps a connection for renewals; SQLite has one that writes, and renewals queue for it",
    ),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    compare(tree, EXCEPTIONS)
}

fn compare(tree: &Tree, exceptions: &[(&str, &str)]) -> Vec<Finding> {
    let [one, other] = TWINS.map(|folder| files_in(tree, folder));
    let mut findings = missing(&one, &other, TWINS[1], exceptions);
    findings.extend(missing(&other, &one, TWINS[0], exceptions));
    for (name, reason) in exceptions {
        if reason.is_empty() {
            findings.push(Finding::new(
                name,
                1,
                "say in the table of exceptions why only one store has it",
            ));
        } else if one.contains(name) == other.contains(name) {
            findings.push(Finding::new(
                name,
                1,
                format!("remove it from the table of exceptions ({reason}): both or none have it"),
            ));
        }
    }
    findings
}

fn files_in<'a>(tree: &'a Tree, folder: &str) -> BTreeSet<&'a str> {
    tree.with(&["rs"])
        .filter_map(|file| file.path.strip_prefix(folder))
        .collect()
}

fn missing(here: &BTreeSet<&str>, there: &BTreeSet<&str>, folder: &str, exceptions: &[(&str, &str)]) -> Vec<Finding> {
    // A store that does not exist yet has no twin to differ from.
    if there.is_empty() {
        return Vec::new();
    }
    let excepted = |name: &&&str| exceptions.iter().any(|(exception, _)| exception == *name);
    let lacking = here.difference(there).filter(|name| !excepted(name));
    lacking
        .map(|name| {
            Finding::new(
                &format!("{folder}{name}"),
                1,
                "add this file, which its twin has, or an exception with its reason",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_sets(postgres: &[&str], sqlite: &[&str], exceptions: &[(&str, &str)], expected: &[&str]) {
        let paths = postgres.iter().map(|name| format!("{}{name}", TWINS[0]));
        let paths: Vec<String> = paths
            .chain(sqlite.iter().map(|name| format!("{}{name}", TWINS[1])))
            .collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
        let found: Vec<String> = compare(&Tree::of(&files), exceptions)
            .into_iter()
            .map(|finding| finding.file)
            .collect();
        assert_eq!(found, expected, "{postgres:?} {sqlite:?} {exceptions:?}");
    }

    #[test]
    fn file_sets() {
        check_sets(&["lib.rs", "a/b.rs"], &["lib.rs", "a/b.rs"], &[], &[]);
        check_sets(
            &["lib.rs", "a.rs"],
            &["lib.rs"],
            &[],
            &["crates/eventloom-sqlite/src/a.rs"],
        );
        check_sets(
            &["lib.rs"],
            &["lib.rs", "b.rs"],
            &[],
            &["crates/eventloom-postgres/src/b.rs"],
        );
        check_sets(
            &["lib.rs", "listen.rs"],
            &["lib.rs"],
            &[("listen.rs", "only a server notifies")],
            &[],
        );
        check_sets(
            &["lib.rs", "listen.rs"],
            &["lib.rs"],
            &[("listen.rs", "")],
            &["listen.rs"],
        );
        check_sets(&["lib.rs"], &["lib.rs"], &[("gone.rs", "once")], &["gone.rs"]);
        check_sets(&["lib.rs"], &[], &[], &[]);
        check_sets(&["lib.rs", "schema.sql"], &["lib.rs"], &[], &[]);
    }
}
