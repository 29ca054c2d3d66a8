//! What one consumer or relay counts and times, for health and for whatever recorder of metrics the process has.
//!
//! Handles are made at the start of the service and when a topic is first seen; what happens afterwards is a branch each
//! without a recorder, and an atomic with one. A recorder that is installed later is not seen.

use crate::instruments::{
    self, ALARM, BATCH_SIZE, COMMITS, CONFLICTS, CONSUMED, DEAD, DUPLICATES, FAILURES, FENCED, HELD, Instrument, LANES,
    LEASE_LEFT, OPERATION, OUTAGE, PROCESSED, SENT, SUSPECTS, TAKEOVERS, TOPICS_BLOCKED, UNHANDLED,
};
use eventloom_core::{ConsumerName, RetryClass};
use metrics::{Counter, Gauge, Histogram, Label, SharedString};
use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Topics that are told apart; a relay may meet any number.
const TOPICS_MAX: usize = 64;
/// What the conventions call the rest.
const OTHER: &str = "_OTHER";
pub(crate) const SYSTEM: &str = "eventloom";

/// A count since the start of the process.
#[derive(Debug)]
pub(crate) struct Count {
    total: AtomicU64,
    told: Counter,
}

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.total.fetch_add(by, Ordering::Relaxed);
        self.told.increment(by);
    }

    pub(crate) fn read(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// Counts of one consumer or relay.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Told to the recorder by topic, see [`Meter`].
    pub(crate) handled: Count,
    pub(crate) duplicates: Count,
    pub(crate) unhandled: Count,
    pub(crate) failures: Count,
    pub(crate) held: Count,
    pub(crate) dead: Count,
    pub(crate) commits: Count,
    pub(crate) taken: Count,
    pub(crate) fenced: Count,
    pub(crate) suspects: Count,
    pub(crate) conflicts: Count,
}

impl Counters {
    fn new(group: &[Label]) -> Self {
        let count = |instrument: &Instrument| Count {
            total: AtomicU64::new(0),
            told: instrument.counter(group.to_vec()),
        };
        Counters {
            handled: Count {
                total: AtomicU64::new(0),
                told: Counter::noop(),
            },
            duplicates: count(&DUPLICATES),
            unhandled: count(&UNHANDLED),
            failures: count(&FAILURES),
            held: count(&HELD),
            dead: count(&DEAD),
            commits: count(&COMMITS),
            taken: count(&TAKEOVERS),
            fenced: count(&FENCED),
            suspects: count(&SUSPECTS),
            conflicts: count(&CONFLICTS),
        }
    }
}

/// What is true of it at the moment.
#[derive(Debug)]
pub(crate) struct Gauges {
    pub(crate) batch_size: Gauge,
    pub(crate) lanes: Gauge,
    pub(crate) lease_left: Gauge,
    pub(crate) outage: Gauge,
    /// Of a relay.
    pub(crate) topics_blocked: Gauge,
    /// Of a relay.
    pub(crate) alarm: Gauge,
}

/// How an operation of the conventions ended. Each has a handle, so there are few.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ended {
    Well,
    /// Trying again may help.
    Transient,
    Permanent,
    /// The broker will never take it.
    Refused,
    /// Its topic takes nothing for now.
    Blocked,
    /// It may have arrived.
    Unknown,
    /// A later owner has sent.
    Fenced,
    /// The broker takes nothing.
    Unreachable,
}

impl Ended {
    /// `error.type`.
    pub(crate) fn error_type(self) -> Option<&'static str> {
        match self {
            Ended::Well => None,
            Ended::Transient => Some("transient"),
            Ended::Permanent => Some("permanent"),
            Ended::Refused => Some("refused"),
            Ended::Blocked => Some("blocked"),
            Ended::Unknown => Some("unknown"),
            Ended::Fenced => Some("fenced"),
            Ended::Unreachable => Some("unreachable"),
        }
    }
}

impl From<RetryClass> for Ended {
    fn from(class: RetryClass) -> Self {
        match class {
            RetryClass::Transient => Ended::Transient,
            RetryClass::Permanent => Ended::Permanent,
        }
    }
}

/// Handles by topic and how it ended, of the topics that were seen first.
#[derive(Debug)]
struct ByTopic<H>(Mutex<HashMap<String, Vec<(Ended, H)>>>);

impl<H> ByTopic<H> {
    fn new() -> Self {
        ByTopic(Mutex::default())
    }

