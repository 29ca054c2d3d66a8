//! Which crate may depend on which, read from `cargo metadata`.

use serde_json::Value;

use super::finding::Finding;
use super::tree::Tree;

/// What a crate may depend on. A crate without a row is free.
struct Row {
    crates: &'static [&'static str],
    /// Crates of this workspace that it may use.
    ours: &'static [&'static str],
    /// Further crates of this workspace that only its tests may use.
    ours_in_tests: &'static [&'static str],
    /// Crates of others that it must not use outside its tests; `tokio` stands for `tokio-util` too.
    never: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row {
        crates: &["eventloom-core"],
        ours: &[],
        ours_in_tests: &[],
        never: &["tokio", "sqlx"],
    },
    Row {
        crates: &["eventloom-macros"],
        ours: &[],
        ours_in_tests: &["eventloom-core"],
        never: &["tokio", "sqlx"],
    },
    Row {
        crates: &[
            "eventloom-postgres",
            "eventloom-sqlite",
            "eventloom-kafka",
            "eventloom-rabbitmq",
            "eventloom-nats",
            "eventloom-aws",
            "eventloom-redis",
            "eventloom-pulsar",
        ],
        ours: &["eventloom-core"],
        ours_in_tests: &["eventloom-testkit"],
        never: &[],
    },
    Row {
        crates: &["eventloom-runtime"],
        ours: &["eventloom-core"],
        ours_in_tests: &[
            "eventloom-testkit",
            "eventloom-macros",
            "eventloom-postgres",
            "eventloom-sqlite",
        ],
        never: &["sqlx"],
    },
    // It judges the others from outside, so it must not share a mistake with them.
    Row {
        crates: &["orders-ledger"],
        ours: &[],
        ours_in_tests: &[],
        never: &[],
    },
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let metadata = match &tree.metadata {
        Ok(metadata) => metadata,
        Err(error) => {
            return vec![Finding::new(
                "Cargo.toml",
                1,
                format!("make cargo metadata succeed: {error}"),
            )];
        }
    };
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(row) = ROWS.iter().find(|row| row.crates.contains(&name)) else {
            continue;
        };
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest).trim_start_matches('/');
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if let Some(todo) = judge(row, name, dependency, &ours) {
                let line = line_of(tree, manifest, dependency["name"].as_str().unwrap_or_default());
                findings.push(Finding::new(manifest, line, todo));
            }
        }
    }
    findings
}

fn judge(row: &Row, package: &str, dependency: &Value, ours: &[&str]) -> Option<String> {
    let name = dependency["name"].as_str()?;
    let in_tests = dependency["kind"] == "dev";
    if ours.contains(&name) {
        let allowed = row.ours.contains(&name) || (in_tests && row.ours_in_tests.contains(&name));
        return (!allowed).then(|| format!("{package} must not depend on {name}: move what needs it up"));
    }
    let family =
        |banned: &&str| name == *banned || name.strip_prefix(*banned).is_some_and(|rest| rest.starts_with('-'));
    let banned = !in_tests && row.never.iter().any(family);
    banned.then(|| format!("{package} must not depend on {name}: move what needs it into an adapter or the runtime"))
}

fn line_of(tree: &Tree, manifest: &str, dependency: &str) -> usize {
    let file = tree.file(manifest);
    let mut lines = file.into_iter().flat_map(|file| file.lines());
    lines
        .find(|(_, line)| {
            line.strip_prefix(dependency)
                .is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        })
        .map_or(1, |(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `dependency` in words: the kind, then the crate.
    fn check_one(package: &str, kind: &str, dependency: &str, allowed: bool) {
        let packages = [
            "eventloom-core",
            "eventloom-macros",
            "eventloom-testkit",
            "eventloom-sqlite",
            "eventloom-runtime",
            "free",
        ];
        let mut packages: Vec<Value> = packages.iter().map(|name| json!({ "name": name })).collect();
        let kind = if kind == "normal" { Value::Null } else { json!(kind) };
        packages.push(json!({
            "name": package,
            "manifest_path": format!("/somewhere/crates/{package}/Cargo.toml"),
            "dependencies": [{ "name": dependency, "kind": kind }],
        }));
        let manifest = format!("crates/{package}/Cargo.toml");
        let mut tree = Tree::of(&[(&manifest, &format!("[dependencies]\n{dependency} = \"1\"\n"))]);
        tree.metadata = Ok(json!({ "workspace_root": "/somewhere", "packages": packages }));
        let found: Vec<(String, usize)> = check(&tree)
            .into_iter()
            .map(|finding| (finding.file, finding.line))
            .collect();
        let expected = if allowed { vec![] } else { vec![(manifest, 2)] };
        assert_eq!(found, expected, "{package} -> {dependency} ({kind})");
    }

    #[test]
    fn the_table() {
        check_one("eventloom-core", "normal", "serde", true);
        check_one("eventloom-core", "normal", "tokio", false);
        check_one("eventloom-core", "normal", "tokio-util", false);
        check_one("eventloom-core", "build", "sqlx", false);
        check_one("eventloom-core", "normal", "tokiodb", true);
        check_one("eventloom-core", "dev", "tokio", true);
        check_one("eventloom-core", "dev", "eventloom-testkit", false);
        check_one("eventloom-macros", "normal", "eventloom-core", false);
        check_one("eventloom-postgres", "normal", "eventloom-core", true);
        check_one("eventloom-postgres", "normal", "eventloom-runtime", false);
        check_one("eventloom-postgres", "normal", "eventloom-testkit", false);
        check_one("eventloom-postgres", "dev", "eventloom-testkit", true);
        check_one("eventloom-postgres", "normal", "sqlx", true);
        check_one("eventloom-runtime", "normal", "sqlx", false);
        check_one("eventloom-runtime", "normal", "eventloom-sqlite", false);
        check_one("eventloom-runtime", "dev", "eventloom-sqlite", true);
        check_one("orders-ledger", "normal", "sqlx", true);
        check_one("orders-ledger", "dev", "eventloom-core", false);
        check_one("free-too", "normal", "eventloom-runtime", true);
    }

    #[test]
    fn a_broken_workspace_is_a_finding() {
        let mut tree = Tree::of(&[]);
        tree.metadata = Err("no such member".to_owned());
        assert_eq!(check(&tree).len(), 1);
    }
}
