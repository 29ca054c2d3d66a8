//! How a command ends: an exit code, and where it went wrong, what and what to do next.

use crate::{secrets, settings::Settings};
use eventloom::{
    PublishError, StoreError, StoreErrorKind, chain,
    ports::{ReadError, RegisterError},
};
use sqlx::error::DatabaseError;
use std::{error::Error, io, process::ExitCode};

/// Exit codes, the same for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// It did not.
    Failed,
    /// It was asked for something that does not exist.
    Usage,
    /// It looked, and found something that needs somebody.
    FoundWrong,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::FoundWrong => 3,
        })
    }
}

/// A command did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    what: String,
    /// Of our own making: it holds nothing that could be secret.
    next: Option<String>,
    of_store: bool,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Failure {
            exit: Exit::Failed,
            what: what.into(),
            next: None,
            of_store: false,
        }
    }

    /// An error with everything that lies behind it.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        Failure::new(chain(error).to_string())
    }

    /// Asked for something that does not exist.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Failure {
            exit: Exit::Usage,
            what: what.into(),
            next: None,
            of_store: false,
        }
    }

    /// Where the store is, when it was the store that failed.
    #[must_use]
    pub(crate) fn at(mut self, place: &str) -> Self {
        if self.of_store {
            self.what = format!("{place}: {}", self.what);
        }
        self
    }

    /// What to do about it.
    #[must_use]
    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Commands in the advice, with what was said about the store on this command line.
    #[must_use]
    pub(crate) fn repeating(mut self, settings: &Settings) -> Self {
        if let Some(next) = &mut self.next {
            for verb in ["status", "migrate --grants"] {
                *next = next.replace(&format!("`eventloom {verb}`"), &format!("`{}`", settings.command(verb)));
            }
        }
        self
    }

    /// Of which of several stores this is.
    #[must_use]
    pub(crate) fn of_which(mut self, which: &str) -> Self {
        self.what = format!("{which}: {}", self.what);
        self
    }

    /// What and what to do about it, on one line and without passwords.
    pub(crate) fn in_one_line(&self) -> String {
        let next = self.next.as_ref().map(|next| format!("; next: {next}"));
        secrets::without_passwords(&self.what).into_owned() + &next.unwrap_or_default()
    }

    /// Says it on stderr.
    pub(crate) fn tell(&self) -> Exit {
        if !self.what.is_empty() {
            eprintln!("error: {}", secrets::without_passwords(&self.what));
        }
        if let Some(next) = &self.next {
            eprintln!("next: {next}");
        }
        self.exit
    }
}

impl From<io::Error> for Failure {
    /// Of stdout. Whoever closes the pipe has seen enough.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure {
                exit: Exit::Done,
                what: String::new(),
                next: None,
                of_store: false,
            },
            _ => Failure::new(format!("cannot write to stdout: {error}")),
        }
    }
}

/// SQLSTATEs of a statement whose preparation happened on another server connection.
const PREPARED_ELSEWHERE: [&str; 2] = ["42P05", "26000"];

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (what, state) = in_the_servers_words(&error);
        let next = match error.kind() {
            _ if state.is_some_and(|state| PREPARED_ELSEWHERE.contains(&state.as_str())) => {
                "this leads through a pooler in transaction mode: add --pooled, or set EVENTLOOM_POOLED=true"
            }
            StoreErrorKind::Unreachable => "see whether the store is up and reachable from here, then run it again",
            StoreErrorKind::Indeterminate => "look whether it happened before you run it again",
            StoreErrorKind::Conflict | StoreErrorKind::Aborted => "run it again",
            StoreErrorKind::Timeout => "run it again; `eventloom status` says whether a transaction is in the way",
            StoreErrorKind::Full => "make space for the database, then run it again",
            StoreErrorKind::Refused => {
                "connect to the primary, with a role that has the rights which `eventloom migrate --grants` prints"
            }
            _ => "",
        };
        Failure {
            exit: Exit::Failed,
            what,
            next: Some(next.to_owned()).filter(|next| !next.is_empty()),
            of_store: true,
        }
    }
}

/// The driver adds where in the server's source an error was raised, which helps nobody here; and its SQLSTATE.
fn in_the_servers_words(error: &StoreError) -> (String, Option<String>) {
    let text = error.to_string();
    let database = error
        .source()
        .and_then(|source| source.downcast_ref::<Box<dyn DatabaseError>>());
    match database {
        Some(database) => {
            let what = text.replace(&format!("error returned from database: {database}"), database.message());
            (what, database.code().map(|code| code.into_owned()))
        }
        _ => (text, None),
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::Pruned { after, pruned_to } => Failure::new(format!(
                "position {after} lies below {pruned_to}, up to which this log was pruned: rows are missing in between"
            ))
            .next(format!(
                "begin at --after {pruned_to}, or --from-start for the oldest row that is left"
            )),
            error => Failure::of(&error),
        }
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Store(error) => error.into(),
            RegisterError::Pruned { asked, pruned_to } => Failure::new(format!(
                "a consumer cannot go on after {asked}: rows up to {pruned_to} were pruned"
            ))
            .next(format!(
                "choose --after {pruned_to} or higher, or --earliest for the oldest row that is left"
            )),
            error => Failure::of(&error),
        }
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Store(error) => error.into(),
            error => Failure::of(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_repeats_the_store() {
        let settings = Settings::of_other("shop.db", None, false);
        let timeout = StoreError::new(StoreErrorKind::Timeout, "waiting", "a lock");
        let told = Failure::from(timeout).repeating(&settings).in_one_line();
        assert!(told.contains("`eventloom status --store shop.db`"), "{told}");
    }
}
