//! Handlers of mode effect: they call the outside, so no transaction waits for them.

use crate::{
    context::{Buffer, Delivery},
    failure::Failed,
    handler::{Flat, Function, Struct, decode},
};
use eventloom_core::{
    BoxFuture, Classify, ConsumerName, Envelope, Event, NewEvent, Payload, PublishError, Topic, Uuid,
};
use serde::Serialize;
use std::{borrow::Cow, future::Future, marker::PhantomData, time::Instant};

/// What a handler of mode effect is given beside its event.
///
/// There is no connection in it: nothing is open while the outside is called. The call must carry
/// [`EffectContext::idempotency_key`], since after a crash it is made again under the same key.
pub struct EffectContext<'a> {
    delivery: Delivery<'a>,
    key: String,
    again: bool,
    outgoing: Buffer<'a>,
}

impl<'a> EffectContext<'a> {
    pub(crate) fn new(delivery: Delivery<'a>, again: bool, outgoing: Buffer<'a>) -> Self {
        let key = format!("{}/{}", delivery.consumer, delivery.envelope.id);
        EffectContext {
            delivery,
            key,
            again,
            outgoing,
        }
    }

    /// A context for a unit test of a handler.
    pub fn for_test() -> EffectContext<'static> {
        EffectContext::new(Delivery::for_test(), false, Buffer::Own(Vec::new()))
    }

    /// As [`EffectContext::for_test`], with an envelope of the test's own.
    pub fn for_test_with(envelope: Envelope) -> EffectContext<'static> {
        EffectContext::new(Delivery::for_test_with(envelope), false, Buffer::Own(Vec::new()))
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

    /// As if another consumer handled it; `test` in a unit test unless said otherwise. The idempotency key follows.
    #[must_use]
    pub fn with_consumer(self, consumer: ConsumerName) -> Self {
        let mut delivery = self.delivery;
        delivery.consumer = Cow::Owned(consumer);
        EffectContext::new(delivery, self.again, self.outgoing)
    }

    /// As if a process had ended during a call under this key.
    #[must_use]
    pub fn after_a_crash(mut self) -> Self {
        self.again = true;
        self
    }

    /// Stable over attempts, restarts and instances: `consumer/logical id`.
    pub fn idempotency_key(&self) -> &str {
        &self.key
    }

    /// Whether a call under this key may have been made before.
    pub fn may_repeat(&self) -> bool {
        self.again || self.delivery.attempt > 1
    }

    /// The event with its attributes.
    pub fn envelope(&self) -> &Envelope {
        &self.delivery.envelope
    }

    /// The consumer that handles it.
    pub fn consumer(&self) -> &ConsumerName {
        &self.delivery.consumer
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// When the attempt is given up.
    pub fn deadline(&self) -> Instant {
        self.delivery.deadline
    }

    /// Publishes an event in the transaction that stores the result of this call. Returns its logical id.
    ///
    /// Correlation and causation are set from the message that is being handled, and it carries the trace context of the handler, or
    /// without the feature `otel` that of the message.
    ///
    /// # Errors
    /// The event does not encode or is over a limit: nothing was buffered.
    pub async fn publish<E: Event>(&mut self, topic: Topic, event: &E) -> Result<Uuid, PublishError> {
        Ok(self.outgoing.push(self.delivery.caused(topic, event)?))
    }

    /// As [`EffectContext::publish`], for a row without a Rust type behind it.
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

/// `async fn(E, &mut EffectContext<'_>) -> Result<R, X>` as a trait.
pub trait EffectFn<'a, E>: Send + Sync {
    /// What it returns; stored with the inbox entry.
    type Output: Serialize + Send;
    /// How it fails.
    type Error: Classify;
    /// Its future.
    type Future: Future<Output = Result<Self::Output, Self::Error>> + Send + 'a;
    /// Calls it.
    fn call(&self, event: E, cx: &'a mut EffectContext<'a>) -> Self::Future;
}

