//! Where a store is: read from the one text that an operator gives.

use crate::failure::Failure;
use sqlx::postgres::PgConnectOptions;
use std::{path::PathBuf, str::FromStr};

/// The two kinds of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A store that can be opened.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

/// Which kind of store a text names. `postgres://` alone is enough for that.
pub(crate) fn kind(text: &str) -> Result<Kind, Failure> {
    // What libpq reads as `host=… password=…` is no path, and must not be repeated.
    if !text.contains("://") && ["password=", "host=", "dbname="].iter().any(|word| text.contains(word)) {
        return Err(Failure::usage("the store is given as keywords and values")
            .next("write postgres://USER:PASSWORD@HOST:PORT/DATABASE"));
    }
    match text.split_once("://") {
        Some(("postgres" | "postgresql", _)) => Ok(Kind::Postgres),
        Some(("sqlite", _)) | None => Ok(Kind::Sqlite),
        Some((scheme, _)) => Err(
            Failure::usage(format!("the store {text:?} has an unknown scheme {scheme:?}"))
                .next("give sqlite://PATH, a plain path, or postgres://USER@HOST/DATABASE"),
        ),
    }
}

/// Reads where a store is. Nothing is opened or connected.
pub(crate) fn parse(text: &str) -> Result<Place, Failure> {
    match kind(text)? {
        Kind::Postgres => match PgConnectOptions::from_str(text) {
            Ok(options) => Ok(Place::Postgres(Box::new(options))),
            // The driver's message is about the text, and quotes none of it.
            Err(error) => Err(
                Failure::usage(format!("the store {text:?} is no URL of Postgres: {}", why(&error))).next(
                    "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters in user and password \
                 percent-encoded (@ is %40, / is %2F, # is %23)",
                ),
            ),
        },
        Kind::Sqlite => {
            let path = text.strip_prefix("sqlite://").unwrap_or(text);
            // What stands behind the question mark is for drivers; the program opens every file the same way.
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            if path.is_empty() || path == ":memory:" {
                return Err(Failure::usage(format!("the store {text:?} names no file"))
                    .next("give the path of the service's database, such as sqlite://shop.db"));
            }
            Ok(Place::Sqlite(PathBuf::from(path)))
        }
    }
}

fn why(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Configuration(error) => error.to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let sqlite = [
            "shop.db",
            "./a/shop.db",
            "sqlite://shop.db",
            "sqlite:///var/shop.db",
            "sqlite://shop.db?mode=rw",
        ];
        for text in sqlite {
            let place = parse(text);
            assert!(
                matches!(&place, Ok(Place::Sqlite(path)) if path.ends_with("shop.db")),
                "{text}: {place:?}"
            );
        }
        for text in ["postgres://host/db", "postgresql://u:p@host:1/db", "postgres://"] {
            assert!(matches!(parse(text), Ok(Place::Postgres(_))), "{text}");
        }
        for text in [
            "host=db user=u password=p",
            "mysql://host/db",
            "sqlite://",
            ":memory:",
            "postgres://u:p#x@host/db",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
