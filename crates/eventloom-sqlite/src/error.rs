//! What SQLite's result codes mean for whoever asked.

use eventloom_core::{
    PublishError, StoreError, StoreErrorKind,
    ports::{FenceError, ReadError, RegisterError},
};
use sqlx::error::DatabaseError;
use std::error::Error;

// Primary result codes, and the extended ones that mean something else.
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOTADB: i32 = 26;
const BUSY_SNAPSHOT: i32 = 517;
const CONSTRAINT_COMMIT_HOOK: i32 = 531;
const CONSTRAINT_TRIGGER: i32 = 1811;
/// Shared memory cannot grow: what a full disk looks like from there.
const IOERR_SHM_SIZE: i32 = 4874;

/// What kind of store trouble is behind an error, when any is; looks at the error itself and at its sources.
pub(crate) fn kind_of(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kind) = kind_of_one(error) {
            return Some(kind);
        }
        next = error.source();
    }
    None
}

fn kind_of_one(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
    // Transparent variants leave the store's error out of the chain, so they are opened here.
    let store = match () {
        () if error.is::<StoreError>() => error.downcast_ref::<StoreError>(),
        () => match (
            error.downcast_ref::<PublishError>(),
            error.downcast_ref::<ReadError>(),
            error.downcast_ref::<FenceError>(),
            error.downcast_ref::<RegisterError>(),
        ) {
            (Some(PublishError::Store(store)), ..) => Some(store),
            (_, Some(ReadError::Store(store)), ..) => Some(store),
            (_, _, Some(FenceError::Store(store)), _) => Some(store),
            (.., Some(RegisterError::Store(store))) => Some(store),
            _ => None,
        },
    };
    store
        .map(StoreError::kind)
        .or_else(|| error.downcast_ref::<sqlx::Error>().map(kind_of_driver))
        // `#[error(transparent)]` leaves the driver's error out of the chain, and what is left of it is this box.
        .or_else(|| {
            error
                .downcast_ref::<Box<dyn DatabaseError>>()
                .map(|database| kind_of_database(database.as_ref()))
        })
}

/// What the driver's error means in the middle of a transaction.
pub(crate) fn kind_of_driver(error: &sqlx::Error) -> StoreErrorKind {
    match error {
        sqlx::Error::Database(database) => kind_of_database(database.as_ref()),
        sqlx::Error::Io(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed => StoreErrorKind::Unreachable,
        _ => StoreErrorKind::Other,
    }
}

fn kind_of_database(error: &dyn DatabaseError) -> StoreErrorKind {
    let code = error.code().and_then(|code| code.parse().ok()).unwrap_or(ERROR);
    kind_of_code(code, error.message())
}

fn kind_of_code(code: i32, message: &str) -> StoreErrorKind {
    match (code, code & 0xff) {
        (BUSY_SNAPSHOT, _) => StoreErrorKind::ReadTransaction,
        (IOERR_SHM_SIZE, _) | (_, FULL) => StoreErrorKind::Full,
        (CONSTRAINT_TRIGGER, _) if message.contains("eventloom: ") => StoreErrorKind::Refused,
        // The transaction had ended by itself, and a statement after it wanted to commit on its own.
        (CONSTRAINT_COMMIT_HOOK, _) => StoreErrorKind::Aborted,
        (_, BUSY | LOCKED) => StoreErrorKind::Conflict,
        (_, CONSTRAINT) => StoreErrorKind::Constraint,
        (_, CANTOPEN | IOERR | NOTADB) => StoreErrorKind::Unreachable,
        (_, READONLY) => StoreErrorKind::Refused,
        (ERROR, _) if message.contains("no transaction is active") || message.contains("no such savepoint") => {
            StoreErrorKind::Aborted
        }
        _ => StoreErrorKind::Other,
    }
}

/// Makes a store's error of the driver's; `doing` completes "while …".
pub(crate) fn failed(doing: &'static str) -> impl Fn(sqlx::Error) -> StoreError + Copy {
    move |error| StoreError::new(kind_of_driver(&error), doing, error)
}

/// The same for what commits, where an I/O error leaves open whether the log file has the commit: a flush that fails may still
/// reach the disk, and the next program that recovers the file finds it.
pub(crate) fn commit_failed(doing: &'static str) -> impl Fn(sqlx::Error) -> StoreError + Copy {
    move |error| {
        let kind = match kind_of_driver(&error) {
            StoreErrorKind::Unreachable => StoreErrorKind::Indeterminate,
            kind => kind,
        };
        StoreError::new(kind, doing, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let kinds = [
            (5, "", StoreErrorKind::Conflict),
            (261, "", StoreErrorKind::Conflict),
            (517, "", StoreErrorKind::ReadTransaction),
            (6, "", StoreErrorKind::Conflict),
            (13, "", StoreErrorKind::Full),
            (4874, "", StoreErrorKind::Full),
            (2067, "UNIQUE constraint failed", StoreErrorKind::Constraint),
            (1811, "eventloom: rows of a log are facts", StoreErrorKind::Refused),
            (1811, "a user's own trigger", StoreErrorKind::Constraint),
            (531, "", StoreErrorKind::Aborted),
            (14, "", StoreErrorKind::Unreachable),
            (778, "", StoreErrorKind::Unreachable),
            (8, "", StoreErrorKind::Refused),
            (1032, "", StoreErrorKind::Refused),
            (1, "cannot commit - no transaction is active", StoreErrorKind::Aborted),
            (1, "near \"SELEC\": syntax error", StoreErrorKind::Other),
        ];
        for (code, message, kind) in kinds {
            assert_eq!(kind_of_code(code, message), kind, "code {code} {message}");
        }
    }

    #[test]
    fn kinds_are_found_behind_other_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("invoicing failed")]
        struct Invoicing(#[source] Box<dyn Error + Send + Sync>);

        let busy = || StoreError::new(StoreErrorKind::Conflict, "testing", "busy");
        let found = |error: Box<dyn Error + Send + Sync>| kind_of(&Invoicing(error));
        assert_eq!(found(Box::new(busy())), Some(StoreErrorKind::Conflict));
        assert_eq!(
            found(Box::new(PublishError::Store(busy()))),
            Some(StoreErrorKind::Conflict)
        );
        assert_eq!(
            found(Box::new(ReadError::Store(busy()))),
            Some(StoreErrorKind::Conflict)
        );
        assert_eq!(
            found(Box::new(sqlx::Error::PoolClosed)),
            Some(StoreErrorKind::Unreachable)
        );
        assert_eq!(found("no tax row".into()), None);
    }
}
