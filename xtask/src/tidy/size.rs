//! No file outgrows what one sitting can read.

use super::finding::Finding;
use super::tree::Tree;

const LINES_MAX: usize = 600;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let written = tree.with(&["rs", "sql", "sh", "md", "toml", "html", "css", "js", "yml"]);
    // A changelog only ever grows.
    let sized = written
        .filter(|file| !file.path.ends_with("CHANGELOG.md"))
        .map(|file| (file, file.text.lines().count()));
    let large = sized.filter(|(_, lines)| *lines > LINES_MAX);
    large
        .map(|(file, lines)| {
            Finding::new(
                &file.path,
                LINES_MAX + 1,
                format!("{lines} lines: part it into one idea each"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lines(path: &str, lines: usize, findings: usize) {
        assert_eq!(
            check(&Tree::of(&[(path, &"x\n".repeat(lines))])).len(),
            findings,
            "{path}: {lines}"
        );
    }

    #[test]
    fn sizes() {
        check_lines("a.rs", 600, 0);
        check_lines("a.rs", 601, 1);
        check_lines("a.sql", 601, 1);
        check_lines("CHANGELOG.md", 601, 0);
        check_lines("Cargo.lock", 601, 0);
        check_lines("data.csv", 601, 0);
    }
}
