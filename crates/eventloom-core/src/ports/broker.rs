//! Brokers: shaped for Kafka, RabbitMQ, JetStream, SQS, Redis Streams and Pulsar.
//!
//! Submission is apart from confirmation (a ticket), and a receiver is apart from its settler, so that heartbeats run
//! during a long poll.

use crate::{
    error::{Classify, RetryClass},
    name::{ConsumerName, Topic},
};
use std::{
    future::Future,
    time::{Duration, Instant},
};

/// A message as it is handed to a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// What the broker dedups on, stable over resends.
    pub delivery_id: String,
    /// Where it goes.
    pub topic: Topic,
    /// What must stay in order.
    pub key: Option<String>,
    /// Attributes and headers, names as the protocol binding spells them.
    pub headers: Vec<(String, String)>,
    /// Payload, untouched.
    pub body: Vec<u8>,
}

/// What became of a submitted message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The broker has it, durably.
    Confirmed,
    /// Refused for its own sake: too large, malformed. Dead at once.
    Refused(String),
    /// Refused for the topic's or the connection's sake: unknown topic, unauthorised, outage. Burns no attempt.
    Blocked(String),
    /// It may have arrived: sent again under the same delivery id.
    Unknown(String),
}

/// How a broker is told that messages are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// "Everything up to here", for each partition.
    Prefix,
    /// Each message by itself.
    Each,
}

/// What a broker keeps in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
pub struct Capabilities {
    /// How it is settled.
    pub settlement: Settlement,
    /// What it keeps in order.
    pub ordering: Ordering,
    /// Whether the time for a running handler can be extended.
    pub extends: bool,
    /// Largest payload, in bytes, headers included where the broker counts them.
    pub payload_bytes_max: usize,
    /// The longest time after which it may deliver a message again; `None`: unbounded.
    pub redelivery_max: Option<Duration>,
}

/// A broker failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// No connection.
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

/// A part of a topic that keeps its order, as the broker names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition(pub String);

/// A place in a partition, as the broker counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub i64);

/// A broker.
pub trait Broker: Send + Sync + 'static {
    /// Sends.
    type Producer: Producer;
    /// Receives.
    type Receiver: Receiver<Token = <Self::Settler as Settler>::Token>;
    /// Settles what was received.
    type Settler: Settler;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether a message could ever be accepted. Pure: publishing asks it too.
    fn check(&self, message: &Outgoing) -> Result<(), String>;

    /// Opens the sending side.
    fn producer(&self) -> impl Future<Output = Result<Self::Producer, BrokerError>> + Send;

    /// Joins a group.
    fn subscribe(
        &self,
        group: &ConsumerName,
        topics: &[Topic],
        prefetch: u32,
    ) -> impl Future<Output = Result<(Self::Receiver, Self::Settler), BrokerError>> + Send;
}

/// The sending side.
pub trait Producer: Send {
    /// Resolves to the fate of each message, in the order of the batch. Several may be in flight.
    type Ticket: Future<Output = Vec<Fate>> + Send + 'static;

    /// Hands a batch over. `&mut`, because handing over has an order: messages of one key arrive as they were submitted.
    ///
    /// # Errors
    /// Nothing of the batch was handed over.
    fn submit(&mut self, batch: Vec<Outgoing>) -> impl Future<Output = Result<Self::Ticket, BrokerError>> + Send;
}

/// A received message.
#[derive(Debug)]
pub struct Delivery<T> {
    /// Settles it.
    pub token: T,
    /// Its partition, where there are any.
    pub partition: Option<(Partition, Offset)>,
    /// How often it was delivered before, where the broker says so.
    pub redelivered: Option<u32>,
    /// When the broker hands it to somebody else unless extended.
    pub expires: Option<Instant>,
    /// The message, raw.
    pub message: Outgoing,
}

/// What a receiver reports.
#[derive(Debug)]
pub enum Incoming<T, R> {
    /// Messages.
    Messages(Vec<Delivery<T>>),
    /// Partitions are ours now; answered with the positions that we keep.
    Assigned(Vec<Partition>, R),
    /// Partitions are going; answered when their work is drained, at the latest within the time given.
    Revoked(Vec<Partition>, Duration, R),
    /// Partitions are gone: no settlement may follow.
    Lost(Vec<Partition>),
}

/// The receiving side.
pub trait Receiver: Send {
    /// Settles a message.
    type Token: Send;
    /// Answers an assignment or a revocation.
    type Reply: Send;

    /// The next report.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    fn next(&mut self) -> impl Future<Output = Result<Incoming<Self::Token, Self::Reply>, BrokerError>> + Send;
}

/// Settles, from another task than the one that receives.
pub trait Settler: Clone + Send + Sync + 'static {
    /// Settles a message.
    type Token: Send;

    /// Everything of a partition up to and with `offset` is done.
    fn through(&self, partition: &Partition, offset: Offset) -> impl Future<Output = Result<(), BrokerError>> + Send;

    /// Each of these is done.
    fn each(&self, tokens: Vec<Self::Token>) -> impl Future<Output = Vec<Result<(), BrokerError>>> + Send;

    /// These need more time; returns until when each has it.
    fn extend(&self, tokens: &[&Self::Token]) -> impl Future<Output = Vec<Result<Instant, BrokerError>>> + Send;

    /// Hands messages back: at shutdown, or while the store is down.
    fn give_back(
        &self,
        tokens: Vec<Self::Token>,
        after: Duration,
    ) -> impl Future<Output = Result<(), BrokerError>> + Send;
}
