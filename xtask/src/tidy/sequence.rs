//! Nobody reads the last value of a sequence from its relation.

use super::finding::Finding;
use super::tree::Tree;

const COLUMN: &str = "last_value";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with(&["rs", "sql"]) {
        let words: Vec<(usize, String)> = file
            .lines()
            .flat_map(|(number, line)| words(line).map(move |word| (number, word)))
            .collect();
        for (place, (number, word)) in words.iter().enumerate() {
            let is = |other: Option<&(usize, String)>, what: &str| other.is_some_and(|(_, word)| word == what);
            let before = place.checked_sub(1).and_then(|place| words.get(place));
            let column = word == COLUMN || word.ends_with(&format!(".{COLUMN}"));
            // The window function of the same name has its parenthesis.
            if column && !is(words.get(place + 1), "(") && (is(before, "select") || is(words.get(place + 1), "from")) {
                findings.push(Finding::new(
                    &file.path,
                    *number,
                    "take the bound from rows or from a lock, not from the sequence",
                ));
            }
        }
    }
    findings
}

/// Lower-case words and parentheses, without what a comment says.
fn words(line: &str) -> impl Iterator<Item = String> {
    let code = line.split("--").next().unwrap_or_default();
    let code = if code.trim_start().starts_with("//") { "" } else { code };
    let spaced = code
        .to_lowercase()
        .replace('(', " ( ")
        .replace([')', ',', ';', '"', '\'', '\\'], " ");
    spaced
        .split_whitespace()
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(path: &str, text: &str, lines: &[usize]) {
        let text = text.replace('@', COLUMN);
        let found: Vec<usize> = check(&Tree::of(&[(path, &text)]))
            .into_iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(found, lines, "{path}: {text}");
    }

    #[test]
    fn statements() {
        check_text("a.sql", "SELECT @ FROM s", &[1]);
        check_text("a.sql", "select\n  @\nfrom s", &[2]);
        check_text("a.rs", "const A: &str = \"select @ + 1 from s\";", &[1]);
        check_text("a.rs", "\"select is_called, @ from s\"", &[1]);
        check_text("a.rs", "\"select s.@ from s\"", &[1]);
        check_text("a.sql", "select @(x) over (order by y) from t", &[]);
        check_text("a.sql", "-- never select @ from s", &[]);
        check_text("a.rs", "/// Never `select @ from s`.", &[]);
        check_text("a.sql", "select pg_sequence_@('s')", &[]);
        check_text("a.md", "select @ from s", &[]);
    }
}
