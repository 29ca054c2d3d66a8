//! What a handler is given beside its event.

use crate::span;
use eventloom_core::{
    ConsumerName, Envelope, Event, NewEvent, OffsetDateTime, Payload, PublishError, PublishLimits, Topic, Uuid,
    ports::Store,
};
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

/// What is known of the delivery that is being handled.
#[derive(Debug, Clone)]
pub(crate) struct Delivery<'a> {
    pub(crate) envelope: Cow<'a, Envelope>,
    pub(crate) consumer: Cow<'a, ConsumerName>,
    pub(crate) attempt: u32,
    pub(crate) deadline: Instant,
    pub(crate) limits: Cow<'a, PublishLimits>,
}

impl Delivery<'_> {
    /// An event caused by the one that is being handled.
    pub(crate) fn caused<E: Event>(&self, topic: Topic, event: &E) -> Result<NewEvent, PublishError> {
        let row = NewEvent::of(topic, event)?;
        self.caused_row(row)
    }

    pub(crate) fn caused_row(&self, row: NewEvent) -> Result<NewEvent, PublishError> {
        let correlation = self
            .envelope
            .correlationid
            .clone()
            .unwrap_or_else(|| self.envelope.id.clone());
        let mut row = row.with_correlation(Some(correlation), Some(self.envelope.id.clone()));
        if row.traceparent().is_none()
            && let Some((traceparent, tracestate)) = span::current_context().or_else(|| self.created_in())
        {
            row = row.with_trace(traceparent, tracestate);
        }
        self.limits.check(&row)?;
        Ok(row)
    }

    /// Where nobody traces the handler, the chain goes on from what it handles.
    fn created_in(&self) -> Option<(String, Option<String>)> {
        let traceparent = self.envelope.traceparent.clone()?;
        Some((traceparent, self.envelope.tracestate.clone()))
    }

    pub(crate) fn for_test() -> Delivery<'static> {
        let id = Uuid::now_v7().to_string();
        Delivery::for_test_with(Envelope::new(id, "test", "test", OffsetDateTime::now_utc()))
    }

    pub(crate) fn for_test_with(envelope: Envelope) -> Delivery<'static> {
        Delivery {
            envelope: Cow::Owned(envelope),
            consumer: Cow::Owned(ConsumerName::parse("test").unwrap_or_else(|_| unreachable!("a legal name"))),
            attempt: 1,
            deadline: Instant::now() + Duration::from_secs(30),
            limits: Cow::Owned(PublishLimits::default()),
        }
    }
}

/// What a handler publishes: the engine's own list, or, in a unit test, the context's.
pub(crate) enum Buffer<'a> {
    Engine(&'a mut Vec<NewEvent>),
    Own(Vec<NewEvent>),
}

impl Buffer<'_> {
    /// Returns the row's logical id.
    pub(crate) fn push(&mut self, row: NewEvent) -> Uuid {
        let id = row.id();
        match self {
            Buffer::Engine(rows) => rows.push(row),
            Buffer::Own(rows) => rows.push(row),
        }
        id
    }

    pub(crate) fn events<E: Event>(&self, topic: &Topic) -> Result<Vec<E>, serde_json::Error> {
        let rows = self.read().iter();
        rows.filter(|row| row.topic() == topic && row.event_type() == E::TYPE)
            .map(|row| serde_json::from_slice(row.payload().map_or(&b"null"[..], Payload::bytes)))
            .collect()
    }

    pub(crate) fn read(&self) -> &[NewEvent] {
        match self {
            Buffer::Engine(rows) => rows,
            Buffer::Own(rows) => rows,
        }
    }
}

