//! Every dependency from outside carries its reason at the end of its line.

use super::finding::Finding;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml"))
        .flat_map(check_manifest)
        .collect()
}

fn check_manifest(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_dependencies = false;
    for (number, line) in file.lines() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[').filter(|_| !line.contains('=')) {
            let table = table.split(']').next().unwrap_or_default();
            in_dependencies = table.ends_with("dependencies");
            if table.contains("dependencies.") {
                findings.push(Finding::new(
                    &file.path,
                    number,
                    "write the dependency in one line, with its # reason",
                ));
            }
            continue;
        }
        // Inherited ones have their reason at the root; our own crates need none.
        let inherited = line.contains("workspace = true");
        let own = line.contains("path = \"");
        let entry = line.split_once('=').is_some() && !line.starts_with('#');
        if in_dependencies && entry && !inherited && !own && comment(line).is_empty() {
            findings.push(Finding::new(
                &file.path,
                number,
                "say at the end of the line why it is there: # reason",
            ));
        }
    }
    findings
}

/// What follows the first `#` outside of a string.
fn comment(line: &str) -> &str {
    let mut quoted = false;
    for (place, character) in line.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '#' if !quoted => return line[place + 1..].trim(),
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str, lines: &[usize]) {
        let found: Vec<usize> = check(&Tree::of(&[("Cargo.toml", text)]))
            .into_iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(found, lines, "{text}");
    }

    #[test]
    fn manifests() {
        check_text("[workspace.dependencies]\na = \"1\" # because\nb = \"2\"", &[3]);
        check_text(
            "[workspace.dependencies]\na = { version = \"1\", features = [\"x#y\"] }",
            &[2],
        );
        check_text("[workspace.dependencies]\na = { version = \"1\" } #", &[2]);
        check_text(
            "[workspace.dependencies]\n# a = \"1\"\nours = { path = \"crates/ours\", version = \"1\" }",
            &[],
        );
        check_text(
            "[dev-dependencies]\na = { workspace = true }\nb.workspace = true\nc = \"1\"",
            &[4],
        );
        check_text("[dependencies.a]\nversion = \"1\"", &[1]);
        check_text("[package]\nname = \"a\"\n[profile.dev]\ndebug = 1", &[]);
        check_text("[target.'cfg(unix)'.dependencies]\na = \"1\"", &[2]);
    }
}
