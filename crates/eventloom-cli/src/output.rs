//! Results go to stdout, in text that a terminal cannot be tricked with; talk goes to stderr.

use crate::{failure::Failure, secrets};
use comfy_table::{Table, presets};
use serde::Serialize;
use std::{
    borrow::Cow,
    io::{self, BufWriter, IsTerminal, Stdout, Write},
};

/// The results of a command.
pub(crate) struct Output {
    out: BufWriter<Stdout>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Output {
            out: BufWriter::new(io::stdout()),
        }
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.out.write_all(text.trim_end().as_bytes())?;
        self.out.write_all(b"\n")?;
        Ok(())
    }

    /// Writes one value as a line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(value).map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        self.line(&escaped(&line))
    }

    /// Empties the screen, where there is one, so that what is shown is the newest alone.
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        if io::stdout().is_terminal() {
            self.out.write_all(b"\x1b[H\x1b[2J")?;
        }
        Ok(())
    }

    /// Hands everything on to whoever reads. Not doing so is only a loss of what nobody saw.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }
}

/// Says something to the person at the terminal, apart from the results.
pub(crate) fn talk(text: &str) {
    // Whoever closed stderr does not want to hear.
    let _ = writeln!(io::stderr(), "{}", secrets::without_passwords(text));
}

/// Columns without borders, two blanks apart.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
        .to_string()
        .lines()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// Text of others on one line, with nothing in it that a terminal would obey.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|c| match c {
        '\n' | '\r' | '\t' => " ".to_owned(),
        c if is_unsafe(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    });
    Cow::Owned(escaped.collect())
}

/// JSON with nothing in it that a terminal would obey. What JSON allows of that stands in its texts alone, where an escape
/// says the same; below the blank it allows tabs and line ends between its parts.
fn escaped(json: &str) -> Cow<'_, str> {
    let is_to_go = |c: char| c > ' ' && is_unsafe(c);
    if !json.chars().any(is_to_go) {
        return Cow::Borrowed(json);
    }
    let each = json.chars().map(|c| match is_to_go(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    });
    Cow::Owned(each.collect())
}

/// Control characters, and those that turn the direction of writing.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// At most so many characters, the last of them an ellipsis where something is missing.
pub(crate) fn shortened(text: &str, characters_max: usize) -> Cow<'_, str> {
    if text.chars().nth(characters_max).is_none() {
        return Cow::Borrowed(text);
    }
    let kept: String = text.chars().take(characters_max.saturating_sub(1)).collect();
    Cow::Owned(kept + "…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others() {
        assert_eq!(plain("a\nb\u{1b}[2Jc"), "a b\\u{1b}[2Jc");
        assert_eq!(plain("größe ✓"), "größe ✓");
        assert_eq!(
            escaped("{\"ö\":\t\"\u{9b}2J\u{202e}\"}"),
            "{\"ö\":\t\"\\u009b2J\\u202e\"}"
        );
        assert_eq!(
            (shortened("abcd", 4), shortened("abcde", 4)),
            ("abcd".into(), "abc…".into())
        );
    }

    #[test]
    fn tables_have_no_borders() {
        let text = table(&["A", "LONG"], vec![vec!["abc".to_owned(), "1".to_owned()]]);
        assert_eq!(text, "A    LONG\nabc  1\n");
    }
}
