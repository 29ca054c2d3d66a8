//! Every setting that there is: its name in the file, its flag, its variable, and what it is unless somebody says so.

use crate::figures;

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Store,
    Schema,
    Pooled,
    LockTimeout,
    RelayName,
    RelayTo,
    RelayToSchema,
    RelayToPooled,
    RelayTopics,
    RelayFrom,
    RelayBatch,
    RelayInFlight,
    RelayLease,
    RelayConfirmWithin,
    RelayKeepLog,
    RelayListen,
}

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Switch,
    Number,
    Duration,
    /// A duration, or `forever`.
    Keeping,
    /// Texts; with commas between them where there is one line alone.
    List,
}

/// What holds when nobody says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsaid {
    /// This value.
    Value(&'static str),
    /// No value; what that means.
    Nothing(&'static str),
}

impl Key {
    pub(crate) const ALL: [Key; 16] = [
        Key::Store,
        Key::Schema,
        Key::Pooled,
        Key::LockTimeout,
        Key::RelayName,
        Key::RelayTo,
        Key::RelayToSchema,
        Key::RelayToPooled,
        Key::RelayTopics,
        Key::RelayFrom,
        Key::RelayBatch,
        Key::RelayInFlight,
        Key::RelayLease,
        Key::RelayConfirmWithin,
        Key::RelayKeepLog,
        Key::RelayListen,
    ];

    /// Its name in the file, with the table before the dot.
    pub(crate) fn name(self) -> &'static str {
        self.spelled().0
    }

    pub(crate) fn flag(self) -> &'static str {
        self.spelled().1
    }

    pub(crate) fn variable(self) -> &'static str {
        self.spelled().2
    }

    fn spelled(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Key::Store => ("store", "--store", "EVENTLOOM_STORE"),
            Key::Schema => ("schema", "--schema", "EVENTLOOM_SCHEMA"),
            Key::Pooled => ("pooled", "--pooled", "EVENTLOOM_POOLED"),
            Key::LockTimeout => ("lock_timeout", "--lock-timeout", "EVENTLOOM_LOCK_TIMEOUT"),
            Key::RelayName => ("relay.name", "--name", "EVENTLOOM_RELAY_NAME"),
            Key::RelayTo => ("relay.to", "--to", "EVENTLOOM_RELAY_TO"),
            Key::RelayToSchema => ("relay.to_schema", "--to-schema", "EVENTLOOM_RELAY_TO_SCHEMA"),
            Key::RelayToPooled => ("relay.to_pooled", "--to-pooled", "EVENTLOOM_RELAY_TO_POOLED"),
            Key::RelayTopics => ("relay.topics", "--topic", "EVENTLOOM_RELAY_TOPICS"),
            Key::RelayFrom => ("relay.from", "--from", "EVENTLOOM_RELAY_FROM"),
            Key::RelayBatch => ("relay.batch", "--batch", "EVENTLOOM_RELAY_BATCH"),
            Key::RelayInFlight => ("relay.in_flight", "--in-flight", "EVENTLOOM_RELAY_IN_FLIGHT"),
            Key::RelayLease => ("relay.lease", "--lease", "EVENTLOOM_RELAY_LEASE"),
            Key::RelayConfirmWithin => (
                "relay.confirm_within",
                "--confirm-within",
                "EVENTLOOM_RELAY_CONFIRM_WITHIN",
            ),
            Key::RelayKeepLog => ("relay.keep_log", "--keep-log", "EVENTLOOM_RELAY_KEEP_LOG"),
            Key::RelayListen => ("relay.listen", "--listen", "EVENTLOOM_RELAY_LISTEN"),
        }
    }

    pub(crate) fn form(self) -> Form {
        match self {
            Key::Store
            | Key::Schema
            | Key::RelayName
            | Key::RelayTo
            | Key::RelayToSchema
            | Key::RelayFrom
            | Key::RelayListen => Form::Text,
            Key::Pooled | Key::RelayToPooled => Form::Switch,
            Key::RelayBatch | Key::RelayInFlight => Form::Number,
            Key::LockTimeout | Key::RelayLease | Key::RelayConfirmWithin => Form::Duration,
            Key::RelayKeepLog => Form::Keeping,
            Key::RelayTopics => Form::List,
        }
    }

    pub(crate) fn unsaid(self) -> Unsaid {
        match self {
            Key::Store | Key::RelayTo => Unsaid::Nothing("must be given"),
            Key::Schema | Key::RelayToSchema => Unsaid::Value("eventloom"),
            Key::Pooled | Key::RelayToPooled => Unsaid::Value("false"),
            Key::LockTimeout => Unsaid::Value("5s"),
            Key::RelayName => Unsaid::Value("relay"),
            Key::RelayTopics => Unsaid::Nothing("all topics"),
            Key::RelayFrom => Unsaid::Value("earliest"),
            Key::RelayBatch => Unsaid::Value("1000"),
            Key::RelayInFlight => Unsaid::Value("4"),
            Key::RelayLease => Unsaid::Value("20s"),
            Key::RelayConfirmWithin => Unsaid::Nothing("half of the lease"),
            Key::RelayKeepLog => Unsaid::Value("0s"),
            Key::RelayListen => Unsaid::Nothing("no endpoint"),
        }
    }

    /// Whether it may hold a password.
    pub(crate) fn is_place(self) -> bool {
        matches!(self, Key::Store | Key::RelayTo)
    }
}

impl Form {
    /// What is wrong with a text that should be of this form. It quotes no value that may be a secret.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Form::Text | Form::List => Ok(()),
            Form::Switch => switch(text).map(drop),
            Form::Number => number(text).map(drop),
            Form::Duration => figures::parse_duration(text).map(drop),
            Form::Keeping if text.trim() == "forever" => Ok(()),
            Form::Keeping => figures::parse_duration(text)
                .map(drop)
                .map_err(|error| format!("{error}; or write forever")),
        }
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

pub(super) fn number(text: &str) -> Result<u32, String> {
    let digits = text.trim().replace('_', "");
    digits.parse().map_err(|_| format!("{text:?} is no whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_unsaid_is_well_formed() {
        for key in Key::ALL {
            if let Unsaid::Value(text) = key.unsaid() {
                assert_eq!(key.form().check(text), Ok(()), "{}", key.name());
            }
        }
    }

    #[test]
    fn forms() {
        let cases = [
            (Form::Switch, "maybe", "neither true nor false"),
            (Form::Number, "many", "no whole number"),
            (Form::Duration, "5", "has no unit"),
            (Form::Keeping, "ever", "forever"),
        ];
        for (form, text, why) in cases {
            assert!(form.check(text).is_err_and(|error| error.contains(why)), "{text}");
        }
        assert_eq!(Form::Keeping.check("forever"), Ok(()));
        assert_eq!(number("1_000"), Ok(1000));
    }
}
