//! The vocabulary and the contracts of Eventloom: what an event is, and what a store or a broker must do.
//!
//! This crate knows no runtime, no SQL and no broker. Read it in this order:
//!
//! 1. [`Event`] and [`NewEvent`]: a fact, and how it enters a log.
//! 2. [`Envelope`]: the same fact as a reader gets it, with its CloudEvents attributes.
//! 3. [`Lane`], [`Position`], [`Epoch`]: how order and ownership are counted.
//! 4. [`ports`]: the contracts. Each trait says what `Ok`, `Err` and a dropped future let the caller conclude.

mod chain;
mod clock;
mod envelope;
mod error;
mod event;
pub mod faults;
mod limits;
mod name;
mod place;
pub mod ports;
mod shared_commit;

pub use chain::chain;
pub use clock::{Awake, BoxFuture, Clock};
pub use envelope::{Envelope, Headers, Payload, Recorded};
pub use error::{Classify, PublishError, RetryClass, StoreError, StoreErrorKind};
pub use event::{Event, NewEvent};
pub use limits::{PublishLimits, Refusal};
pub use name::{ConsumerName, NameError, OwnerId, SchemaName, Topic};
pub use place::{Epoch, Lane, LaneCount, Position};

pub use shared_commit::SharedCommit;

pub use time::OffsetDateTime;
pub use uuid::Uuid;
