//! Brokers that a relay sends to: shaped for Kafka, RabbitMQ, JetStream, SQS, Redis Streams, Pulsar, and for a database as
//! the broker of others.
//!
//! Submission is apart from confirmation: handing a batch over gives a ticket, which resolves to the fate of each message.

use crate::{
    envelope::{Envelope, Recorded},
    error::{Classify, RetryClass},
    name::ConsumerName,
    place::{Epoch, Lane, Position},
};
use std::{collections::BTreeMap, future::Future, sync::Arc};
use uuid::Uuid;

/// Whose messages they are: a log, and the relay that follows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// The log's identity. Messages carry it as their origin.
    pub log: Uuid,
    /// The relay's name.
    pub reader: ConsumerName,
}

/// A message as it is handed to a broker.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The message, and where it stands in the log that it comes from.
    pub message: Arc<Recorded>,
    /// Under which epoch the relay owns its lane: a broker that keeps marks refuses what a former owner sends.
    pub epoch: Epoch,
    /// How often somebody has sent it again by hand.
    pub redrives: u32,
    /// How far the broker had confirmed its lane before, as the source knows. A broker that keeps marks and has less of the
    /// lane has lost messages, and takes none ([`Fate::Lost`]).
    pub confirmed: Option<Position>,
}

impl Outgoing {
    /// What the broker dedups on: the same over resends by whatever instance, another one after a redrive, or the broker
    /// would swallow what an operator asks for. At most 68 characters of `0-9 a-f - .`.
    pub fn delivery_id(&self, source: &Source) -> String {
        let (log, position) = (source.log.simple(), self.message.position);
        match self.redrives {
            0 => format!("{log}-{position}"),
            redrives => format!("{log}-{position}.{redrives}"),
        }
    }

    /// What must stay in order; an empty key asks for none.
    pub fn key(&self) -> Option<&str> {
        self.message.envelope.key.as_deref().filter(|key| !key.is_empty())
    }
}

/// What became of a submitted message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The broker has it, durably.
    Confirmed,
    /// Refused for its own sake: too large, malformed. Dead at once.
    Refused(String),
    /// Refused for its topic's sake: unknown, unauthorised, full. The topic waits, and no attempt is used up.
    Blocked(String),
    /// It may have arrived: sent again under the same delivery id, before anything else of its key.
    Unknown(String),
    /// Not accepted, because an earlier message of its key was not ([`Capabilities::pipelines`]).
    Behind,
    /// Not accepted, because a later owner of its lane has sent already: this one's work is to be dropped.
    Fenced,
    /// Not accepted, because the broker has less of its lane than it had confirmed: it has gone back
    /// ([`Outgoing::confirmed`]).
    Lost,
}

/// What a broker keeps in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// Partitions.
    Partition,
    /// Keys, without partitions.
    Key,
    /// Nothing.
    None,
}

/// What a broker can do. A claim without its conformance test is a defect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// What it keeps in order.
    pub ordering: Ordering,
    /// Several messages of a key may be in one batch: when one is not accepted, none of its key behind it is. Without it a
    /// relay hands over one message of a key at a time.
    pub pipelines: bool,
    /// It keeps [`Marks`], so that a source or a broker that was restored from a backup is found out.
    pub marks: bool,
    /// Largest payload, in bytes, headers included where the broker counts them. Rows above it are not even fetched.
    pub payload_bytes_max: u64,
}

impl Capabilities {
    /// What a broker can do that keeps keys in order and has no other talents.
    pub fn new(payload_bytes_max: u64) -> Self {
        Capabilities {
            ordering: Ordering::Key,
            pipelines: false,
            marks: false,
            payload_bytes_max,
        }
    }

    /// Sets what is kept in order.
    #[must_use]
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = ordering;
        self
    }

    /// Sets whether several messages of a key may be in one batch.
    #[must_use]
    pub fn pipelines(mut self, pipelines: bool) -> Self {
        self.pipelines = pipelines;
        self
    }

    /// Sets whether marks are kept.
    #[must_use]
    pub fn marks(mut self, marks: bool) -> Self {
        self.marks = marks;
        self
    }
}

