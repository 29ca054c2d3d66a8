//! What is left to do on lanes at a moment, and lanes that rest until another.

use super::Lanes;
use eventloom_core::{Position, ports::Cursor};
use std::time::Instant;

/// What is left to do on the lanes of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LanesLeft {
    /// How often work was begun: the same twice, nothing was done in between.
    begun: u64,
    /// Lanes that were given up and are not asked for again yet.
    pub(crate) rejoins: bool,
    /// Lanes that somebody works on.
    pub(crate) busy: usize,
    /// Rows that wait to be handled.
    pub(crate) queued: usize,
    /// Those of them whose lanes rest, and until when the next one does.
    pub(crate) resting: usize,
    pub(crate) rests_until: Option<Instant>,
    /// Lanes whose held keys have not been looked at since they were taken.
    pub(crate) unswept: usize,
    /// Up to where every lane that takes rows was read; `None`: none does.
    pub(crate) fetched: Option<Position>,
}

impl Lanes {
    pub(crate) fn left(&self) -> LanesLeft {
        let mut left = LanesLeft {
            begun: self.begun,
            rejoins: self.forgotten != self.rejoined,
            busy: 0,
            queued: 0,
            resting: 0,
            rests_until: self.lanes.values().filter_map(|owned| owned.rest_until).min(),
            unswept: if self.paused || self.dropped {
                0
            } else {
                self.unswept().len()
            },
            fetched: None,
        };
        let stopped = self.paused || self.dropped;
        for owned in self.lanes.values() {
            left.busy += usize::from(owned.busy);
            if stopped || owned.blocked || owned.leaving {
                continue;
            }
            left.queued += owned.queue.len();
            if owned.rest_until.is_some() {
                left.resting += owned.queue.len();
            }
            left.fetched = Some(left.fetched.map_or(owned.fetched, |lowest| lowest.min(owned.fetched)));
        }
        left
    }

    /// Lets a lane rest.
    pub(crate) fn rest(&mut self, cursor: Cursor, until: Instant) {
        if let Some(owned) = self.get_mut(cursor) {
            owned.rest_until = Some(until);
        }
    }

    /// Lets lanes be picked whose rest is over. Returns when the next one's is.
    pub(crate) fn end_rests(&mut self, now: Instant) -> Option<Instant> {
        for owned in self.lanes.values_mut() {
            owned.rest_until = owned.rest_until.filter(|until| *until > now);
        }
        self.lanes.values().filter_map(|owned| owned.rest_until).min()
    }
}
