//! The contracts between the engines and what stands below them.
//!
//! A *store* is where a service commits: [`Store`], and the traits that split its work by idea: [`Outbox`] (writing a
//! log), [`Log`] (reading it), [`Leases`] (who moves which cursor), [`Inbox`] (what was handled), [`Held`] (what waits),
//! [`DeadLetters`] and [`Readers`] (what operators ask), [`Relays`] (both ends of a relay). [`Backend`] is all of them.
//! A *broker* is what a relay sends to: [`Broker`].
//!
//! Methods that take `connection` run inside the caller's transaction and commit nothing. Methods without it run in a
//! transaction of their own and return after its commit. All of them are safe to drop: a dropped future has rolled back,
//! or (own transaction only) may have committed, and each can be repeated.
//!
//! What users fill in or are told ([`ReadLimits`], [`LetterFilter`], [`DeadLetter`], [`ReaderStatus`], [`LogStatus`] and the
//! like) is `#[non_exhaustive]`: it grows. What passes between an engine and a store ([`Move`], [`NewHeld`], [`Tenure`],
//! [`Page`], [`Claim`], [`Redrive`] and the like) is exhaustive on purpose: a store or an engine that overlooks a new field
//! or variant would do the wrong thing, and so it does not compile.
//!
//! `now` is what SQL takes for the current time: `None` for the database's own clock, `Some` under a virtual clock.

mod around;
mod broker;
mod dead_letters;
mod held;
mod inbox;
mod leases;
mod log;
mod readers;
mod relays;
mod store;

pub use around::{Around, Call, Surrounded, SurroundedTransaction};
pub use broker::{Broker, BrokerError, Capabilities, Fate, Mark, Marks, Ordering, Outgoing, Producer, Source};
pub use dead_letters::{DeadLetter, DeadLetters, LetterFilter, Redrive};
pub use held::{Attempted, Due, Failure, Held, HeldMessage, HeldNow, HeldState, LetGo, NewHeld};
pub use inbox::{Claim, EffectClaim, EffectRequest, Inbox, OnceClaim};
pub use leases::{Cursor, FenceError, Leases, Move, RegisterError, Registration, Reserve, Start, Taken, Tenure};
pub use log::{Blocker, Horizon, Log, LogStatus, Page, Pruned, ReadError, ReadLimits};
pub use readers::{LaneStatus, ReaderStatus, Readers};
pub use relays::{LaneSent, RelayStanding, Relays, Untaken};
pub use store::{Capacity, ConnectionOf, Outbox, Scope, Store, Transaction};

/// Everything that an engine needs of a store.
pub trait Backend: Outbox + Log + Leases + Inbox + Held + DeadLetters + Readers + Relays {}

impl<S: Outbox + Log + Leases + Inbox + Held + DeadLetters + Readers + Relays> Backend for S {}