/// A broker failed as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// No connection, or none that answers.
    #[error("the broker is unreachable: {0}")]
    Unreachable(String),
    /// It refuses this client or this request.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// The connection was lost; what was in flight may have arrived.
    #[error("the connection to the broker was lost: {0}")]
    Lost(String),
}

impl Classify for BrokerError {
    fn retry_class(&self) -> RetryClass {
        match self {
            BrokerError::Refused(_) => RetryClass::Permanent,
            BrokerError::Unreachable(_) | BrokerError::Lost(_) => RetryClass::Transient,
        }
    }
}

/// What a broker remembers of a source, lane by lane. Compared when a relay begins: a broker that remembers less than it
/// has confirmed was restored from a backup, and a source that knows less than the broker was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// The broker's identity. That of the source itself: they are the same database, and nothing needs to be relayed.
    pub broker: Uuid,
    /// The lanes of which it has something.
    pub lanes: Vec<Mark>,
}

/// The furthest that a broker has of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The lane of the source.
    pub lane: Lane,
    /// The latest epoch that has sent.
    pub epoch: Epoch,
    /// The highest position that arrived.
    pub position: Position,
    /// Logical id of the message there.
    pub id: String,
}

impl Mark {
    /// How far the lanes of these messages had been confirmed before.
    pub fn confirmed(messages: &[Outgoing]) -> BTreeMap<Lane, Position> {
        let mut lanes = BTreeMap::new();
        for message in messages {
            let confirmed: &mut Position = lanes.entry(message.message.lane).or_default();
            *confirmed = (*confirmed).max(message.confirmed.unwrap_or_default());
        }
        lanes
    }

    /// What messages raise marks to: of each lane the latest epoch and the furthest message; in the order of lanes.
    pub fn of(messages: &[Outgoing]) -> Vec<Mark> {
        let mut furthest: BTreeMap<Lane, (Epoch, &Recorded)> = BTreeMap::new();
        for Outgoing { message, epoch, .. } in messages {
            let (latest, last) = furthest.entry(message.lane).or_insert((*epoch, message));
            *latest = (*latest).max(*epoch);
            if message.position > last.position {
                *last = message;
            }
        }
        let mark = |(lane, (epoch, last)): (_, (_, &Recorded))| Mark {
            lane,
            epoch,
            position: last.position,
            id: last.envelope.id.clone(),
        };
        furthest.into_iter().map(mark).collect()
    }
}

/// A broker that can be sent to.
pub trait Broker: Send + Sync + 'static {
    /// Sends.
    type Producer: Producer;

    /// Where it is, for people. Never a password.
    fn place(&self) -> String;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether a message could ever be accepted; the reason when it could not. Pure, and asked before it is submitted.
    ///
    /// # Errors
    /// What is wrong, with value and limit.
    fn check(&self, message: &Envelope) -> Result<(), String>;

    /// Opens the sending side. Several may be open at once; they send different lanes.
    ///
    /// # Errors
    /// Nothing was opened.
    fn producer(&self, source: &Source) -> impl Future<Output = Result<Self::Producer, BrokerError>> + Send;
}

/// The sending side.
pub trait Producer: Send + 'static {
    /// Resolves to the fate of each message, in the order of the batch.
    type Ticket: Future<Output = Vec<Fate>> + Send + 'static;

    /// What the broker remembers of the source; `None` where it keeps no marks.
    ///
    /// # Errors
    /// It is not known.
    fn marks(&mut self) -> impl Future<Output = Result<Option<Marks>, BrokerError>> + Send;

    /// Hands a batch over, in order. `&mut`, because handing over has an order: messages of one key arrive as they were
    /// submitted.
    ///
    /// # Errors
    /// Nothing of the batch was handed over.
    ///
    /// # Cancel safety
    /// What was handed over when the future, or the ticket, is dropped may arrive.
    fn submit(&mut self, batch: Vec<Outgoing>) -> impl Future<Output = Result<Self::Ticket, BrokerError>> + Send;
}
