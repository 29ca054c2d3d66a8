//! The file `eventloom.toml`: what it may say, and what is wrong with it by line.

use super::key::{Form, Key};
use crate::{failure::Failure, figures};
use std::{collections::BTreeMap, ops::Range, path::Path};
use toml::de::{DeTable, DeValue};

/// The table of the relay's settings.
const RELAY: &str = "relay";

/// What the file says, with the line of each value; nothing of it is required.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSettings {
    pub(super) path: String,
    pub(super) values: BTreeMap<Key, (String, usize)>,
}

/// Reads the text of a settings file. Messages name file and line, and quote no value: it may hold a password.
pub(crate) fn parse(path: &Path, text: &str) -> Result<FileSettings, Failure> {
    let line = |span: Option<Range<usize>>| {
        let before = text.get(..span.map_or(0, |span| span.start)).unwrap_or_default();
        before.matches('\n').count() + 1
    };
    let wrong =
        |span: Option<Range<usize>>, what: String| Failure::usage(format!("{}:{}: {what}", path.display(), line(span)));
    let table = DeTable::parse(text).map_err(|error| wrong(error.span(), error.message().to_owned()))?;
    let mut settings = FileSettings {
        path: path.display().to_string(),
        ..FileSettings::default()
    };
    let mut entries = Vec::new();
    for (name, value) in table.get_ref() {
        match (name.get_ref().as_ref(), value.get_ref()) {
            (RELAY, DeValue::Table(table)) => {
                let inner = table.iter();
                entries.extend(inner.map(|(name, value)| (format!("{RELAY}.{}", name.get_ref()), name.span(), value)));
            }
            (RELAY, _) => return Err(wrong(Some(value.span()), "relay is a table: write [relay]".to_owned())),
            (plain, _) => entries.push((plain.to_owned(), name.span(), value)),
        }
    }
    for (name, span, value) in entries {
        let key = Key::ALL.into_iter().find(|key| key.name() == name);
        let key = key.ok_or_else(|| wrong(Some(span), unknown(&name)))?;
        let text = text_of(key, value.get_ref()).map_err(|what| wrong(Some(value.span()), what))?;
        settings.values.insert(key, (text, line(Some(value.span()))));
    }
    Ok(settings)
}

/// `relay.lease` for people who write `lease` under `[relay]`.
fn short(name: &str) -> &str {
    name.strip_prefix("relay.").unwrap_or(name)
}

fn unknown(name: &str) -> String {
    let shown = short(name);
    let in_relay = shown.len() < name.len();
    if !in_relay && Key::ALL.iter().any(|key| key.name() == format!("{RELAY}.{name}")) {
        return format!("unknown key {name:?}; it belongs under [relay]");
    }
    let known = Key::ALL.into_iter().map(Key::name);
    let mut known: Vec<&str> = known
        .filter(|known| known.contains('.') == in_relay)
        .map(short)
        .collect();
    if !in_relay {
        known.push(RELAY);
    }
    match figures::nearest(shown, known.iter().copied()) {
        Some(nearest) => format!("unknown key {shown:?}; {nearest:?} is the nearest known one"),
        None => format!("unknown key {shown:?}; known are {}", known.join(", ")),
    }
}

