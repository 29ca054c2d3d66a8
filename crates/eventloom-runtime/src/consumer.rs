//! What a consumer group wants: topics, handlers, and how failures are treated.

use crate::{
    backoff::Backoff,
    effect::{EffectErased, EffectHandler, EffectTyped},
    handler::{Erased, Handler, Typed},
};
use eventloom_core::{
    Event, Topic,
    ports::{Start, Store},
};
use std::{collections::HashMap, marker::PhantomData, sync::Arc, time::Duration};

/// What happens to a keyed message that keeps failing. Unkeyed messages are always set aside alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Poison {
    /// Its key waits behind it; every other key flows. The default.
    #[default]
    Park,
    /// Only the message is set aside; its key flows on without it.
    Skip,
    /// Its whole lane waits.
    Block,
}

/// What happens to a message on a topic of the consumer whose type has no handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unhandled {
    /// Acknowledged and counted. The default: services add types before all consumers know them.
    #[default]
    Acknowledge,
    /// Dead at once.
    Dead,
}

/// How handlers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// In a transaction with inbox and cursor.
    Transaction,
    /// Without one: a call to the outside under an idempotency key.
    Effect,
}

pub(crate) enum Handlers<S: Store> {
    Transaction(HashMap<&'static str, Arc<dyn Erased<S>>>),
    Effect(HashMap<&'static str, Arc<dyn EffectErased>>),
    None,
}

/// A consumer group: everything that has its name shares its cursors, inbox and held messages.
///
/// ```
/// use eventloom_core::{Topic, ports::Store};
/// use eventloom_runtime::{Consumer, Handler, Poison};
///
/// const ORDERS: Topic = Topic::new("orders");
///
/// fn invoicing<S: Store, M: 'static>(invoice: impl Handler<S, M>) -> Consumer<S> {
///     Consumer::new("invoicing").topic(ORDERS).handle(invoice).attempts(8).on_poison(Poison::Park)
/// }
/// ```
pub struct Consumer<S: Store> {
    pub(crate) name: String,
    pub(crate) topics: Vec<Topic>,
    pub(crate) handlers: Handlers<S>,
    pub(crate) mixed: bool,
    pub(crate) start: Start,
    pub(crate) attempts_max: u32,
    pub(crate) backoff: Backoff,
    pub(crate) poison: Poison,
    pub(crate) unhandled: Unhandled,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lease: Duration,
    pub(crate) in_flight: Option<u32>,
    pub(crate) batch_max: u32,
    pub(crate) inbox: bool,
    pub(crate) inbox_window: Duration,
    pub(crate) held_per_key_max: u32,
    pub(crate) held_max: u32,
}

impl<S: Store> Consumer<S> {
    /// A consumer of this name: 1 to 63 of `a-z 0-9 _ - .`, beginning with a letter; checked at start.
    pub fn new(name: impl Into<String>) -> Self {
        Consumer {
            name: name.into(),
            topics: Vec::new(),
            handlers: Handlers::None,
            mixed: false,
            start: Start::Earliest,
            attempts_max: 8,
            backoff: Backoff::default(),
            poison: Poison::default(),
            unhandled: Unhandled::default(),
            deadline: None,
            lease: Duration::from_secs(10),
            in_flight: None,
            batch_max: 256,
            inbox: true,
            inbox_window: Duration::from_secs(7 * 24 * 3600),
            held_per_key_max: 10_000,
            held_max: 1_000_000,
        }
    }

    /// Adds a topic to follow.
    #[must_use]
    pub fn topic(mut self, topic: Topic) -> Self {
        self.topics.push(topic);
        self
    }

    /// Adds a handler for one event type: an async function, or a struct that implements [`Handle`](crate::Handle).
    /// It runs in a transaction with inbox and cursor.
    #[must_use]
    pub fn handle<M: 'static, H: Handler<S, M>>(mut self, handler: H) -> Self {
        let erased: Arc<dyn Erased<S>> = Arc::new(Typed(handler, PhantomData));
        match &mut self.handlers {
            Handlers::Transaction(handlers) => self.mixed |= handlers.insert(H::Event::TYPE, erased).is_some(),
            Handlers::None => self.handlers = Handlers::Transaction(HashMap::from([(H::Event::TYPE, erased)])),
            Handlers::Effect(_) => self.mixed = true,
        }
        self
    }

    /// Adds a handler that calls the outside: no transaction is open during the call, the message has an idempotency
    /// key for it, and the result is stored afterwards.
    #[must_use]
    pub fn effect<M: 'static, H: EffectHandler<M>>(mut self, handler: H) -> Self {
        let erased: Arc<dyn EffectErased> = Arc::new(EffectTyped(handler, PhantomData));
        match &mut self.handlers {
            Handlers::Effect(handlers) => self.mixed |= handlers.insert(H::Event::TYPE, erased).is_some(),
            Handlers::None => self.handlers = Handlers::Effect(HashMap::from([(H::Event::TYPE, erased)])),
            Handlers::Transaction(_) => self.mixed = true,
        }
        self
    }

    /// Where a new group begins; earliest unless said otherwise. One that exists goes on where it is.
    #[must_use]
    pub fn start_at(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Attempts before a message is dead; 8 unless said otherwise, 1 to 1000.
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

    /// What happens to a keyed message that keeps failing.
    #[must_use]
    pub fn on_poison(mut self, poison: Poison) -> Self {
        self.poison = poison;
        self
    }

    /// What happens to types without a handler.
    #[must_use]
    pub fn on_unhandled(mut self, unhandled: Unhandled) -> Self {
        self.unhandled = unhandled;
        self
    }

    /// How long one handler may run, waits for locks included. Three quarters of the lease unless said otherwise, and
    /// never more than nine tenths of it, in mode transaction; 30 s in mode effect, and 24 h at most.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long a lane stays with an instance that has stopped renewing; 10 s unless said otherwise.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How many transactions (or calls to the outside) run at once. The default adapts to the pool; explicit numbers
    /// of transactions that the pool cannot carry, all consumers of the service together, are refused at start.
    ///
    /// Of calls to the outside four times as many may have been made without their results being stored: so many at most
    /// are made again when the process is killed.
    #[must_use]
    pub fn in_flight(mut self, tasks: u32) -> Self {
        self.in_flight = Some(tasks);
        self
    }

    /// Messages that share one transaction at most; 256 unless said otherwise. 1 turns batches off.
    #[must_use]
    pub fn batch_max(mut self, messages: u32) -> Self {
        self.batch_max = messages;
        self
    }

    /// Turns the inbox off: the cursor alone protects, which moves in the transaction of the effect. A logical id that
    /// was published twice is then handled twice. Not possible in mode effect.
    #[must_use]
    pub fn without_inbox(mut self) -> Self {
        self.inbox = false;
        self
    }

    /// How long the inbox remembers what was handled; 7 days unless said otherwise.
    #[must_use]
    pub fn inbox_window(mut self, window: Duration) -> Self {
        self.inbox_window = window;
        self
    }

    /// Limits of what is held, for one key and for the consumer. Reaching one stops the lane, with an alarm.
    #[must_use]
    pub fn held_limits(mut self, per_key: u32, per_consumer: u32) -> Self {
        self.held_per_key_max = per_key;
        self.held_max = per_consumer;
        self
    }

    pub(crate) fn mode(&self) -> Option<Mode> {
        match self.handlers {
            Handlers::Transaction(_) => Some(Mode::Transaction),
            Handlers::Effect(_) => Some(Mode::Effect),
            Handlers::None => None,
        }
    }
}