/// What a handler is given beside its event: the transaction's connection, the envelope, and a buffer of events to publish.
///
/// Effects through [`Context::connection`], the inbox entry, the handler's result and what it publishes are committed
/// together, or not at all. A handler may run more than once before its commit: calls to the outside belong into a
/// handler of mode effect ([`Consumer::effect`](crate::Consumer::effect)).
///
/// A handler is an ordinary function, so its test calls it:
///
/// ```
/// use eventloom_core::{NewEvent, PublishError, Topic, ports::Store};
/// use eventloom_runtime::Context;
///
/// async fn invoice<S: Store>(order: String, cx: &mut Context<'_, S>) -> Result<(), PublishError> {
///     let invoiced = NewEvent::untyped(Topic::new("invoices"), "order.invoiced").with_key(order);
///     cx.publish_row(invoiced).await?;
///     Ok(())
/// }
///
/// async fn test_of_invoice<S: Store>(connection: &mut S::Connection) -> Result<(), PublishError> {
///     let mut cx = Context::<S>::for_test(connection);
///     invoice("order-17".to_owned(), &mut cx).await?;
///     assert_eq!(cx.published_rows()[0].event_type(), "order.invoiced");
///     Ok(())
/// }
/// ```
pub struct Context<'a, S: Store> {
    connection: &'a mut S::Connection,
    delivery: Delivery<'a>,
    outgoing: Buffer<'a>,
}

impl<'a, S: Store> Context<'a, S> {
    pub(crate) fn new(
        connection: &'a mut S::Connection,
        delivery: Delivery<'a>,
        outgoing: &'a mut Vec<NewEvent>,
    ) -> Self {
        Context {
            connection,
            delivery,
            outgoing: Buffer::Engine(outgoing),
        }
    }

    /// A context for a unit test of a handler, on a connection (usually in a transaction that is rolled back).
    pub fn for_test(connection: &'a mut S::Connection) -> Self {
        Context::of_test(connection, Delivery::for_test())
    }

    /// As [`Context::for_test`], with an envelope of the test's own.
    pub fn for_test_with(connection: &'a mut S::Connection, envelope: Envelope) -> Self {
        Context::of_test(connection, Delivery::for_test_with(envelope))
    }

    /// As if this were another attempt; 1 in a unit test unless said otherwise.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.delivery.attempt = attempt;
        self
    }

    /// With another deadline; 30 s away in a unit test unless said otherwise.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.delivery.deadline = deadline;
        self
    }

    /// As if another consumer handled it; `test` in a unit test unless said otherwise.
    #[must_use]
    pub fn with_consumer(mut self, consumer: ConsumerName) -> Self {
        self.delivery.consumer = Cow::Owned(consumer);
        self
    }

    fn of_test(connection: &'a mut S::Connection, delivery: Delivery<'a>) -> Self {
        Context {
            connection,
            delivery,
            outgoing: Buffer::Own(Vec::new()),
        }
    }

    /// The connection of the transaction in which the message is handled. Do not commit or roll back on it.
    pub fn connection(&mut self) -> &mut S::Connection {
        self.connection
    }

    /// The event with its attributes.
    pub fn envelope(&self) -> &Envelope {
        &self.delivery.envelope
    }

    /// The consumer that handles it.
    pub fn consumer(&self) -> &ConsumerName {
        &self.delivery.consumer
    }

    /// Which attempt this is, from 1. Runs of a batch that was rolled back for another message's sake are not counted.
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// When the attempt is given up.
    pub fn deadline(&self) -> Instant {
        self.delivery.deadline
    }

    /// Publishes an event in the transaction of this handler: it exists if and when the effect does.
    ///
    /// Correlation and causation are set from the message that is being handled, and it carries the trace context of the handler, or
    /// without the feature `otel` that of the message.
    /// The row is written directly before the commit, in the order of the calls. Returns its logical id.
    ///
    /// # Errors
    /// The event does not encode or is over a limit: nothing was buffered, and the handler may go on.
    pub async fn publish<E: Event>(&mut self, topic: Topic, event: &E) -> Result<Uuid, PublishError> {
        Ok(self.outgoing.push(self.delivery.caused(topic, event)?))
    }

    /// As [`Context::publish`], for a row without a Rust type behind it.
    pub async fn publish_row(&mut self, row: NewEvent) -> Result<Uuid, PublishError> {
        Ok(self.outgoing.push(self.delivery.caused_row(row)?))
    }

    /// Events of a type that have been published to a topic so far, in order.
    ///
    /// # Errors
    /// One of them does not decode: its type serialises to something that it does not deserialise from.
    pub fn published<E: Event>(&self, topic: Topic) -> Result<Vec<E>, serde_json::Error> {
        self.outgoing.events(&topic)
    }

    /// What has been published so far, raw.
    pub fn published_rows(&self) -> &[NewEvent] {
        self.outgoing.read()
    }
}
