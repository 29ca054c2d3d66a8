//! Tells the recorder of metrics what is true at the moment: each second what this process knows, and now and then what
//! only the store knows. One task for the whole process.
//!
//! What the store is asked is bounded (counts end at 100,000), and asked the less often the longer it takes.

use crate::{
    group::{Group, Process},
    housekeeping::pause,
    instruments::{
        HELD_DEAD, HELD_KEYS, HELD_WAITING, Instrument, LAG, LOG_BLOCKER, LOG_HEAD, LOG_HORIZON, LOG_PRUNED, OLDEST,
        OLDEST_DEAD, PAUSED, STORE_REACHABLE,
    },
    meter::group_label,
    relay::State,
    time_limit::ports::*,
};
use eventloom_core::{
    OffsetDateTime, Position, StoreError, chain,
    ports::{Backend, LogStatus, ReaderStatus, Readers as _},
};
use metrics::{Gauge, SharedString};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

const TICK: Duration = Duration::from_secs(1);
/// The store is busy with us for a hundredth of the time at most.
const SHARE_MAX: u32 = 100;
/// Where nothing waits and nothing came since the last look, the next one is so many times later.
const QUIET: u32 = 4;

/// Runs until the process stops. `every`: how often the store is asked; `None`: never.
pub(crate) async fn run<S: Backend>(process: Arc<Process<S>>, groups: Vec<Arc<Group<S>>>, every: Option<Duration>) {
    let mut of_store = OfStore::new();
    let mut due = Instant::now();
    while pause(&process, TICK).await {
        groups.iter().for_each(|group| of_process(group));
        let Some(every) = every else { continue };
        let begun = Instant::now();
        if begun < due {
            continue;
        }
        let quiet = match of_store.ask(&process).await {
            Ok(is_quiet) => {
                of_store.reachable.set(1.0);
                is_quiet
            }
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the state of readers and log is not known");
                of_store.reachable.set(0.0);
                false
            }
        };
        let every = if quiet { every * QUIET } else { every };
        due = Instant::now() + every.max(begun.elapsed() * SHARE_MAX);
    }
}

fn of_process<S: Backend>(group: &Group<S>) {
    let gauges = &group.meter.gauges;
    let lanes = group.lanes().len();
    let left = group
        .lease_until
        .borrow()
        .saturating_duration_since(group.process.clock.now());
    gauges.batch_size.set(group.batch.get() as f64);
    gauges.lanes.set(lanes as f64);
    gauges.lease_left.set(left.as_secs_f64());
    gauges.outage.set(f64::from(u8::from(group.probe_in().is_some())));
    if let Some(relay) = &group.relay {
        gauges.topics_blocked.set(relay.blocked() as f64);
        let alarmed = State::alarm(relay).is_some();
        gauges.alarm.set(f64::from(u8::from(alarmed)));
    }
}

/// What only the store knows: of all readers, whoever runs them, and of the log.
struct OfStore {
    reachable: Gauge,
    head: Gauge,
    pruned_to: Gauge,
    horizon: Gauge,
    blocker: Gauge,
    readers: HashMap<String, OfReader>,
    /// The head of the log at the last look.
    last_head: Position,
}

impl OfStore {
    fn new() -> Self {
        let gauge = |instrument: &Instrument| instrument.gauge(Vec::new());
        OfStore {
            reachable: gauge(&STORE_REACHABLE),
            head: gauge(&LOG_HEAD),
            pruned_to: gauge(&LOG_PRUNED),
            horizon: gauge(&LOG_HORIZON),
            blocker: gauge(&LOG_BLOCKER),
            readers: HashMap::new(),
            last_head: Position::START,
        }
    }

    /// Returns whether nothing waits and nothing came since the last look.
    async fn ask<S: Backend>(&mut self, process: &Process<S>) -> Result<bool, StoreError> {
        let now = process.clock.bind();
        let readers = process.store.readers(now).await?;
        self.tell_readers(&readers, now.unwrap_or_else(OffsetDateTime::now_utc));
        let log = process.store.log_status().await?;
        self.tell_log(&log);
        let waits = |status: &ReaderStatus| status.lag_messages > 0 || status.waiting > 0;
        let quiet = log.head == self.last_head && log.held_by.is_none() && !readers.iter().any(waits);
        self.last_head = log.head;
        Ok(quiet)
    }

    fn tell_readers(&mut self, readers: &[ReaderStatus], now: OffsetDateTime) {
        for status in readers {
            let gauges = self.readers.entry(status.name.clone());
            gauges.or_insert_with(|| OfReader::new(&status.name)).tell(status, now);
        }
        // A gauge keeps its last value: one of a reader that was dropped would be an alarm for ever.
        let gone = |name: &str| readers.iter().all(|status| status.name != name);
        self.readers.retain(|name, gauges| {
            let gone = gone(name);
            if gone {
                gauges.tell(&ReaderStatus::new(name.clone()), now);
            }
            !gone
        });
    }

    fn tell_log(&self, log: &LogStatus) {
        self.head.set(log.head.0 as f64);
        self.pruned_to.set(log.pruned_to.0 as f64);
        self.horizon.set(log.horizon.0 as f64);
        let open_for = log.held_by.as_ref().map(|blocker| blocker.open_for);
        self.blocker.set(open_for.unwrap_or_default().as_secs_f64());
    }
}

struct OfReader {
    lag: Gauge,
    oldest: Gauge,
    paused: Gauge,
    held_keys: Gauge,
    waiting: Gauge,
    dead: Gauge,
    oldest_dead: Gauge,
}

impl OfReader {
    fn new(name: &str) -> Self {
        let name = SharedString::from_owned(name.to_owned());
        let gauge = |instrument: &Instrument| instrument.gauge(vec![group_label(&name)]);
        OfReader {
            lag: gauge(&LAG),
            oldest: gauge(&OLDEST),
            paused: gauge(&PAUSED),
            held_keys: gauge(&HELD_KEYS),
            waiting: gauge(&HELD_WAITING),
            dead: gauge(&HELD_DEAD),
            oldest_dead: gauge(&OLDEST_DEAD),
        }
    }

    fn tell(&self, status: &ReaderStatus, now: OffsetDateTime) {
        self.lag.set(status.lag_messages as f64);
        self.oldest.set(status.oldest.unwrap_or_default().as_secs_f64());
        self.paused.set(f64::from(u8::from(status.paused)));
        self.held_keys.set(status.held_keys as f64);
        self.waiting.set(status.waiting as f64);
        self.dead.set(status.dead as f64);
        let since_first = status.first_dead_at.map_or(0.0, |at| (now - at).as_seconds_f64());
        self.oldest_dead.set(since_first.max(0.0));
    }
}
