//! What was said about settings, and where: flags before the environment, the environment before the file.

use super::{
    file::FileSettings,
    key::{Key, Unsaid},
};
use crate::failure::Failure;
use std::{
    collections::BTreeMap,
    env::{self, VarError},
    fmt,
};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(&'static str),
    File { path: String, line: usize },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) | Origin::Variable(name) => f.write_str(name),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// A value, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// All that was said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(BTreeMap<Key, Value>);

impl Values {
    /// Reads the environment beside the file and the flags, and checks what every value looks like. A variable that a flag
    /// overrules is not looked at.
    pub(super) fn gather(
        file: FileSettings,
        flags: impl IntoIterator<Item = (Key, Option<String>)>,
    ) -> Result<Values, Failure> {
        let mut values = Values::default();
        let path = file.path;
        for (key, (text, line)) in file.values {
            let origin = Origin::File {
                path: path.clone(),
                line,
            };
            values.say(key, text, origin)?;
        }
        for (key, text) in flags {
            values.flag(key, text)?;
        }
        for key in Key::ALL {
            let is_flagged = values
                .said(key)
                .is_some_and(|value| matches!(value.origin, Origin::Flag(_)));
            if !is_flagged && let Some(text) = variable(key.variable())? {
                values.say(key, text, Origin::Variable(key.variable()))?;
            }
        }
        Ok(values)
    }

    /// What a flag says goes above all.
    pub(super) fn flag(&mut self, key: Key, text: Option<String>) -> Result<(), Failure> {
        match text {
            Some(text) => self.say(key, text, Origin::Flag(key.flag())),
            None => Ok(()),
        }
    }

    fn say(&mut self, key: Key, text: String, origin: Origin) -> Result<(), Failure> {
        key.form()
            .check(&text)
            .map_err(|why| Failure::usage(format!("{origin}: {}: {why}", key.name())))?;
        self.0.insert(key, Value { text, origin });
        Ok(())
    }

    /// What was said, if anything was.
    pub(crate) fn said(&self, key: Key) -> Option<&Value> {
        self.0.get(&key)
    }

    /// What holds: what was said, or what holds unsaid.
    pub(crate) fn in_force(&self, key: Key) -> Option<Value> {
        self.said(key).cloned().or(match key.unsaid() {
            Unsaid::Value(text) => Some(Value {
                text: text.to_owned(),
                origin: Origin::Default,
            }),
            Unsaid::Nothing(_) => None,
        })
    }

    /// What holds, read; the error names where it was said.
    pub(super) fn read<T, E: fmt::Display>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Failure> {
        let Some(Value { text, origin }) = self.in_force(key) else {
            return Ok(None);
        };
        parse(&text)
            .map(Some)
            .map_err(|why| Failure::usage(format!("{origin}: {}: {why}", key.name())))
    }
}

/// An empty variable is as good as none. One that is no text is not: what comes after it would be another store.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!("{name} is no text in UTF-8"))),
    }
}
