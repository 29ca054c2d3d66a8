//! What the tasks of one relay in one process share: its broker, what is known of it, and open producers.

use super::{
    breaker::Breaker,
    outlet::{AnyProducer, Outlet},
};
use eventloom_core::{
    Clock, Epoch, Lane, Position, Uuid,
    ports::{Capabilities, LaneSent, Move, Outgoing},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Doubts that are remembered; those of lanes that were lost are never settled here.
const DOUBTS_MAX: usize = 20_000;

/// A producer of a broker that was found to remember what we do.
pub(super) struct Verified {
    pub(super) producer: Box<dyn AnyProducer>,
    /// Of which log it sends.
    pub(super) log: Uuid,
    pub(super) generation: u64,
}

#[derive(Default)]
struct Idle {
    producers: Vec<Verified>,
    generation: u64,
}

#[derive(Default)]
struct Known {
    log: Option<Uuid>,
    lanes: HashMap<Lane, (Epoch, Position)>,
}

impl Known {
    fn raise(&mut self, lane: Lane, epoch: Epoch, confirmed: Position) {
        let known = self.lanes.entry(lane).or_insert((epoch, confirmed));
        *known = (*known).max((epoch, confirmed));
    }
}

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
    idle: Mutex<Idle>,
    /// How far the broker had confirmed each lane when it was compared, and what it has confirmed since.
    known: Mutex<Known>,
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
            known: Mutex::default(),
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

    /// A producer that may be used, or which generation one belongs to that is opened now.
    pub(super) fn producer(&self) -> Result<Verified, u64> {
        let mut idle = self.idle();
        idle.producers.pop().ok_or(idle.generation)
    }

    /// The producer has nothing in doubt, and may be used again unless something was distrusted meanwhile.
    pub(super) fn give_back(&self, producer: Verified) {
        let mut idle = self.idle();
        if producer.generation == idle.generation {
            idle.producers.push(producer);
        }
    }

    /// Broker or source may have gone back, or lanes have come of which nothing was compared: before anything else is sent,
    /// what they remember is compared again.
    pub(crate) fn distrust(&self) {
        let mut idle = self.idle();
        idle.generation += 1;
        idle.producers.clear();
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was compared.
    pub(super) fn compared(&self, log: Uuid, lanes: &[LaneSent]) {
        let mut known = self.known();
        if known.log != Some(log) {
            *known = Known {
                log: Some(log),
                lanes: HashMap::new(),
            };
        }
        for sent in lanes {
            if let Some(confirmed) = sent.confirmed {
                known.raise(sent.lane, sent.epoch, confirmed);
            }
        }
    }

    /// The source has recorded what the broker has confirmed.
    pub(super) fn recorded(&self, moves: &[Move]) {
        let mut known = self.known();
        for step in moves {
            if let Some(confirmed) = step.confirmed {
                known.raise(step.cursor.lane, step.cursor.epoch, confirmed);
            }
        }
    }

    /// Says with each message how far the broker had confirmed its lane, where that is known of its owner.
    pub(super) fn tell_confirmed(&self, log: Uuid, batch: &mut [Outgoing]) {
        let known = self.known();
        if known.log != Some(log) {
            return;
        }
        for outgoing in batch {
            let of_lane = known.lanes.get(&outgoing.message.lane);
            let of_owner = of_lane.filter(|(epoch, _)| *epoch == outgoing.epoch);
            outgoing.confirmed = of_owner.map(|(_, confirmed)| *confirmed);
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
