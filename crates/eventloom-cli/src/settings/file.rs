//! The file `eventloom.toml`: what it may say, and what is wrong with it by line.

use crate::{failure::Failure, figures};
use std::{ops::Range, path::Path, time::Duration};
use toml::de::{DeTable, DeValue};

/// What the file says; nothing of it is required.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSettings {
    pub(crate) store: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) pooled: Option<bool>,
    pub(crate) lock_timeout: Option<Duration>,
}

const KEYS: &[&str] = &["store", "schema", "pooled", "lock_timeout"];

/// Reads the text of a settings file. Messages name file and line, and quote no value: it may hold a password.
pub(crate) fn parse(path: &Path, text: &str) -> Result<FileSettings, Failure> {
    let wrong = |span: Option<Range<usize>>, what: String| {
        let before = text.get(..span.map_or(0, |span| span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Failure::usage(format!("{}:{line}: {what}", path.display()))
    };
    let table = DeTable::parse(text).map_err(|error| wrong(error.span(), error.message().to_owned()))?;
    let mut settings = FileSettings::default();
    for (key, value) in table.get_ref() {
        let refuse = |what: String| wrong(Some(value.span()), what);
        let text_of = |value: &DeValue<'_>| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| refuse(format!("{} is a text in quotes", key.get_ref())))
        };
        match key.get_ref().as_ref() {
            "store" => settings.store = Some(text_of(value.get_ref())?),
            "schema" => settings.schema = Some(text_of(value.get_ref())?),
            "pooled" => {
                let pooled = value.get_ref().as_bool();
                settings.pooled = Some(pooled.ok_or_else(|| refuse("pooled is true or false".to_owned()))?);
            }
            "lock_timeout" => settings.lock_timeout = Some(duration(value.get_ref()).map_err(refuse)?),
            unknown => {
                let what = match figures::nearest(unknown, KEYS.iter().copied()) {
                    Some(known) => format!("unknown key {unknown:?}; {known:?} is the nearest known one"),
                    None => format!("unknown key {unknown:?}; known are {}", KEYS.join(", ")),
                };
                return Err(wrong(Some(key.span()), what));
            }
        }
    }
    Ok(settings)
}

fn duration(value: &DeValue<'_>) -> Result<Duration, String> {
    match value {
        DeValue::Integer(number) => Err(format!(
            "lock_timeout = {number} has no unit; write \"{number}s\" or \"{number}ms\""
        )),
        DeValue::String(text) => figures::parse_duration(text).map_err(|error| format!("lock_timeout: {error}")),
        _ => Err("lock_timeout is a duration with its unit, such as \"5s\"".to_owned()),
    }
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
        let text = "store = \"postgres://db/shop\"\nschema = \"shop\"\npooled = true\nlock_timeout = \"1m 30s\"\n";
        let settings = parse(Path::new("eventloom.toml"), text).unwrap();
        assert_eq!(settings.store.as_deref(), Some("postgres://db/shop"));
        assert_eq!(
            (settings.pooled, settings.lock_timeout),
            (Some(true), Some(Duration::from_secs(90)))
        );
        assert_eq!(parse(Path::new("eventloom.toml"), "").unwrap(), FileSettings::default());
    }

    #[test]
    fn what_is_wrong_is_told_by_line() {
        check(
            "# mine\nstroe = \"x\"",
            "eventloom.toml:2: unknown key \\\"stroe\\\"; \\\"store\\\" is the nearest",
        );
        check("x = 1", "known are store, schema, pooled, lock_timeout");
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
