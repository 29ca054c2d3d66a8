//! What the documents name is there: tests that guard an invariant, and files that are linked.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files below a folder of the workspace that end so, without what cargo makes.
fn files(folder: &Path, extension: &str, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, extension, found);
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for folder in ["crates", "xtask"] {
        files(&root().join(folder), "rs", &mut sources);
    }
    sources
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut documents = Vec::new();
    files(&root().join("docs"), "md", &mut documents);
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ] {
        let path = root().join(name);
        documents.push((path.clone(), fs::read_to_string(path).unwrap()));
    }
    documents
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A function of that name, in a file of that topic when one is given; or a name in quotes, as rules and defects have.
fn exists(sources: &[(PathBuf, String)], name: &str) -> bool {
    let (topic, case) = name
        .rsplit_once("::")
        .map_or((None, name), |(topic, case)| (Some(topic), case));
    sources.iter().any(|(path, text)| {
        let of_topic = topic.is_none_or(|topic| path.file_stem().is_some_and(|stem| stem == topic));
        let function = text.contains(&format!("fn {case}(")) || text.contains(&format!("fn {case}<"));
        of_topic && (function || (topic.is_none() && text.contains(&format!("\"{case}\""))))
    })
}

#[test]
fn each_invariant_has_its_guard() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.lines().skip_while(|line| !line.starts_with("| absence |")).skip(2);
    let rows: Vec<&str> = table.take_while(|line| line.starts_with('|')).collect();
    let sources = sources();
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || "_:-".contains(c));
    let guards = rows
        .iter()
        .flat_map(|row| quoted(row.rsplit('|').nth(1).unwrap()).filter(is_name));
    let missing: Vec<&str> = guards.filter(|name| !exists(&sources, name)).collect();
    assert!(!rows.is_empty() && missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_linked_is_there() {
    let mut missing = Vec::new();
    for (path, text) in documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let outside = link.starts_with("http") || file.is_empty();
            if !outside && !path.parent().unwrap().join(file).exists() {
                missing.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}
