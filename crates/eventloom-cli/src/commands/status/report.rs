//! What is true of a log and its readers, and what of it needs somebody.

use super::Lanes;
use crate::settings::Settings;
use eventloom::ports::{Blocker, LogStatus, ReaderStatus};
use std::{collections::BTreeSet, time::Duration};

/// A transaction that is open for less is at work; longer, and somebody should look.
const OPEN_FOR_LONG: Duration = Duration::from_secs(5);

/// The log and its readers at a moment.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) place: String,
    pub(crate) log: LogStatus,
    pub(crate) readers: Vec<Reader>,
}

/// A reader, with its lanes summed up.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) status: ReaderStatus,
    /// A broker has confirmed something to it.
    is_relay: bool,
    pub(crate) lanes: Lanes,
    /// What is odd about it, in a few words.
    pub(crate) hints: Vec<String>,
}

impl Report {
    pub(crate) fn of(place: String, log: LogStatus, readers: Vec<ReaderStatus>, relays: &BTreeSet<String>) -> Self {
        let lanes: Vec<_> = readers.iter().map(|reader| Lanes::of(&reader.lanes)).collect();
        let hosts: BTreeSet<String> = lanes.iter().flat_map(Lanes::hosts).map(str::to_owned).collect();
        let readers = readers.into_iter().zip(lanes);
        let readers = readers.map(|(status, lanes)| {
            let hints = hints(&status, &lanes, hosts.len());
            let is_relay = relays.contains(&status.name);
            Reader {
                status,
                is_relay,
                lanes,
                hints,
            }
        });
        Report {
            place,
            log,
            readers: readers.collect(),
        }
    }

    /// Positions that were handed out and cannot be read yet.
    pub(crate) fn held_back(&self) -> i64 {
        (self.log.head.0 - self.log.horizon.0).max(0)
    }

    fn blocker(&self) -> Option<&Blocker> {
        self.log
            .held_by
            .as_ref()
            .filter(|blocker| blocker.open_for >= OPEN_FOR_LONG)
    }

    /// Names of what needs somebody: `outbox` for the log itself, and readers.
    pub(crate) fn need_somebody(&self) -> Vec<&str> {
        let log = self.blocker().map(|_| "outbox");
        let readers = self.readers.iter().filter(|reader| reader.needs_somebody());
        log.into_iter()
            .chain(readers.map(|reader| reader.status.name.as_str()))
            .collect()
    }

    /// The commands that help, the most urgent first.
    pub(crate) fn next(&self, settings: &Settings) -> Vec<String> {
        let mut next = Vec::new();
        if let Some(blocker) = self.blocker() {
            next.push(match blocker.pid {
                Some(pid) => format!(
                    "let that transaction end, or end it: psql -c 'SELECT pg_terminate_backend({pid})' (it is rolled back)"
                ),
                None => "end the prepared transaction: SELECT gid FROM pg_prepared_xacts, then COMMIT PREPARED or \
                         ROLLBACK PREPARED"
                    .to_owned(),
            });
        }
        for reader in &self.readers {
            let (status, name) = (&reader.status, &reader.status.name);
            if status.dead > 0 {
                next.push(settings.command(&format!("dlq list --consumer {name}")));
            } else if status.waiting > 0 && status.last_error.is_some() {
                next.push(settings.command(&format!("dlq list --consumer {name} --state all")));
            }
            if status.paused && status.lag_messages > 0 {
                next.push(settings.command(&format!("consumer resume {name}")));
            } else if reader.is_abandoned() {
                let drop = settings.command(&format!("consumer drop {name}"));
                let start = match reader.is_relay {
                    true => format!("start the relay {name}, which says so if it had stopped with an alarm"),
                    false => format!("start an instance of {name}"),
                };
                next.push(format!("{start}; or, if it is not needed any more, {drop}"));
            }
        }
        next
    }
}

impl Reader {
    /// What follows the log, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        if self.is_relay { "relay" } else { "consumer" }
    }

    /// Nobody works on what there is to do.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lanes.owned() == 0 && (self.status.lag_messages > 0 || self.status.waiting > 0)
    }

    /// A paused reader stands still because somebody wants it so.
    pub(crate) fn needs_somebody(&self) -> bool {
        self.status.dead > 0 || (self.is_abandoned() && !self.status.paused)
    }
}

fn hints(status: &ReaderStatus, lanes: &Lanes, hosts: usize) -> Vec<String> {
    let mut hints = Vec::new();
    let (owned, total) = (lanes.owned(), lanes.total);
    if status.paused {
        hints.push("paused".to_owned());
    }
    if owned == 0 {
        hints.push("nobody runs it".to_owned());
    } else if owned < total {
        hints.push(match total - owned {
            1 => "1 lane has no owner".to_owned(),
            free => format!("{free} lanes have no owner"),
        });
    }
    // With a single host in sight it could not be otherwise.
    if hosts > 1 && lanes.hosts().len() == 1 && owned > 1 {
        hints.push("one host has everything".to_owned());
    }
    hints
}
