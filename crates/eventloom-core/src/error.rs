//! What can go wrong, for whom, and whether trying again can help.

use crate::limits::Refusal;
use std::{error::Error, fmt};

/// Whether trying the same again can succeed. Exhaustive: there is no third answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryClass {
    /// It may: a lock, an outage, a service that is down.
    Transient,
    /// It cannot: the message itself is wrong. Dead at once.
    Permanent,
}

/// A handler's error says whether trying again can help.
///
/// "Transient by default" is the empty impl:
///
/// ```
/// use eventloom_core::Classify;
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("no tax row for {0}")]
/// struct NoTaxRow(String);
/// impl Classify for NoTaxRow {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whether a retry can help",
    label = "needs `impl Classify for …` (the empty impl means: transient)",
    note = "a handler's error is a `std::error::Error` that is `Send + Sync + 'static` and implements `Classify`"
)]
pub trait Classify: Error + Send + Sync + 'static {
    /// Transient unless said otherwise.
    fn retry_class(&self) -> RetryClass {
        RetryClass::Transient
    }
}

impl Classify for std::convert::Infallible {}

/// Kinds of trouble with a store, told apart because each is answered differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection, or it was lost before a commit was asked for: nothing happened.
    Unreachable,
    /// The connection was lost after COMMIT was sent, or no answer came to a call that commits by itself: it may have happened.
    Indeterminate,
    /// Lost a deadlock, a serialisation failure or a busy database: run it again.
    Conflict,
    /// The transaction was already aborted by an earlier statement that failed.
    Aborted,
    /// The server ended the statement or the transaction at its time limit.
    Timeout,
    /// A constraint was violated.
    Constraint,
    /// No space left. Nothing confirmed is lost; goes on when there is space.
    Full,
    /// A transaction that read first cannot write now (SQLite): begin with BEGIN IMMEDIATE.
    ReadTransaction,
    /// Not allowed in this state: wrong isolation level, a standby, a schema of another version, missing rights.
    Refused,
    /// Anything else.
    Other,
}

/// A store failed. Never holds a password: connection strings do not reach it.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    doing: &'static str,
    source: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// `doing` completes "while …", for example `"advancing cursors"`.
    pub fn new(kind: StoreErrorKind, doing: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        StoreError {
            kind,
            doing,
            source: source.into(),
        }
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the effect may have happened although this is an error.
    pub fn may_have_happened(&self) -> bool {
        self.kind == StoreErrorKind::Indeterminate
    }

    /// Whether trying again can help.
    pub fn retry_class(&self) -> RetryClass {
        match self.kind {
            StoreErrorKind::Constraint | StoreErrorKind::Refused | StoreErrorKind::ReadTransaction => {
                RetryClass::Permanent
            }
            _ => RetryClass::Transient,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = match self.kind {
            StoreErrorKind::Unreachable => "the store is unreachable",
            StoreErrorKind::Indeterminate => "no answer came to a commit, so it may have happened",
            StoreErrorKind::Conflict => "the transaction lost against another one and can be run again",
            StoreErrorKind::Aborted => "an earlier statement of this transaction failed",
            StoreErrorKind::Timeout => "the time limit was reached",
            StoreErrorKind::Constraint => "a constraint refused it",
            StoreErrorKind::Full => "no space is left in the database",
            StoreErrorKind::ReadTransaction => {
                "this transaction read before it wrote and another one has written since; begin it with BEGIN IMMEDIATE"
            }
            StoreErrorKind::Refused => "the store refused it",
            StoreErrorKind::Other => "the store failed",
        };
        write!(f, "{hint} (while {}): {}", self.doing, self.source)
    }
}

impl Error for StoreError {
    /// What lies behind the driver's error, which is told already.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl Classify for StoreError {
    fn retry_class(&self) -> RetryClass {
        StoreError::retry_class(self)
    }
}

/// Publishing failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The event does not serialise. Nothing was written, the transaction is usable.
    #[error("the event does not encode as JSON")]
    Encode(#[source] serde_json::Error),
    /// The event is over a limit or malformed. Nothing was written, the transaction is usable.
    #[error("the event was refused")]
    Refused(#[source] Refusal),
    /// The store failed. Inside a transaction of Postgres, the transaction is aborted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PublishError {
    /// Whether the event may be in the log although this is an error. Only a stand-alone publish can end so.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, PublishError::Store(error) if error.may_have_happened())
    }
}

impl Classify for PublishError {
    fn retry_class(&self) -> RetryClass {
        match self {
            PublishError::Encode(_) | PublishError::Refused(_) => RetryClass::Permanent,
            PublishError::Store(error) => error.retry_class(),
        }
    }
}
