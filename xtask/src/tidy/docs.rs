//! Every source file begins with a sentence that says what it is.

use super::finding::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.with(&["rs"]).filter(|file| file.is_under("src"));
    let undocumented = sources.filter(|file| {
        file.text
            .strip_prefix("//!")
            .is_none_or(|rest| first_line(rest).is_empty())
    });
    undocumented
        .map(|file| {
            Finding::new(
                &file.path,
                1,
                "begin with a line of //! that says in a sentence what the file is",
            )
        })
        .collect()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_file(path: &str, text: &str, findings: usize) {
        assert_eq!(check(&Tree::of(&[(path, text)])).len(), findings, "{path}: {text:?}");
    }

    #[test]
    fn first_lines() {
        check_file("crates/a/src/lib.rs", "//! It is this.\nuse b;", 0);
        check_file("crates/a/src/lib.rs", "use b;\n//! Late.", 1);
        check_file("crates/a/src/b/c.rs", "// Not a doc.", 1);
        check_file("crates/a/src/b/c.rs", "//!\n//! Late.", 1);
        check_file("crates/a/src/b/c.rs", "", 1);
        check_file("crates/a/tests/it.rs", "use b;", 0);
        check_file("crates/a/src/b.sql", "select 1", 0);
    }
}