/// The value as one text, as a variable of the environment would give it.
fn text_of(key: Key, value: &DeValue<'_>) -> Result<String, String> {
    let name = short(key.name());
    match (key.form(), value) {
        (Form::Text | Form::Duration | Form::Keeping, DeValue::String(text)) => {
            key.form().check(text).map_err(|error| format!("{name}: {error}"))?;
            Ok(text.to_string())
        }
        (Form::Switch, DeValue::Boolean(switch)) => Ok(switch.to_string()),
        (Form::Number, DeValue::Integer(number)) => {
            let text = number.to_string();
            key.form().check(&text).map_err(|error| format!("{name}: {error}"))?;
            Ok(text)
        }
        (Form::List, DeValue::Array(texts)) => {
            let texts = texts.iter().map(|text| text.get_ref().as_str().map(str::to_owned));
            let texts: Option<Vec<String>> = texts.collect();
            Ok(texts.ok_or_else(|| list(name))?.join(","))
        }
        (Form::Duration | Form::Keeping, DeValue::Integer(number)) => Err(format!(
            "{name} = {number} has no unit; write \"{number}s\" or \"{number}ms\""
        )),
        // Where a relay begins may be a bare position.
        (Form::Text, DeValue::Integer(number)) if key == Key::RelayFrom => Ok(number.to_string()),
        (Form::Text, _) => Err(format!("{name} is a text in quotes")),
        (Form::Switch, _) => Err(format!("{name} is true or false, without quotes")),
        (Form::Number, _) => Err(format!("{name} is a whole number")),
        (Form::Duration, _) => Err(format!("{name} is a duration with its unit, such as \"5s\"")),
        (Form::Keeping, _) => Err(format!(
            "{name} is a duration with its unit, such as \"24h\", or \"forever\""
        )),
        (Form::List, _) => Err(list(name)),
    }
}

fn list(name: &str) -> String {
    format!("{name} is a list of texts, such as [\"orders\", \"payments\"]")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(text: &str, expected: &str) {
        let failure = parse(Path::new("eventloom.toml"), text).unwrap_err();
        let told = format!("{failure:?}");
        assert!(told.contains(expected), "{text:?}: {told}");
    }

    #[test]
    fn a_file_that_is_right() {
        let text = "store = \"postgres://db/shop\"\npooled = true\nlock_timeout = \"1m 30s\"\n\n[relay]\nto = \"b.db\"\n\
                    topics = [\"orders\", \"payments\"]\nbatch = 1_000\nkeep_log = \"forever\"\nfrom = 12\n";
        let settings = parse(Path::new("eventloom.toml"), text).unwrap();
        let said: Vec<(&str, &str, usize)> = settings
            .values
            .iter()
            .map(|(key, (text, line))| (key.name(), text.as_str(), *line))
            .collect();
        let expected = [
            ("store", "postgres://db/shop", 1),
            ("pooled", "true", 2),
            ("lock_timeout", "1m 30s", 3),
            ("relay.to", "b.db", 6),
            ("relay.topics", "orders,payments", 7),
            ("relay.from", "12", 10),
            ("relay.batch", "1000", 8),
            ("relay.keep_log", "forever", 9),
        ];
        assert_eq!(said, expected);
        assert!(parse(Path::new("eventloom.toml"), "").unwrap().values.is_empty());
    }

    #[test]
    fn what_is_wrong_is_told_by_line() {
        check(
            "# mine\nstroe = \"x\"",
            "eventloom.toml:2: unknown key \\\"stroe\\\"; \\\"store\\\" is the nearest",
        );
        check("x = 1", "known are store, schema, pooled, lock_timeout, relay");
        check(
            "[relay]\nlaese = \"5s\"",
            "eventloom.toml:2: unknown key \\\"laese\\\"; \\\"lease\\\" is the nearest",
        );
        check("batch = 5", "it belongs under [relay]");
        check("relay = 5", "write [relay]");
        check("[relay]\nbatch = \"5\"", "eventloom.toml:2: batch is a whole number");
        check("[relay]\ntopics = \"orders\"", "topics is a list of texts");
        check("[relay]\nlease = 5", "eventloom.toml:2: lease = 5 has no unit");
        check("[relay]\nkeep_log = \"ever\"", "forever");
        check(
            "schema = \"a\"\nlock_timeout = 5",
            "eventloom.toml:2: lock_timeout = 5 has no unit",
        );
        check(
            "lock_timeout = \"5\"",
            "eventloom.toml:1: lock_timeout: \\\"5\\\" has no unit",
        );
        check("store = 7", "store is a text in quotes");
        check("pooled = 1", "pooled is true or false");
        check("\n\nstore = postgres://u:secret@h", "eventloom.toml:3: ");
    }

    #[test]
    fn a_broken_file_does_not_tell_its_password() {
        let failure = parse(Path::new("e.toml"), "store = \"postgres://u:secret@h\nschema = 1").unwrap_err();
        assert!(!format!("{failure:?}").contains("secret"));
    }
}
