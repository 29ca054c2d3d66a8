//! What can be asked of a running service.

use crate::{
    group::{Group, Process},
    hot_keys::HotKey,
    relay::State,
    time_limit::ports::*,
};
use eventloom_core::ports::Backend;
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// How long a health check waits for the store.
const STORE_ANSWERS: Duration = Duration::from_secs(2);
/// Hot keys that are shown.
const HOT_KEYS_MAX: usize = 10;

/// A service, at a moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// The store answers.
    pub store_reachable: bool,
    /// The store answers, every consumer holds a live lease, no relay has raised an alarm, no task is dead, and nothing is
    /// being stopped: it may be given traffic.
    pub ready: bool,
    /// It is being shut down.
    pub stopping: bool,
    /// Tasks of the engine that are dead although the service runs. A panic starts a task anew, so this is none unless the
    /// runtime itself was shut down or the engine has a fault: then restart the process.
    pub tasks_ended: usize,
    /// Its consumers.
    pub consumers: Vec<ConsumerHealth>,
}

/// What is said of a consumer that was dropped while it runs.
const DROPPED: &str = "it was dropped, and delivers nothing; start the service anew to register it again";

impl Health {
    pub(crate) async fn of<S: Backend>(process: &Process<S>, groups: &[Arc<Group<S>>], tasks_ended: usize) -> Self {
        let answer = tokio::time::timeout(STORE_ANSWERS, process.store.ping()).await;
        let consumers: Vec<_> = groups.iter().map(|group| ConsumerHealth::of(group)).collect();
        let mut health = Health {
            store_reachable: matches!(answer, Ok(Ok(()))),
            ready: false,
            stopping: process.stopping.is_cancelled(),
            tasks_ended,
            consumers,
        };
        health.ready = health.not_ready().is_empty();
        health
    }

    /// What stands against giving it traffic, for people.
    pub fn not_ready(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.stopping {
            why.push("it is being shut down".to_owned());
        }
        if !self.store_reachable {
            why.push(format!("the store does not answer within {STORE_ANSWERS:?}"));
        }
        if self.tasks_ended > 0 {
            why.push(format!(
                "{} tasks of the engine have ended: restart the process",
                self.tasks_ended
            ));
        }
        for consumer in &self.consumers {
            if consumer.lease_left.is_zero() {
                why.push(format!("{}: no live lease", consumer.name));
            }
            if consumer.dropped {
                why.push(format!("{}: {DROPPED}", consumer.name));
            }
            if let Some(alarm) = &consumer.alarm {
                why.push(format!("{}: {alarm}", consumer.name));
            }
        }
        why
    }
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
    /// Dropped by an operator: nothing is delivered until the service is started anew.
    pub dropped: bool,
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
    /// The keys that most messages have at the moment, the hottest first; at most 10. A key with a 64th of all keyed
    /// messages is never missed.
    pub hot_keys: Vec<HotKey>,
    /// Of a relay: where its broker is.
    pub broker: Option<String>,
    /// Of a relay: why nothing is sent until somebody has looked.
    pub alarm: Option<String>,
    /// The last trouble and how long ago it was.
    pub trouble: Option<(Duration, String)>,
}

impl ConsumerHealth {
    pub(crate) fn of<S: Backend>(group: &Group<S>) -> Self {
        let (lanes, instances, paused, dropped) = {
            let lanes = group.lanes();
            (lanes.len(), lanes.members, lanes.paused, lanes.dropped)
        };
        let counters = &group.meter.counters;
        let now = group.process.clock.now();
        let trouble = group.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ConsumerHealth {
            name: group.name().to_string(),
            lanes,
            instances,
            lease_left: group.lease_until.borrow().saturating_duration_since(now),
            paused,
            dropped,
            outage: group.probe_in().is_some(),
            batch_size: group.batch.get(),
            handled: counters.handled.read(),
            duplicates: counters.duplicates.read(),
            unhandled: counters.unhandled.read(),
            failures: counters.failures.read(),
            held: counters.held.read(),
            dead: counters.dead.read(),
            commits: counters.commits.read(),
            taken: counters.taken.read(),
            fenced: counters.fenced.read(),
            suspects: counters.suspects.read(),
            conflicts: counters.conflicts.read(),
            hot_keys: group.hot_keys(HOT_KEYS_MAX),
            broker: group.relay.as_ref().map(State::place),
            alarm: group.relay.as_ref().and_then(State::alarm),
            trouble: trouble.map(|(at, text)| (now.saturating_duration_since(at), text)),
        }
    }
}
