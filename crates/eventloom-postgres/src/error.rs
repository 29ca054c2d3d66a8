//! What an error of the driver means: one place that knows SQLSTATEs.

use eventloom_core::{StoreError, StoreErrorKind as Kind};
use sqlx::{
    error::DatabaseError,
    postgres::{PgDatabaseError, PgSeverity},
};
use std::{
    error::Error,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// SQLSTATE of a prepared statement that the server does not know (any more).
const STATEMENT_LOST: &str = "26000";
/// How long every transaction prepares its statements anew after one was lost.
const LOST_FOR: Duration = Duration::from_secs(60);
/// When the last one was lost. An error does not say on which connection, so it counts for all of the process.
static LOST_AT: Mutex<Option<Instant>> = Mutex::new(None);

/// Whether connections may lack statements that the driver counts as prepared: somebody has sent DEALLOCATE ALL or
/// DISCARD ALL on one. It fails whoever is given that connection next, for as long as it lives.
pub(crate) fn statements_may_be_lost() -> bool {
    let lost_at = *LOST_AT.lock().unwrap_or_else(PoisonError::into_inner);
    lost_at.is_some_and(|at| at.elapsed() < LOST_FOR)
}

/// Turns an error of the driver into one of the store; `doing` completes "while …".
pub(crate) fn while_doing(doing: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| StoreError::new(kind(&error), doing, error)
}

/// The same where a row that is not there was removed by somebody else meanwhile.
pub(crate) fn or_removed(doing: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |error| match error {
        sqlx::Error::RowNotFound => StoreError::new(Kind::Conflict, doing, error),
        _ => while_doing(doing)(error),
    }
}

/// The same for COMMIT itself.
///
/// Whoever loses the connection now cannot know. That includes "terminating connection": the server may send it after
/// the commit, in the place of the next prompt. It also includes a server that ends itself, for want of space in its
/// write-ahead log above all: the record of the commit may be written, and what comes behind it not.
pub(crate) fn while_committing(error: sqlx::Error) -> StoreError {
    let kind = match (kind(&error), error.as_database_error().and_then(severity)) {
        (Kind::Unreachable, _) | (_, Some(PgSeverity::Panic)) => Kind::Indeterminate,
        (kind, _) => kind,
    };
    StoreError::new(kind, "committing", error)
}

/// Kind of trouble behind an error of the driver.
pub(crate) fn kind(error: &sqlx::Error) -> Kind {
    match error {
        sqlx::Error::Database(database) => kind_of_database(database.as_ref()),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Kind::Unreachable,
        _ => Kind::Other,
    }
}

fn kind_of_database(error: &dyn DatabaseError) -> Kind {
    if error.code().is_some_and(|code| code == STATEMENT_LOST) {
        *LOST_AT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
    match (
        error.code().map_or(Kind::Other, |code| kind_of_state(&code)),
        severity(error),
    ) {
        // The server has ended the connection, for a reason that has no code of its own.
        (Kind::Other, Some(PgSeverity::Fatal | PgSeverity::Panic)) => Kind::Unreachable,
        (kind, _) => kind,
    }
}

fn severity(error: &dyn DatabaseError) -> Option<PgSeverity> {
    error
        .try_downcast_ref::<PgDatabaseError>()
        .map(PgDatabaseError::severity)
}

fn kind_of_state(state: &str) -> Kind {
    match state {
        "40P01" | "40001" | "55P03" => Kind::Conflict,
        "40003" => Kind::Indeterminate,
        // 25P01, 3B001: there is no transaction, or no savepoint; its user has ended the transaction.
        "25P02" | "25P01" | "3B001" => Kind::Aborted,
        // Statement, idle-in-transaction, idle-session and (from 17) transaction timeouts.
        "57014" | "25P03" | "57P05" | "25P04" => Kind::Timeout,
        // 53300: too many connections, which is not a disk.
        "53300" | "57P01" | "57P02" | "57P03" => Kind::Unreachable,
        "42501" | "25006" => Kind::Refused,
        _ => match state.get(..2).unwrap_or_default() {
            "08" => Kind::Unreachable,
            "23" => Kind::Constraint,
            "53" => Kind::Full,
            // Raised by our own triggers and functions.
            "EV" => Kind::Refused,
            _ => Kind::Other,
        },
    }
}

/// The first trouble with a store in an error and its chain of sources.
pub(crate) fn kind_in_chain(error: &(dyn Error + 'static)) -> Option<Kind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(store) = error.downcast_ref::<StoreError>() {
            return Some(store.kind());
        }
        match error.downcast_ref::<sqlx::Error>() {
            // A handler's own look-up that found nothing is no trouble of the store.
            Some(sqlx::Error::RowNotFound) => return None,
            Some(driver) => return Some(kind(driver)),
            None => {}
        }
        // `#[error(transparent)]` leaves the driver's error out of the chain, and what is left of it is this box.
        if let Some(database) = error.downcast_ref::<Box<dyn DatabaseError>>() {
            return Some(kind_of_database(database.as_ref()));
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let cases = [
            ("40P01", Kind::Conflict),
            ("40001", Kind::Conflict),
            ("55P03", Kind::Conflict),
            ("25P02", Kind::Aborted),
            ("25P01", Kind::Aborted),
            ("3B001", Kind::Aborted),
            ("57014", Kind::Timeout),
            ("25P03", Kind::Timeout),
            ("57P05", Kind::Timeout),
            ("23505", Kind::Constraint),
            ("53100", Kind::Full),
            ("53300", Kind::Unreachable),
            ("57P01", Kind::Unreachable),
            ("08006", Kind::Unreachable),
            ("42501", Kind::Refused),
            ("25006", Kind::Refused),
            ("EV002", Kind::Refused),
            ("22012", Kind::Other),
        ];
        for (state, expected) in cases {
            assert_eq!(kind_of_state(state), expected, "{state}");
        }
    }

    #[test]
    fn chains() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] sqlx::Error);
        assert_eq!(
            kind_in_chain(&Outer(sqlx::Error::PoolTimedOut)),
            Some(Kind::Unreachable)
        );
        assert_eq!(kind_in_chain(&Outer(sqlx::Error::RowNotFound)), None);
        assert_eq!(kind_in_chain(&std::fmt::Error), None);
        assert_eq!(
            while_doing("testing")(sqlx::Error::RowNotFound).kind(),
            Kind::Other,
            "a log without its row is not to be asked again"
        );
        assert_eq!(or_removed("testing")(sqlx::Error::RowNotFound).kind(), Kind::Conflict);
        let lost = while_committing(sqlx::Error::PoolClosed);
        assert!(lost.may_have_happened());
    }
}
