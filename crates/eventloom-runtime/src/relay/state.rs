//! What the tasks of one relay in one process share: its broker, what is known of it, and open producers.

use super::{
    breaker::Breaker,
    outlet::{AnyProducer, Outlet},
};
use eventloom_core::ports::Capabilities;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// A relay in one process.
pub(crate) struct State {
    pub(super) outlet: Arc<dyn Outlet>,
    pub(super) capabilities: Capabilities,
    broker: Mutex<Breaker>,
    /// Topics that take nothing at the moment.
    topics: Mutex<HashMap<String, Breaker>>,
    /// When it last confirmed anything.
    confirmed: Mutex<Option<Instant>>,
    /// Producers that nobody uses.
    idle: Mutex<Vec<Box<dyn AnyProducer>>>,
    /// Why nothing may be sent until somebody has looked.
    alarm: watch::Sender<Option<String>>,
}

impl State {
    pub(crate) fn new(outlet: Arc<dyn Outlet>) -> Self {
        State {
            capabilities: outlet.capabilities(),
            outlet,
            broker: Mutex::default(),
            topics: Mutex::default(),
            confirmed: Mutex::default(),
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
        self.broker().probe_in()
    }

    pub(super) fn broker(&self) -> MutexGuard<'_, Breaker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn topics(&self) -> MutexGuard<'_, HashMap<String, Breaker>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The broker has confirmed something just now.
    pub(super) fn note_confirmed(&self) {
        *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether the broker has confirmed anything since.
    pub(super) fn confirmed_since(&self, since: Instant) -> bool {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.is_some_and(|at| at > since)
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
