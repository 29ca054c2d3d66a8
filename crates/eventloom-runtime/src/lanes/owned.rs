//! One lane that an instance owns: its rows that wait, and what may be done with them now.

use super::Slice;
use eventloom_core::{Epoch, Lane, Position, Recorded, ports::Taken};
use std::{collections::VecDeque, sync::Arc, time::Instant};

/// Rows that wait for one lane at most; a lane that reaches it is read apart later.
pub(super) const LANE_ROWS_MAX: usize = 1024;
pub(super) const LANE_BYTES_MAX: usize = 1 << 20;

/// One owned lane.
#[derive(Debug)]
pub(crate) struct OwnedLane {
    pub(crate) epoch: Epoch,
    /// Everything at or below is done and committed.
    pub(crate) position: Position,
    /// Everything at or below is done or in `queue`.
    pub(super) fetched: Position,
    pub(super) queue: VecDeque<Arc<Recorded>>,
    pub(super) queue_bytes: usize,
    /// What the tables say this owner has taken up to.
    pub(super) marked: Position,
    /// Something of it has been committed under this epoch.
    pub(super) committed: bool,
    /// Messages up to here may have killed the former owner.
    pub(crate) suspect_until: Position,
    /// Whether keys or messages of it are held. `false` is trusted, since only the owner holds.
    pub(crate) holds: bool,
    /// Keys that the former owner could not let go have been looked at.
    pub(crate) swept: bool,
    /// Somebody works on it.
    pub(super) busy: bool,
    /// Somebody else waits to work on it.
    pub(super) wanted: bool,
    /// It is to be handed over.
    pub(super) leaving: bool,
    /// Nothing new of it is handled for now.
    pub(super) blocked: bool,
    /// It is not picked before this: what it would hold has no room.
    pub(super) rest_until: Option<Instant>,
}

impl OwnedLane {
    pub(super) fn taken(taken: &Taken) -> Self {
        let suspect_until = if eventloom_core::faults::defect("attempts_lost_at_restart") {
            taken.position
        } else {
            taken.batch_end
        };
        OwnedLane {
            epoch: taken.cursor.epoch,
            position: taken.position,
            fetched: taken.position,
            queue: VecDeque::new(),
            queue_bytes: 0,
            marked: taken.position,
            committed: false,
            suspect_until,
            holds: taken.holds,
            swept: !taken.holds,
            busy: false,
            wanted: false,
            leaving: false,
            blocked: false,
            rest_until: None,
        }
    }

    /// Stops delivery of what is not held, or lets it go on. What was queued is read again later.
    pub(crate) fn block(&mut self, blocked: bool) {
        self.blocked = blocked;
        if blocked {
            self.queue.clear();
            self.queue_bytes = 0;
            self.fetched = self.position;
        }
    }

    pub(super) fn ready(&self, stopping: bool) -> bool {
        let more = if stopping || self.leaving {
            self.owes()
        } else {
            !self.queue.is_empty()
        };
        more && !self.busy && !self.wanted && !self.blocked && self.rest_until.is_none()
    }

    /// Whether the tables say that messages are taken which are not done: a successor would suspect them.
    pub(super) fn owes(&self) -> bool {
        self.queue.front().is_some_and(|row| row.position <= self.marked)
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.queue.front().is_some_and(|row| row.position <= self.suspect_until)
    }

    pub(super) fn full(&self) -> bool {
        self.queue.len() >= LANE_ROWS_MAX || self.queue_bytes >= LANE_BYTES_MAX
    }

    pub(super) fn push(&mut self, row: Arc<Recorded>) {
        self.queue_bytes += weight(&row);
        self.queue.push_back(row);
    }

    /// The rows stay in the queue until the cursor has moved past them, so that nothing is lost with a worker.
    pub(super) fn slice(&mut self, lane: Lane, rows_max: usize, suspects: bool, stopping: bool) -> Slice {
        self.busy = true;
        let until = match suspects {
            true => self.suspect_until,
            // What is marked already needs no commit of its own, so it goes first and alone.
            false if stopping || self.leaving || self.owes() => self.marked,
            false => self.fetched,
        };
        let end = self.queue.partition_point(|row| row.position <= until).min(rows_max);
        let rows: Vec<_> = self.queue.iter().take(end).cloned().collect();
        let last = rows.last().map_or(self.position, |row| row.position);
        Slice {
            lane,
            epoch: self.epoch,
            position: self.position,
            holds: self.holds,
            mark: (last > self.marked).then_some(last),
            rows,
        }
    }
}

pub(super) fn weight(row: &Recorded) -> usize {
    256 + row.envelope.payload.as_ref().map_or(0, |payload| payload.bytes().len())
}
