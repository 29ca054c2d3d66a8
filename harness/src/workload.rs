//! What is placed: orders of a key in sequence, of kinds that behave, fail, kill or wait.

use eventloom::{Event, Topic};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Where orders go.
pub(crate) const ORDERS: Topic = Topic::new("orders");
/// Where handlers publish.
pub(crate) const FOLLOWED: Topic = Topic::new("followed");
/// Attempts before a message is dead, in every consumer here.
pub(crate) const ATTEMPTS_MAX: u32 = 6;

/// How a message behaves when it is handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// At once, without trouble.
    Ok,
    /// In a few milliseconds.
    Slow,
    /// Fails its first two attempts.
    Transient,
    /// Fails for good until it is cured.
    Poison,
    /// Ends the process this many times for each consumer.
    Killer(u32),
    /// Fails once, and then ends the process at each attempt: a killer among held messages.
    HeldKiller,
    /// The handler publishes a follow-up.
    Publishes,
    /// Says that it is in, and waits for its gate to be opened, in processes that heed gates.
    Gate(String),
    /// Says that it is in, and waits a while for the other one to be in, too.
    Meets {
        /// What it is called.
        me: String,
        /// Whom it waits for.
        other: String,
        /// Ends the process after that.
        kills: bool,
    },
}

/// An order was placed: the `seq`th of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placed {
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) kind: Kind,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.key))
    }
}

/// What a handler publishes when it handles an order of kind [`Kind::Publishes`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Followed {
    /// The consumer that published it.
    pub(crate) by: String,
    pub(crate) key: String,
    pub(crate) seq: i64,
}

impl Followed {
    /// Its key, and what the follower's effects are filed under.
    pub(crate) fn key_of(by: &str, key: &str) -> String {
        format!("{by}/{key}")
    }
}

impl Event for Followed {
    const TYPE: &'static str = "order.followed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Owned(Followed::key_of(&self.by, &self.key)))
    }
}

/// The kind of an order of the campaign: the same for the same seed, key and sequence.
pub(crate) fn kind_of(seed: u64, key: &str, seq: i64) -> Kind {
    let mut hasher = DefaultHasher::new();
    (seed, key, seq).hash(&mut hasher);
    match hasher.finish() % 1000 {
        0 => Kind::Killer(2),
        1..=12 => Kind::Poison,
        13..=40 => Kind::Transient,
        41..=120 => Kind::Publishes,
        121..=400 => Kind::Slow,
        _ => Kind::Ok,
    }
}
