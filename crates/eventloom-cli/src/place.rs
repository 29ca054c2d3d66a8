//! Where a store is: read from the one text that an operator gives.

use crate::{failure::Failure, figures, secrets};
use sqlx::postgres::PgConnectOptions;
use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

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

const WRITE: &str = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters in user and password \
                     percent-encoded (@ is %40, / is %2F, # is %23, ? is %3F)";

/// What a URL of Postgres may say behind its question mark.
const PARAMETERS: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
];
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Which kind of store a text names. `postgres://` alone is enough for that.
pub(crate) fn kind(text: &str) -> Result<Kind, Failure> {
    // What libpq reads as `host=… password=…` is no path, and must not be repeated.
    if !text.contains("://") && ["password=", "host=", "dbname="].iter().any(|word| text.contains(word)) {
        return Err(Failure::usage("the store is given as keywords and values")
            .next("write postgres://USER:PASSWORD@HOST:PORT/DATABASE"));
    }
    let shown = secrets::of_store(text);
    match text.split_once("://") {
        Some(("postgres" | "postgresql", _)) => Ok(Kind::Postgres),
        None if secrets::behind_postgres(text).is_some() || (is_login(text) && !Path::new(text).exists()) => Err(
            Failure::usage(format!("the store {shown:?} looks like a URL of Postgres and is none"))
                .next(format!("{WRITE}; a file of such a name is written with ./ before it")),
        ),
        Some(("sqlite", _)) | None => Ok(Kind::Sqlite),
        Some((scheme, _)) => Err(
            Failure::usage(format!("the store {shown:?} has an unknown scheme {scheme:?}"))
                .next("give sqlite://PATH, a plain path, or postgres://USER@HOST/DATABASE"),
        ),
    }
}

/// Reads where a store is. Nothing is opened or connected.
pub(crate) fn parse(text: &str) -> Result<Place, Failure> {
    match kind(text)? {
        Kind::Postgres => postgres(text),
        Kind::Sqlite => {
            let path = text.strip_prefix("sqlite://").unwrap_or(text);
            // What stands behind the question mark is for drivers; the program opens every file the same way.
            let path = path.split_once('?').map_or(path, |(path, _)| path);
            if path.is_empty() || path == ":memory:" {
                let shown = secrets::of_store(text);
                return Err(Failure::usage(format!("the store {shown:?} names no file"))
                    .next("give the path of the service's database, such as sqlite://shop.db"));
            }
            Ok(Place::Sqlite(PathBuf::from(path)))
        }
    }
}

/// `user:password@host`, with anything in the password; a path with a folder before the colon is none.
fn is_login(text: &str) -> bool {
    let Some((login, _)) = text.rsplit_once('@') else {
        return false;
    };
    login
        .split_once(':')
        .is_some_and(|(user, _)| !user.is_empty() && !user.contains('/'))
}

fn postgres(text: &str) -> Result<Place, Failure> {
    let wrong = |why: String| {
        Failure::usage(format!(
            "the store {:?} is no URL of Postgres: {why}",
            secrets::of_store(text)
        ))
        .next(WRITE)
    };
    let behind = text.split_once("://").map_or(text, |(_, behind)| behind);
    let (authority, rest) = behind.split_at(behind.find(['/', '?', '#']).unwrap_or(behind.len()));
    // A driver would take what stands before it for the host, and say so.
    if rest.contains('@') || authority.matches('@').count() > 1 {
        return Err(wrong("an @, / or ? in it is not percent-encoded".to_owned()));
    }
    check_parameters(rest)?;
    // The driver's message is about the text, and quotes none of it.
    let mut options = PgConnectOptions::from_str(text).map_err(|error| wrong(why(&error)))?;
    // The driver looks an IPv6 address up as a name, with the brackets that a URL needs.
    let address = options
        .get_host()
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if let Some(address) = address.map(str::to_owned) {
        options = options.host(&address);
    }
    Ok(Place::Postgres(Box::new(options)))
}

/// The driver passes over what it does not know, and a connection that was to be encrypted is not.
fn check_parameters(rest: &str) -> Result<(), Failure> {
    let Some((_, query)) = rest.split_once('?') else {
        return Ok(());
    };
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = name.replace("%5B", "[").replace("%5b", "[");
        if !PARAMETERS.contains(&name.as_str()) && !name.starts_with("options[") {
            let next = match figures::nearest(&name, PARAMETERS.into_iter()) {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!("known are {}", PARAMETERS.join(", ")),
            };
            return Err(Failure::usage(format!("the store's URL has an unknown parameter {name:?}")).next(next));
        }
        let lower = value.to_ascii_lowercase();
        if matches!(name.as_str(), "sslmode" | "ssl-mode") && !SSL_MODES.contains(&lower.as_str()) {
            let next = match figures::nearest(&lower, SSL_MODES.into_iter()) {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!("known are {}", SSL_MODES.join(", ")),
            };
            return Err(Failure::usage(format!("the store's URL has an unknown {name} {value:?}")).next(next));
        }
    }
    Ok(())
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
            "./u:p@host/shop.db",
            "a@b/shop.db",
        ];
        for text in sqlite {
            let place = parse(text);
            assert!(
                matches!(&place, Ok(Place::Sqlite(path)) if path.ends_with("shop.db")),
                "{text}: {place:?}"
            );
        }
        for text in [
            "postgres://host/db",
            "postgresql://u:p%40@host:1/db?sslmode=require&options[a]=b",
            "postgres://",
        ] {
            assert!(matches!(parse(text), Ok(Place::Postgres(_))), "{text}");
        }
        let Ok(Place::Postgres(options)) = parse("postgres://u@[::1]:5433/db") else {
            panic!("an address of IPv6 is one");
        };
        assert_eq!((options.get_host(), options.get_port()), ("::1", 5433));
        for text in [
            "host=db user=u password=p",
            "mysql://host/db",
            "sqlite://",
            ":memory:",
            "postgres://u:p#x@host/db",
            "postgres:/u:p@h/x",
            "postgres//u:p@h/x",
            "postgres:u@h/x",
            "u:p@host/db",
            "u:p@ss/w@host",
            "postgres://u:p@ss/w@127.0.0.1/db",
            "postgres://u:5432?x@h/db",
            "postgres://h/db?foo=bar",
            "postgres://h/db?sslmdoe=require",
            "postgres://h/db?sslmode=reqiure",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