    /// Messages of one topic often stand together: each run of them is told at once.
    fn runs<'t>(
        &self,
        topics: impl IntoIterator<Item = &'t str>,
        ended: Ended,
        tell: impl Fn(&H, u64),
        make: impl Fn(&str) -> H,
    ) {
        let mut run: Option<(&str, u64)> = None;
        for topic in topics {
            match &mut run {
                Some((same, messages)) if *same == topic => *messages += 1,
                _ => {
                    if let Some((topic, messages)) = run.replace((topic, 1)) {
                        self.with(topic, ended, |handle| tell(handle, messages), &make);
                    }
                }
            }
        }
        if let Some((topic, messages)) = run {
            self.with(topic, ended, |handle| tell(handle, messages), &make);
        }
    }

    fn with(&self, topic: &str, ended: Ended, tell: impl FnOnce(&H), make: impl Fn(&str) -> H) {
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let topic = match topics.contains_key(topic) || topics.len() < TOPICS_MAX {
            true => topic,
            false => OTHER,
        };
        if !topics.contains_key(topic) {
            topics.insert(topic.to_owned(), Vec::new());
        }
        let Some(handles) = topics.get_mut(topic) else { return };
        match handles.iter().find(|(known, _)| *known == ended) {
            Some((_, handle)) => tell(handle),
            None => {
                let handle = make(topic);
                tell(&handle);
                handles.push((ended, handle));
            }
        }
    }
}

/// Everything that one consumer or relay counts and times.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) counters: Counters,
    pub(crate) gauges: Gauges,
    name: SharedString,
    consumed: ByTopic<Counter>,
    processed: ByTopic<Histogram>,
    sent: ByTopic<Counter>,
    operations: Mutex<HashMap<Ended, Histogram>>,
}

impl Meter {
    pub(crate) fn new(name: &ConsumerName, relays: bool) -> Self {
        instruments::describe();
        let name = SharedString::from_owned(name.to_string());
        let group = [group_label(&name)];
        let gauge = |instrument: &Instrument| instrument.gauge(group.to_vec());
        let of_relay = |instrument: &Instrument| match relays {
            true => gauge(instrument),
            false => Gauge::noop(),
        };
        Meter {
            counters: Counters::new(&group),
            gauges: Gauges {
                batch_size: gauge(&BATCH_SIZE),
                lanes: gauge(&LANES),
                lease_left: gauge(&LEASE_LEFT),
                outage: gauge(&OUTAGE),
                topics_blocked: of_relay(&TOPICS_BLOCKED),
                alarm: of_relay(&ALARM),
            },
            consumed: ByTopic::new(),
            processed: ByTopic::new(),
            sent: ByTopic::new(),
            operations: Mutex::default(),
            name,
        }
    }

    /// Messages whose handling has ended: after their commit, or when they failed.
    pub(crate) fn consumed<'t>(&self, topics: impl IntoIterator<Item = &'t str>, ended: Ended) {
        self.consumed.runs(
            topics,
            ended,
            |counter, messages| counter.increment(messages),
            |topic| CONSUMED.counter(self.labels("process", Some(topic), ended)),
        );
    }

    /// One run of a handler.
    pub(crate) fn processed(&self, topic: &str, took: Duration, ended: Ended) {
        let make = |topic: &str| PROCESSED.histogram(self.labels("process", Some(topic), ended));
        self.processed
            .with(topic, ended, |histogram| histogram.record(took), make);
    }

    /// Messages of which a broker has told their fate.
    pub(crate) fn sent<'t>(&self, topics: impl IntoIterator<Item = &'t str>, ended: Ended) {
        self.sent.runs(
            topics,
            ended,
            |counter, messages| counter.increment(messages),
            |topic| SENT.counter(self.labels("send", Some(topic), ended)),
        );
    }

    /// A batch from its submission to its confirmation; it may have several topics.
    pub(crate) fn operation(&self, took: Duration, ended: Ended) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = operations
            .entry(ended)
            .or_insert_with(|| OPERATION.histogram(self.labels("send", None, ended)));
        histogram.record(took);
    }

    fn labels(&self, operation: &'static str, topic: Option<&str>, ended: Ended) -> Vec<Label> {
        let mut labels = vec![
            Label::from_static_parts("messaging.system", SYSTEM),
            Label::from_static_parts("messaging.operation.name", operation),
            group_label(&self.name),
        ];
        labels.extend(topic.map(|topic| Label::new("messaging.destination.name", topic.to_owned())));
        labels.extend(
            ended
                .error_type()
                .map(|error| Label::from_static_parts("error.type", error)),
        );
        labels
    }
}

/// Which consumer or relay it is of.
pub(crate) fn group_label(name: &SharedString) -> Label {
    Label::new("messaging.consumer.group.name", name.clone())
}
