//! What a consumer or a relay is started with, checked against what its store can carry.

use crate::{
    backoff::Backoff,
    consumer::{Consumer, Mode, Poison, Unhandled},
    in_flight::UNSTORED_PER_CALL,
    service::StartError,
};
use eventloom_core::{
    ConsumerName,
    ports::{Backend, Capacity, Start},
};
use std::{collections::HashSet, time::Duration};

/// Calls to the outside at once, unless a consumer says otherwise.
const CALLS_DEFAULT: u32 = 16;
/// Transactions at once, unless a consumer says otherwise or the pool is smaller.
const WORKERS_DEFAULT: u32 = 4;
/// The longest that one handler may run.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// A consumer's settings, checked.
pub(crate) struct Settings {
    pub(crate) name: ConsumerName,
    pub(crate) topics: HashSet<String>,
    pub(crate) mode: Mode,
    pub(crate) start: Start,
    pub(crate) attempts_max: u32,
    pub(crate) backoff: Backoff,
    pub(crate) poison: Poison,
    pub(crate) unhandled: Unhandled,
    pub(crate) deadline: Duration,
    pub(crate) lease: Duration,
    /// Tasks that pick lanes.
    pub(crate) workers: u32,
    /// Calls to the outside at once.
    pub(crate) in_flight: u32,
    pub(crate) batch_max: u32,
    pub(crate) inbox: bool,
    pub(crate) inbox_window: Duration,
    pub(crate) held_per_key_max: u32,
    pub(crate) held_max: u32,
    /// Larger payloads are not read; `None`: all are.
    pub(crate) payload_each_max: Option<u64>,
}

/// A consumer's settings, or why they cannot work. `asked_before`: transactions at once that other consumers ask for.
pub(crate) fn check<S: Backend>(
    consumer: &Consumer<S>,
    capacity: Capacity,
    consumers: u32,
    asked_before: u32,
) -> Result<Settings, StartError> {
    let name = ConsumerName::parse(&consumer.name)?;
    let refuse = |why: String| {
        Err(StartError::Consumer {
            name: consumer.name.clone(),
            why,
        })
    };
    if consumer.mixed {
        return refuse("it has two handlers for one type, or handlers of both modes; make it two consumers".to_owned());
    }
    let Some(mode) = consumer.mode() else {
        return refuse("it has no handler; add one with .handle(…) or .effect(…)".to_owned());
    };
    if consumer.topics.is_empty() {
        return refuse("it follows no topic; add one with .topic(…)".to_owned());
    }
    if !(1..=1000).contains(&consumer.attempts_max) {
        return refuse(format!("attempts {} is not between 1 and 1000", consumer.attempts_max));
    }
    if !(1..=10_000).contains(&consumer.batch_max) {
        return refuse(format!("batch_max {} is not between 1 and 10000", consumer.batch_max));
    }
    if !(Duration::from_millis(300)..=Duration::from_secs(3600)).contains(&consumer.lease) {
        return refuse(format!("lease {:?} is not between 300ms and 1h", consumer.lease));
    }
    let lease = consumer.lease;
    let deadline = consumer.deadline.unwrap_or(match mode {
        // Before the store ends a transaction that stands idle: a hanging handler is the message's failure, not the store's.
        Mode::Transaction => lease * 3 / 4,
        Mode::Effect => Duration::from_secs(30),
    });
    if deadline > DEADLINE_MAX {
        return refuse(format!("deadline {deadline:?} is longer than {DEADLINE_MAX:?}"));
    }
    // The store ends a transaction that stands idle for a lease: whoever hangs that long would be the store's failure, and
    // would be tried for ever.
    let deadline_max = lease * 9 / 10;
    if deadline.is_zero() || (mode == Mode::Transaction && deadline > deadline_max) {
        return refuse(format!(
            "deadline {deadline:?} does not fit into lease {lease:?}: a handler must end within nine tenths of it, \
             {deadline_max:?}; lengthen the lease, or use mode effect for slow calls"
        ));
    }
    let retries = consumer.backoff.horizon(consumer.attempts_max);
    let redelivery = lease.saturating_add(retries);
    if consumer.inbox && consumer.inbox_window < redelivery {
        return refuse(format!(
            "inbox_window {:?} is shorter than the longest redelivery {redelivery:?} = lease {lease:?} + retries {retries:?}",
            consumer.inbox_window
        ));
    }
    if !consumer.inbox && mode == Mode::Effect {
        return refuse("mode effect needs the inbox: it stores the result of the call".to_owned());
    }
    // One connection is kept for leases, where there is more than one.
    let usable = capacity.connections_max.saturating_sub(1).max(1);
    let (workers, in_flight) = match (mode, consumer.in_flight) {
        (_, Some(0)) => return refuse("in_flight 0 handles nothing".to_owned()),
        (Mode::Transaction, Some(asked)) if asked > usable => {
            return refuse(format!(
                "in_flight {asked} needs {} connections (one is kept for leases), and the pool has {}",
                asked + 1,
                capacity.connections_max
            ));
        }
        (Mode::Transaction, Some(asked)) if asked + asked_before > usable => {
            return refuse(format!(
                "in_flight {asked} and the {asked_before} of consumers before it need {} connections (one is kept for \
                 leases), and the pool has {}",
                asked + asked_before + 1,
                capacity.connections_max
            ));
        }
        (Mode::Transaction, Some(asked)) => (asked, asked),
        (Mode::Transaction, None) => {
            let fair = (usable / consumers.max(1)).max(1);
            let workers = WORKERS_DEFAULT.min(fair).min(capacity.writers_max);
            (workers, workers)
        }
        (Mode::Effect, asked) => {
            let calls = asked.unwrap_or(CALLS_DEFAULT);
            // More lanes at a time than calls: those that wait for a commit leave no hand idle.
            (calls.saturating_mul(UNSTORED_PER_CALL).min(64), calls)
        }
    };
    Ok(Settings {
        name,
        topics: consumer.topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
        mode,
        start: consumer.start,
        attempts_max: consumer.attempts_max,
        backoff: consumer.backoff,
        poison: consumer.poison,
        unhandled: consumer.unhandled,
        deadline,
        lease,
        workers,
        in_flight,
        batch_max: consumer.batch_max,
        inbox: consumer.inbox,
        inbox_window: consumer.inbox_window,
        held_per_key_max: consumer.held_per_key_max,
        held_max: consumer.held_max,
        payload_each_max: None,
    })
}
