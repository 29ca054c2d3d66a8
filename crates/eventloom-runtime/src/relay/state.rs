//! What the tasks of one relay in one process share: its broker, what is known of it, and open producers.

use super::{
    breaker::Breaker,
    outlet::{AnyProducer, Outlet},
};
use eventloom_core::{Clock, Position, ports::Capabilities};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Doubts that are remembered; those of lanes that were lost are never settled here.
const DOUBTS_MAX: usize = 20_000;

/// A relay in one process.
pub(crate) struct State {
    pub(super) outlet: Arc<dyn Outlet>,
    clock: Arc<dyn Clock>,
    pub(super) capabilities: Capabilities,
    broker: Mutex<Breaker>,
    /// Topics that take nothing at the moment.
    topics: Mutex<HashMap<String, Breaker>>,
    /// When it last confirmed anything. Compared with doubts for which was first, so it is real: a virtual clock stands still.
    confirmed: Mutex<Option<Instant>>,
    /// Since when the fate of messages is unknown, by their positions.
    doubts: Mutex<HashMap<Position, Instant>>,
    /// Producers that nobody uses.
    idle: Mutex<Vec<Box<dyn AnyProducer>>>,
    /// Why nothing may be sent until somebody has looked.
    alarm: watch::Sender<Option<String>>,
}

impl State {
    pub(crate) fn new(outlet: Arc<dyn Outlet>, clock: Arc<dyn Clock>) -> Self {
        State {
            capabilities: outlet.capabilities(),
            outlet,
            clock,
            broker: Mutex::default(),
            topics: Mutex::default(),
            confirmed: Mutex::default(),
            doubts: Mutex::default(),
            idle: Mutex::default(),
            alarm: watch::Sender::new(None),
        }
    }

    /// Where the broker is, for people.
    pub(crate) fn place(&self) -> String {
        self.outlet.place()
    }

    /// How long until the broker may be asked again; `None` when it takes messages.
    pub(crate) fn probe_in(&self) -> Option<Duration> {
        self.broker().probe_in(self.now())
    }

    /// The engine's time, for breakers.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn broker(&self) -> MutexGuard<'_, Breaker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn topics(&self) -> MutexGuard<'_, HashMap<String, Breaker>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Topics that take nothing at the moment.
    pub(crate) fn blocked(&self) -> usize {
        self.topics().len()
    }

    /// The broker has confirmed something just now.
    pub(super) fn note_confirmed(&self) {
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The fate of a message is unknown. Returns whether the broker has confirmed others since it first was: then it is
    /// not the broker that is to blame.
    pub(super) fn doubt(&self, position: Position) -> bool {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        if doubts.len() >= DOUBTS_MAX {
            doubts.clear();
        }
        let since = *doubts.entry(position).or_insert_with(Instant::now);
        confirmed.is_some_and(|at| at > since)
    }

    /// The fate of messages is known.
    pub(super) fn settled(&self, positions: impl Iterator<Item = Position>) {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        if !doubts.is_empty() {
            for position in positions {
                doubts.remove(&position);
            }
        }
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn AnyProducer>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alarm(&self) -> Option<String> {
        self.alarm.borrow().clone()
    }

    /// Completes when there is an alarm.
    pub(crate) async fn alarmed(&self) -> String {
        let mut alarm = self.alarm.subscribe();
        loop {
            if let Some(why) = alarm.borrow_and_update().clone() {
                return why;
            }
            if alarm.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub(super) fn raise_alarm(&self, why: String) {
        self.alarm.send_replace(Some(why));
    }
}
