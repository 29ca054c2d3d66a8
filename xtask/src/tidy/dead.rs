//! Every source file is named by a module, or cargo would leave it out without a word.

use super::finding::Finding;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let dead = tree
        .with(&["rs"])
        .filter(|file| file.is_under("src") && !is_named(tree, file));
    dead.map(|file| Finding::new(&file.path, 1, "name it with `mod` in its parent, or delete it"))
        .collect()
}

fn is_named(tree: &Tree, file: &File) -> bool {
    let Some((package, inner)) = file.path.rsplit_once("src/") else {
        return true;
    };
    let inner = inner.strip_suffix(".rs").unwrap_or(inner);
    // Cargo finds these by itself.
    if matches!(inner, "lib" | "main") || inner.starts_with("bin/") {
        return true;
    }
    let manifest = tree.file(&format!("{package}Cargo.toml"));
    if manifest.is_some_and(|manifest| manifest.text.contains(&format!("\"src/{inner}.rs\""))) {
        return true;
    }
    let module = inner.strip_suffix("/mod").unwrap_or(inner);
    let (parents, name) = match module.rsplit_once('/') {
        Some((folder, name)) => (vec![format!("{folder}.rs"), format!("{folder}/mod.rs")], name),
        None => (vec!["lib.rs".to_owned(), "main.rs".to_owned()], module),
    };
    let parents = parents
        .iter()
        .filter_map(|parent| tree.file(&format!("{package}src/{parent}")));
    parents.flat_map(File::lines).any(|(_, line)| names(line, name))
}

/// `mod name;` or `mod name {`, or a `#[path]` that ends in the file's name.
fn names(line: &str, name: &str) -> bool {
    let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let declared = words
        .windows(2)
        .any(|pair| pair == ["mod", name] || pair == ["mod", "r"] && words.contains(&name));
    declared || (line.contains("#[path") && line.contains(&format!("{name}.rs\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_tree(files: &[(&str, &str)], dead: &[&str]) {
        let found: Vec<String> = check(&Tree::of(files))
            .into_iter()
            .map(|finding| finding.file)
            .collect();
        assert_eq!(found, dead, "{files:?}");
    }

    #[test]
    fn modules() {
        let lib = ("c/x/src/lib.rs", "mod a;\npub(crate) mod b;");
        check_tree(
            &[
                lib,
                ("c/x/src/a.rs", ""),
                ("c/x/src/b/mod.rs", "mod d;"),
                ("c/x/src/b/d.rs", ""),
            ],
            &[],
        );
        check_tree(&[lib, ("c/x/src/c.rs", "")], &["c/x/src/c.rs"]);
        check_tree(
            &[
                lib,
                ("c/x/src/a.rs", "mod e;"),
                ("c/x/src/a/e.rs", ""),
                ("c/x/src/a/f.rs", ""),
            ],
            &["c/x/src/a/f.rs"],
        );
        check_tree(&[lib, ("c/x/src/ab.rs", "")], &["c/x/src/ab.rs"]);
        check_tree(&[("c/x/src/bin/tool.rs", ""), ("c/x/src/main.rs", "")], &[]);
        check_tree(
            &[("c/x/Cargo.toml", "path = \"src/tool.rs\""), ("c/x/src/tool.rs", "")],
            &[],
        );
        check_tree(
            &[
                ("c/x/src/lib.rs", "#[path = \"other/far.rs\"]\nmod near;"),
                ("c/x/src/far.rs", ""),
            ],
            &[],
        );
    }
}
