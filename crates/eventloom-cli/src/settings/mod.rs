//! The settings in force: flags before the environment, the environment before the file.

mod file;
mod key;
mod relay;
mod values;

pub(crate) use key::{Key, Unsaid};
pub(crate) use relay::{RelayFlags, RelaySettings};
pub(crate) use values::Origin;

use crate::{
    arguments::StoreArguments,
    failure::Failure,
    figures,
    place::{self, Kind, Place},
};
use eventloom::SchemaName;
use file::FileSettings;
use std::{
    env, io,
    path::{Path, PathBuf},
    time::Duration,
};
use values::Values;

const FILE: &str = "eventloom.toml";

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Settings {
    /// All that was said, for the relay and for `config show`.
    pub(crate) values: Values,
    store: Option<String>,
    schema: SchemaName,
    schema_is_named: bool,
    pub(crate) pooled: bool,
    pub(crate) lock_timeout: Option<Duration>,
    /// What has to be repeated on the next command line, with a leading blank.
    again: String,
}

impl Settings {
    /// Reads environment and file. Nothing is opened or connected.
    pub(crate) fn read(flags: &StoreArguments) -> Result<Settings, Failure> {
        let file = read_file(flags.config.clone().or_else(|| {
            // A path, which need not be text.
            let named = env::var_os("EVENTLOOM_CONFIG").filter(|value| !value.is_empty());
            named.map(PathBuf::from)
        }))?;
        let values = Values::gather(
            file,
            [
                (Key::Store, flags.store.clone()),
                (Key::Schema, flags.schema.clone()),
                (Key::Pooled, flags.pooled.then(|| "true".to_owned())),
            ],
        )?;
        // What holds unsaid is the business of the one command that waits for locks.
        let lock_timeout = values.said(Key::LockTimeout).map(|value| value.text.clone());
        let lock_timeout = lock_timeout.map(|text| figures::parse_duration(&text)).transpose();
        Ok(Settings {
            store: values.said(Key::Store).map(|value| value.text.clone()),
            schema: values
                .read(Key::Schema, |text| SchemaName::parse(text))?
                .unwrap_or_default(),
            schema_is_named: values.said(Key::Schema).is_some(),
            pooled: values.read(Key::Pooled, key::switch)?.unwrap_or_default(),
            lock_timeout: lock_timeout.map_err(Failure::usage)?,
            again: again(flags),
            values,
        })
    }

    /// Settings of another store than the one that is worked on.
    pub(crate) fn of_other(store: &str, schema: Option<&SchemaName>, pooled: bool) -> Settings {
        let flags = StoreArguments {
            store: Some(store.to_owned()),
            schema: schema.map(SchemaName::to_string),
            pooled,
            config: None,
        };
        Settings {
            values: Values::default(),
            store: flags.store.clone(),
            schema: schema.cloned().unwrap_or_default(),
            schema_is_named: schema.is_some(),
            pooled,
            lock_timeout: None,
            again: again(&flags),
        }
    }

    /// As if the store had been named by the environment.
    #[cfg(test)]
    pub(crate) fn of_store(store: &str) -> Settings {
        Settings {
            again: String::new(),
            ..Settings::of_other(store, None, false)
        }
    }

    fn store(&self) -> Result<&str, Failure> {
        self.store.as_deref().ok_or_else(|| {
            Failure::usage("no store is given").next(
                "give --store sqlite://PATH or --store postgres://USER@HOST/DATABASE, set EVENTLOOM_STORE, or write \
                 store = \"…\" in eventloom.toml",
            )
        })
    }

    /// Where the store is.
    pub(crate) fn place(&self) -> Result<Place, Failure> {
        let place = place::parse(self.store()?)?;
        self.check_schema(match place {
            Place::Sqlite(_) => Kind::Sqlite,
            Place::Postgres(_) => Kind::Postgres,
        })?;
        Ok(place)
    }

    /// Which kind of store it is.
    pub(crate) fn kind(&self) -> Result<Kind, Failure> {
        let kind = place::kind(self.store()?)?;
        self.check_schema(kind)?;
        Ok(kind)
    }

    /// The schema of the tables on Postgres.
    pub(crate) fn schema(&self) -> &SchemaName {
        &self.schema
    }

    /// A command that helps, with what was said about the store on this command line.
    pub(crate) fn command(&self, verb: &str) -> String {
        format!("eventloom {verb}{}", self.again)
    }

    fn check_schema(&self, kind: Kind) -> Result<(), Failure> {
        match kind == Kind::Sqlite && self.schema_is_named && self.schema != SchemaName::default() {
            true => Err(
                Failure::usage(format!("SQLite has no schemas, and {} is asked for", self.schema))
                    .next("leave the schema out: the tables of a file begin with eventloom_"),
            ),
            false => Ok(()),
        }
    }
}

/// A URL with a password is left out: it would stand on a screen.
fn again(flags: &StoreArguments) -> String {
    let mut again = String::new();
    let mut add = |name: &str, value: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/.:@_-%+=?,".contains(c);
        let value = match value.chars().all(plain) {
            true => value.to_owned(),
            false => format!("'{}'", value.replace('\'', r"'\''")),
        };
        again += &format!(" {name} {value}");
    };
    if let Some(store) = flags
        .store
        .as_deref()
        .filter(|store| crate::secrets::of_store(store) == *store)
    {
        add("--store", store);
    }
    if let Some(schema) = &flags.schema {
        add("--schema", schema);
    }
    if let Some(config) = &flags.config {
        add("--config", &config.to_string_lossy());
    }
    if flags.pooled {
        again += " --pooled";
    }
    again
}

/// A file that is named must be there; `eventloom.toml` of this folder may be.
fn read_file(named: Option<PathBuf>) -> Result<FileSettings, Failure> {
    let path = named.as_deref().unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => file::parse(path, &text),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(FileSettings::default()),
        Err(error) => Err(Failure::usage(format!(
            "cannot read the settings file {}: {error}",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again() {
        let cases = [
            (Some("shop.db"), None, " --store shop.db"),
            (Some("my shop.db"), Some("shop"), " --store 'my shop.db' --schema shop"),
            (Some("postgres://u@h/d"), None, " --store postgres://u@h/d"),
            (Some("postgres://u:secret@h/d"), None, ""),
            (Some("//u:secret@h/d"), None, ""),
            (None, None, ""),
        ];
        for (store, schema, expected) in cases {
            let [store, schema] = [store, schema].map(|text| text.map(str::to_owned));
            let flags = StoreArguments {
                store,
                schema,
                pooled: false,
                config: None,
            };
            assert_eq!(again(&flags), expected);
        }
    }
}
