//! The same for programs: ages in seconds, lanes one by one.

use super::report::{Reader, Report};
use crate::{figures, settings::Settings};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(crate) struct StatusJson<'a> {
    store: &'a str,
    log: LogJson<'a>,
    readers: Vec<ReaderJson<'a>>,
    next: Vec<String>,
}

#[derive(Serialize)]
struct LogJson<'a> {
    name: &'static str,
    identity: String,
    head: i64,
    horizon: i64,
    held_back: i64,
    pruned_to: i64,
    held_by: Option<BlockerJson<'a>>,
}

#[derive(Serialize)]
struct BlockerJson<'a> {
    pid: Option<i32>,
    application: &'a str,
    open_seconds: f64,
    query: &'a str,
}

/// A reader; `consumer list --json` prints the same.
#[derive(Serialize)]
pub(crate) struct ReaderJson<'a> {
    name: &'a str,
    kind: &'static str,
    paused: bool,
    lag_messages: u64,
    oldest_seconds: Option<f64>,
    held_keys: u64,
    waiting: u64,
    dead: u64,
    first_dead_at: Option<String>,
    last_error: Option<&'a str>,
    hints: &'a [String],
    owners: &'a BTreeMap<String, usize>,
    lanes: Vec<LaneJson<'a>>,
}

#[derive(Serialize)]
struct LaneJson<'a> {
    lane: i16,
    position: i64,
    owner: Option<&'a str>,
}

pub(crate) fn of<'a>(report: &'a Report, settings: &Settings) -> StatusJson<'a> {
    let log = &report.log;
    let held_by = log.held_by.as_ref().map(|blocker| BlockerJson {
        pid: blocker.pid,
        application: &blocker.application,
        open_seconds: blocker.open_for.as_secs_f64(),
        query: &blocker.query,
    });
    StatusJson {
        store: &report.place,
        log: LogJson {
            name: "outbox",
            identity: log.identity.to_string(),
            head: log.head.0,
            horizon: log.horizon.0,
            held_back: report.held_back(),
            pruned_to: log.pruned_to.0,
            held_by,
        },
        readers: report.readers.iter().map(ReaderJson::of).collect(),
        next: report.next(settings),
    }
}

impl<'a> ReaderJson<'a> {
    pub(crate) fn of(reader: &'a Reader) -> Self {
        let status = &reader.status;
        ReaderJson {
            name: &status.name,
            kind: reader.kind(),
            paused: status.paused,
            lag_messages: status.lag_messages,
            oldest_seconds: status.oldest.map(|oldest| oldest.as_secs_f64()),
            held_keys: status.held_keys,
            waiting: status.waiting,
            dead: status.dead,
            first_dead_at: status.first_dead_at.map(figures::rfc3339),
            last_error: status.last_error.as_deref(),
            hints: &reader.hints,
            owners: &reader.lanes.owners,
            lanes: status
                .lanes
                .iter()
                .map(|lane| LaneJson {
                    lane: lane.lane.0,
                    position: lane.position.0,
                    owner: lane.owner.as_deref(),
                })
                .collect(),
        }
    }
}