impl<'a, E, F, Fut, R, X> EffectFn<'a, E> for F
where
    F: Fn(E, &'a mut EffectContext<'a>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, X>> + Send + 'a,
    R: Serialize + Send,
    X: Classify,
{
    type Output = R;
    type Error = X;
    type Future = Fut;
    fn call(&self, event: E, cx: &'a mut EffectContext<'a>) -> Fut {
        self(event, cx)
    }
}

/// A handler of mode effect with dependencies: a struct that implements this.
///
/// # Contract
/// Made at least once; a repetition carries the same idempotency key, on which the receiver dedups.
///
/// # Cancel safety
/// The future is dropped at its deadline; the call may have happened.
pub trait EffectHandle: Send + Sync + 'static {
    /// What it handles.
    type Event: Event;
    /// What it returns; stored with the inbox entry.
    type Output: Serialize + Send;
    /// How it fails.
    type Error: Classify;
    /// Makes the call.
    fn handle(
        &self,
        event: Self::Event,
        cx: &mut EffectContext<'_>,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;
}

/// What [`Consumer::effect`](crate::Consumer::effect) takes: a plain async function, or a struct that implements
/// [`EffectHandle`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of mode effect",
    label = "such a handler is `async fn(event: E, cx: &mut EffectContext<'_>) -> Result<R, X>` with `E: Event`, `R: Serialize`, `X: Classify` and a future that is `Send`",
    note = "a handler with dependencies is a struct that implements `EffectHandle`"
)]
pub trait EffectHandler<M>: Send + Sync + 'static {
    /// What it handles.
    type Event: Event;
    #[doc(hidden)]
    fn run<'a>(&'a self, event: Self::Event, cx: &'a mut EffectContext<'a>) -> BoxFuture<'a, Result<String, Flat>>;
}

impl<E: Event, F> EffectHandler<Function<E>> for F
where
    F: for<'a> EffectFn<'a, E> + 'static,
{
    type Event = E;
    fn run<'a>(&'a self, event: E, cx: &'a mut EffectContext<'a>) -> BoxFuture<'a, Result<String, Flat>> {
        let future = self.call(event, cx);
        Box::pin(async move { flatten(future.await) })
    }
}

impl<H: EffectHandle> EffectHandler<Struct> for H {
    type Event = H::Event;
    fn run<'a>(&'a self, event: H::Event, cx: &'a mut EffectContext<'a>) -> BoxFuture<'a, Result<String, Flat>> {
        Box::pin(async move { flatten(self.handle(event, cx).await) })
    }
}

fn flatten<R: Serialize, X: Classify>(result: Result<R, X>) -> Result<String, Flat> {
    match result {
        Ok(value) => serde_json::to_string(&value).map_err(|error| {
            Flat(Failed::permanent(format!(
                "the result does not encode as JSON: {error}"
            )))
        }),
        Err(error) => Err(Flat(Failed::of(&error, error.retry_class(), None))),
    }
}

/// What a call came to: its result, and what it published.
pub(crate) type Called = Result<(String, Vec<NewEvent>), Failed>;

/// A handler behind its event type, which decodes for it.
pub(crate) trait EffectErased: Send + Sync {
    fn run<'a>(&'a self, payload: Option<&'a Payload>, delivery: Delivery<'a>, again: bool) -> BoxFuture<'a, Called>;
}

pub(crate) struct EffectTyped<H, M>(pub(crate) H, pub(crate) PhantomData<fn(M)>);

impl<M: 'static, H: EffectHandler<M>> EffectErased for EffectTyped<H, M> {
    fn run<'a>(&'a self, payload: Option<&'a Payload>, delivery: Delivery<'a>, again: bool) -> BoxFuture<'a, Called> {
        Box::pin(async move {
            let event = decode::<H::Event>(payload)?;
            let mut outgoing = Vec::new();
            // The context is borrowed for its whole life: what it buffers is owned out here.
            let result = {
                let mut cx = EffectContext::new(delivery, again, Buffer::Engine(&mut outgoing));
                self.0.run(event, &mut cx).await
            };
            result.map(|result| (result, outgoing)).map_err(|Flat(failed)| failed)
        })
    }
}
