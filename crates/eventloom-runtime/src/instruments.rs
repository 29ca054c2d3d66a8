//! The names of all metrics, with their units and what they tell: OpenTelemetry's conventions for messaging where they
//! have a name, and `eventloom.` where they have none. docs/reference/metrics.md says the same, and a test compares.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, SharedString, Unit, with_recorder};

static METADATA: Metadata<'static> = Metadata::new("eventloom", Level::INFO, Some("eventloom"));

/// What kind of number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric.
#[derive(Debug)]
pub(crate) struct Instrument {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As the conventions write units.
    pub(crate) unit: &'static str,
    pub(crate) tells: &'static str,
}

macro_rules! instruments {
    ($($constant:ident = $kind:ident $name:literal $unit:literal $tells:literal;)*) => {
        $(pub(crate) const $constant: Instrument = Instrument {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            tells: $tells,
        };)*
        pub(crate) const ALL: &[Instrument] = &[$($constant),*];
    };
}

instruments! {
    CONSUMED = Counter "messaging.client.consumed.messages" "{message}" "Messages whose handling has ended, with error.type when it failed.";
    PROCESSED = Histogram "messaging.process.duration" "s" "Time that a handler ran for one message.";
    SENT = Counter "messaging.client.sent.messages" "{message}" "Messages that the broker has confirmed; with error.type those that it did not take.";
    OPERATION = Histogram "messaging.client.operation.duration" "s" "Time from handing a batch over to the broker to its confirmation.";

    HELD = Counter "eventloom.held" "{message}" "Messages set aside to be tried again, or behind their key.";
    DEAD = Counter "eventloom.dead" "{message}" "Messages that became dead letters.";
    FAILURES = Counter "eventloom.failures" "{attempt}" "Failed attempts.";
    DUPLICATES = Counter "eventloom.duplicates" "{message}" "Second deliveries that had no second effect.";
    UNHANDLED = Counter "eventloom.unhandled" "{message}" "Messages of types without a handler.";
    COMMITS = Counter "eventloom.commits" "{transaction}" "Transactions committed.";
    CONFLICTS = Counter "eventloom.conflicts" "{transaction}" "Transactions that lost against another one.";
    FENCED = Counter "eventloom.fenced" "{batch}" "Work dropped because the lane was somebody else's, or because it was not known what was committed.";
    TAKEOVERS = Counter "eventloom.takeovers" "{lane}" "Lanes taken.";
    SUSPECTS = Counter "eventloom.suspects" "{message}" "Messages run singly because a former owner may have died of them.";

    BATCH_SIZE = Gauge "eventloom.batch.size" "{message}" "Messages that share a transaction at the moment; drops to 1 after a lost conflict.";
    LANES = Gauge "eventloom.lanes.owned" "{lane}" "Lanes owned by this instance.";
    LEASE_LEFT = Gauge "eventloom.lease.remaining" "s" "How long this instance's lease is still good.";
    OUTAGE = Gauge "eventloom.outage" "1" "1 while most keys fail, or the broker takes nothing, and only probes run.";
    TOPICS_BLOCKED = Gauge "eventloom.relay.topics.blocked" "{topic}" "Topics that take nothing at the moment.";
    ALARM = Gauge "eventloom.relay.alarm" "1" "1 while a relay sends nothing until somebody has looked.";

    STORE_REACHABLE = Gauge "eventloom.store.reachable" "1" "1 when the store answered the last time it was asked for what follows.";
    LAG = Gauge "eventloom.lag" "{message}" "Messages above the cursors, counted to 100,000 at most.";
    OLDEST = Gauge "eventloom.lag.age" "s" "Age of the oldest of them.";
    PAUSED = Gauge "eventloom.paused" "1" "1 while an operator has paused it.";
    HELD_KEYS = Gauge "eventloom.held.keys" "{key}" "Keys that are held, counted to 100,000 at most.";
    HELD_WAITING = Gauge "eventloom.held.waiting" "{message}" "Messages held that are tried again, counted to 100,000 at most.";
    HELD_DEAD = Gauge "eventloom.held.dead" "{message}" "Dead letters, counted to 100,000 at most.";
    OLDEST_DEAD = Gauge "eventloom.held.dead.age" "s" "Time since the first failure of the oldest dead letter.";
    LOG_HEAD = Gauge "eventloom.log.head" "{position}" "Last position handed out.";
    LOG_PRUNED = Gauge "eventloom.log.pruned_to" "{position}" "Up to where the log is pruned.";
    LOG_HORIZON = Gauge "eventloom.log.horizon" "{position}" "Up to where the log can be read.";
    LOG_BLOCKER = Gauge "eventloom.log.blocker.age" "s" "Age of the transaction that holds the horizon back; 0 when none does.";
}

/// Tells the recorder what the metrics are.
pub(crate) fn describe() {
    for instrument in ALL {
        let unit = match instrument.unit {
            "s" => Unit::Seconds,
            _ => Unit::Count,
        };
        let (name, tells) = (instrument.name, SharedString::const_str(instrument.tells));
        with_recorder(|recorder| match instrument.kind {
            Kind::Counter => recorder.describe_counter(name.into(), Some(unit), tells),
            Kind::Gauge => recorder.describe_gauge(name.into(), Some(unit), tells),
            Kind::Histogram => recorder.describe_histogram(name.into(), Some(unit), tells),
        });
    }
}

impl Instrument {
    /// Handles are made once: without a recorder, using one costs a branch.
    pub(crate) fn counter(&self, labels: Vec<Label>) -> Counter {
        let key = self.key(labels, Kind::Counter);
        with_recorder(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(crate) fn gauge(&self, labels: Vec<Label>) -> Gauge {
        let key = self.key(labels, Kind::Gauge);
        with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(crate) fn histogram(&self, labels: Vec<Label>) -> Histogram {
        let key = self.key(labels, Kind::Histogram);
        with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
    }

    fn key(&self, labels: Vec<Label>, kind: Kind) -> Key {
        debug_assert_eq!(self.kind, kind, "{}", self.name);
        Key::from_parts(self.name, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    /// Rows of a table whose first cell is a name between backticks: name, kind, unit.
    fn documented() -> Vec<(String, String, String)> {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
        let page = fs::read_to_string(page).unwrap_or_default();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.strip_suffix('`')?.to_owned();
            let (kind, unit) = (cells.next()?.to_owned(), cells.next()?.trim_matches('`').to_owned());
            (name.starts_with("eventloom.") || ALL.iter().any(|known| known.name == name)).then_some((name, kind, unit))
        };
        page.lines().filter_map(row).collect()
    }

    #[test]
    fn the_reference_names_each_metric_and_no_other() {
        let documented = documented();
        let code: Vec<_> = ALL
            .iter()
            .map(|known| {
                let kind = format!("{:?}", known.kind).to_lowercase();
                (known.name.to_owned(), kind, known.unit.to_owned())
            })
            .collect();
        let (documented, code): (BTreeSet<_>, BTreeSet<_>) =
            (documented.into_iter().collect(), code.into_iter().collect());
        let missing: Vec<_> = code.difference(&documented).collect();
        let unknown: Vec<_> = documented.difference(&code).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "missing {missing:?}, unknown {unknown:?}"
        );
        assert_eq!(code.len(), ALL.len(), "a name stands for one metric");
    }
}
