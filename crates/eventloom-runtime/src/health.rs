//! What can be asked of a running service.

use crate::{group::Group, relay::State};
use eventloom_core::ports::Backend;
use std::{
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

/// A service, at a moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// The store answers.
    pub store_reachable: bool,
    /// The store answers, every consumer holds a live lease, and no task is dead: it may be given traffic.
    pub ready: bool,
    /// Tasks of the engine that are dead although the service runs. A panic starts a task anew, so this is none unless the
    /// runtime itself was shut down or the engine has a fault: then restart the process.
    pub tasks_ended: usize,
    /// Its consumers.
    pub consumers: Vec<ConsumerHealth>,
}

/// One consumer of a service, at a moment. Counts are since the start of the process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerHealth {
    /// Name.
    pub name: String,
    /// Lanes owned by this instance.
    pub lanes: usize,
    /// Live instances of the consumer.
    pub instances: usize,
    /// How long the lease is still good.
    pub lease_left: Duration,
    /// Paused by an operator.
    pub paused: bool,
    /// Most keys fail, or the broker takes nothing: only probes run.
    pub outage: bool,
    /// Messages that share a transaction at the moment.
    pub batch_size: usize,
    /// Messages handled, or confirmed by the broker.
    pub handled: u64,
    /// Second deliveries that had no second effect.
    pub duplicates: u64,
    /// Messages of types without a handler.
    pub unhandled: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Messages set aside to be tried again, or behind their key.
    pub held: u64,
    /// Messages that became dead letters.
    pub dead: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Lanes taken.
    pub taken: u64,
    /// Work dropped because the lane was somebody else's, or because it was not known what was committed.
    pub fenced: u64,
    /// Messages run singly because a former owner may have died of them.
    pub suspects: u64,
    /// Transactions that lost against another one.
    pub conflicts: u64,
    /// Of a relay: where its broker is.
    pub broker: Option<String>,
    /// Of a relay: why nothing is sent until somebody has looked.
    pub alarm: Option<String>,
    /// The last trouble and how long ago it was.
    pub trouble: Option<(Duration, String)>,
}

impl ConsumerHealth {
    pub(crate) fn of<S: Backend>(group: &Group<S>) -> Self {
        let (lanes, instances, paused) = {
            let lanes = group.lanes();
            (lanes.len(), lanes.members, lanes.paused)
        };
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &group.counters;
        let now = group.process.clock.now();
        let trouble = group.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ConsumerHealth {
            name: group.name().to_string(),
            lanes,
            instances,
            lease_left: group.lease_until.borrow().saturating_duration_since(now),
            paused,
            outage: group.probe_in().is_some(),
            batch_size: group.batch.get(),
            handled: read(&counters.handled),
            duplicates: read(&counters.duplicates),
            unhandled: read(&counters.unhandled),
            failures: read(&counters.failures),
            held: read(&counters.held),
            dead: read(&counters.dead),
            commits: read(&counters.commits),
            taken: read(&counters.taken),
            fenced: read(&counters.fenced),
            suspects: read(&counters.suspects),
            conflicts: read(&counters.conflicts),
            broker: group.relay.as_ref().map(State::place),
            alarm: group.relay.as_ref().and_then(State::alarm),
            trouble: trouble.map(|(at, text)| (now.saturating_duration_since(at), text)),
        }
    }
}
