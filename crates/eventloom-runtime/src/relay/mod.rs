//! A relay: follows the log of a store as consumers do, and hands its messages to a broker.
//!
//! It shares membership, lanes, held messages and the rest with consumers; what differs is that a batch is submitted and
//! its confirmations awaited *before* a transaction is opened, and that this transaction only moves cursors.
//!
//! What may interleave, and why it is safe:
//!
//! - a successor takes a lane while a batch of ours is at the broker: our cursor statement finds another epoch and nothing
//!   moves, the successor sends the same messages under the same delivery ids, and a broker that keeps marks refuses what
//!   we send after it;
//! - the answer of the broker, or of the store, is lost: nothing moves or it is not known whether it did; the messages are
//!   sent again under the same ids before anything else of their lane;
//! - several workers have batches in flight: of different lanes, and a key is in one lane;
//! - an operator lets a key go while messages queue behind it: its row is locked first, and what cannot be locked is sent.

mod batch;
mod breaker;
mod database;
mod drain;
mod null;
mod outlet;
mod sender;
mod state;
mod verify;

pub use database::{Database, DatabaseProducer};
pub use null::{Null, NullProducer};

pub(crate) use batch::see_through;
pub(crate) use drain::drain;
pub(crate) use state::State;

use crate::{
    backoff::Backoff,
    consumer::{Mode, Poison, Unhandled},
    settings::Settings,
};
use eventloom_core::{
    ConsumerName, NameError, Topic,
    ports::{Broker, Capacity, Start},
};
use outlet::{AnyBroker, Outlet};
use std::{sync::Arc, time::Duration};

/// Batches at once, unless said otherwise or the pool is smaller.
const IN_FLIGHT_DEFAULT: u32 = 4;

/// Hands the log of a store to a broker, in order for each key, and nothing before it was committed.
///
/// Only what was written to this log is relayed, not what came from another one: databases that are brokers to each other
/// do not loop.
///
/// ```
/// use eventloom_core::ports::Backend;
/// use eventloom_runtime::{Database, Eventloom, Relay, Service, StartError};
///
/// async fn run<S: Backend, B: Backend>(store: S, broker: B) -> Result<Service<S>, StartError> {
///     Eventloom::new(store).relay(Relay::new("relay", Database::new(broker))).start().await
/// }
/// ```
pub struct Relay {
    name: String,
    outlet: Arc<dyn Outlet>,
    topics: Vec<Topic>,
    start: Start,
    attempts_max: u32,
    backoff: Backoff,
    lease: Duration,
    confirm_within: Option<Duration>,
    batch_max: u32,
    in_flight: Option<u32>,
    held_per_key_max: u32,
    held_max: u32,
}

impl Relay {
    /// A relay of this name: 1 to 63 of `a-z 0-9 _ - .`, beginning with a letter; checked at start. Instances of one name
    /// share the lanes among them.
    pub fn new(name: impl Into<String>, broker: impl Broker) -> Self {
        Relay {
            name: name.into(),
            outlet: Arc::new(AnyBroker(broker)),
            topics: Vec::new(),
            start: Start::Earliest,
            attempts_max: 8,
            backoff: Backoff::default(),
            lease: Duration::from_secs(20),
            confirm_within: None,
            batch_max: 1000,
            in_flight: None,
            held_per_key_max: 10_000,
            held_max: 1_000_000,
        }
    }

    /// Adds a topic to relay. Without any, all of them are.
    #[must_use]
    pub fn topic(mut self, topic: Topic) -> Self {
        self.topics.push(topic);
        self
    }

    /// Where a new relay begins; earliest unless said otherwise. One that exists goes on where it is.
    #[must_use]
    pub fn start_at(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Times that a message of unknown fate is tried before it is dead, while others are confirmed; 8 unless said
    /// otherwise, 1 to 1000. A broker that is down uses up none.
    #[must_use]
    pub fn attempts(mut self, attempts_max: u32) -> Self {
        self.attempts_max = attempts_max;
        self
    }

    /// Waits between attempts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long a lane stays with an instance that has stopped renewing; 20 s unless said otherwise.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long the broker may take to confirm a batch, before its fate is unknown; half of the lease unless said
    /// otherwise, and at most that.
    #[must_use]
    pub fn confirm_within(mut self, limit: Duration) -> Self {
        self.confirm_within = Some(limit);
        self
    }

    /// Messages that are handed over together at most; 1000 unless said otherwise, 1 to 10,000.
    #[must_use]
    pub fn batch_max(mut self, messages: u32) -> Self {
        self.batch_max = messages;
        self
    }

    /// Batches at once; 4 unless said otherwise or the pool is smaller.
    #[must_use]
    pub fn in_flight(mut self, batches: u32) -> Self {
        self.in_flight = Some(batches);
        self
    }

    /// Limits of what is held, for one key and for the relay. Reaching one stops the lane, with an alarm.
    #[must_use]
    pub fn held_limits(mut self, per_key: u32, per_relay: u32) -> Self {
        self.held_per_key_max = per_key;
        self.held_max = per_relay;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn outlet(&self) -> Arc<dyn Outlet> {
        self.outlet.clone()
    }

    /// Its settings, or why they cannot work.
    pub(crate) fn settings(&self, capacity: Capacity) -> Result<Settings, Unfit> {
        let name = ConsumerName::parse(&self.name)?;
        let capabilities = self.outlet.capabilities();
        let refuse = |why: String| Err(Unfit::Because(why));
        if !(1..=1000).contains(&self.attempts_max) {
            return refuse(format!("attempts {} is not between 1 and 1000", self.attempts_max));
        }
        if !(1..=10_000).contains(&self.batch_max) {
            return refuse(format!("batch_max {} is not between 1 and 10000", self.batch_max));
        }
        if !(Duration::from_millis(300)..=Duration::from_secs(3600)).contains(&self.lease) {
            return refuse(format!("lease {:?} is not between 300ms and 1h", self.lease));
        }
        let half = self.lease / 2;
        let confirm_within = self.confirm_within.unwrap_or(half);
        if confirm_within.is_zero() || confirm_within > half {
            return refuse(format!(
                "confirm_within {confirm_within:?} does not fit into half of lease {:?}, {half:?}; lengthen the lease",
                self.lease
            ));
        }
        let usable = capacity.connections_max.saturating_sub(1).max(1);
        let in_flight = self.in_flight.unwrap_or(IN_FLIGHT_DEFAULT.min(usable));
        if in_flight == 0 || in_flight > 64 {
            return refuse(format!("in_flight {in_flight} is not between 1 and 64"));
        }
        Ok(Settings {
            name,
            topics: self.topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
            mode: Mode::Transaction,
            start: self.start,
            attempts_max: self.attempts_max,
            backoff: self.backoff,
            poison: Poison::Park,
            unhandled: Unhandled::Acknowledge,
            deadline: confirm_within,
            lease: self.lease,
            workers: in_flight,
            in_flight,
            batch_max: self.batch_max,
            inbox: false,
            inbox_window: Duration::ZERO,
            held_per_key_max: self.held_per_key_max,
            held_max: self.held_max,
            payload_each_max: Some(capabilities.payload_bytes_max),
        })
    }
}

/// Why a relay cannot be started as it was described.
#[derive(Debug)]
pub(crate) enum Unfit {
    Name(NameError),
    Because(String),
}

impl From<NameError> for Unfit {
    fn from(error: NameError) -> Self {
        Unfit::Name(error)
    }
}
