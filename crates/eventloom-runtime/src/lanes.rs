//! What an instance knows of the lanes that it owns: how far they are done, what is queued for them, who works on them.

mod outstanding;
mod owned;
#[cfg(test)]
mod tests;

pub(crate) use outstanding::LanesLeft;

use eventloom_core::{
    Epoch, Lane, Position, Recorded,
    ports::{Cursor, Move, Page, Tenure},
};
use owned::{LANE_BYTES_MAX, LANE_ROWS_MAX, OwnedLane, weight};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// Rows and bytes that wait for all lanes before the log is read on.
const ROWS_MAX: usize = 4096;
const BYTES_MAX: usize = 32 << 20;

/// A stretch of one lane, to be handled by whoever picked it.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) lane: Lane,
    pub(crate) epoch: Epoch,
    pub(crate) position: Position,
    pub(crate) holds: bool,
    pub(crate) rows: Vec<Arc<Recorded>>,
    /// The tables do not know yet that these rows are taken: mark up to here first.
    pub(crate) mark: Option<Position>,
}

impl Slice {
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor {
            lane: self.lane,
            epoch: self.epoch,
        }
    }
}

/// Lanes that the scan of the log is beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Behind {
    /// One of them, and up to where it was fetched.
    pub(crate) first: Cursor,
    pub(crate) fetched: Position,
    /// How many there are, and the lowest place up to which one was fetched.
    pub(crate) count: usize,
    pub(crate) lowest: Position,
}

/// What a worker is to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// Handle these in batches.
    Batch(Vec<Slice>),
    /// Handle these singly, counting before each.
    Suspects(Slice),
}

/// The lanes of one consumer in one process.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<Lane, OwnedLane>,
    /// Where picking goes on, so that every lane has its turn.
    turn: i16,
    pub(crate) share: usize,
    pub(crate) members: usize,
    pub(crate) paused: bool,
    pub(crate) dropped: bool,
    /// Only what the tables know as taken is finished; nothing more is begun.
    pub(crate) stopping: bool,
    /// How often lanes were forgotten, and how many of these times were asked for again since.
    pub(crate) forgotten: u64,
    pub(crate) rejoined: u64,
    /// How often work on lanes was begun.
    begun: u64,
}

impl Lanes {
    /// Takes over what [`Leases::keep`](eventloom_core::ports::Leases::keep) answered. Returns what was lost.
    pub(crate) fn apply(&mut self, tenure: &Tenure, block_held: bool) -> Vec<Lane> {
        self.share = tenure.share;
        self.members = tenure.members;
        self.paused = tenure.paused;
        self.dropped = tenure.dropped;
        let mut lost = Vec::new();
        let still_owned: HashSet<Cursor> = tenure.owned.iter().copied().collect();
        self.lanes.retain(|lane, owned| {
            let still = still_owned.contains(&Cursor {
                lane: *lane,
                epoch: owned.epoch,
            });
            if !still {
                lost.push(*lane);
            }
            still
        });
        for taken in &tenure.taken {
            let mut owned = OwnedLane::taken(taken);
            owned.block(block_held && taken.holds);
            self.lanes.insert(taken.cursor.lane, owned);
        }
        lost
    }

    /// Forgets a lane whose fence failed or whose transaction ended in doubt. It is taken anew, under a new epoch.
    pub(crate) fn forget(&mut self, cursors: impl IntoIterator<Item = Cursor>) {
        self.forgotten += 1;
        for cursor in cursors {
            if self
                .lanes
                .get(&cursor.lane)
                .is_some_and(|owned| owned.epoch == cursor.epoch)
            {
                self.lanes.remove(&cursor.lane);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.lanes.clear();
    }

    pub(crate) fn cursors(&self) -> Vec<Cursor> {
        self.lanes
            .iter()
            .map(|(lane, owned)| Cursor {
                lane: *lane,
                epoch: owned.epoch,
            })
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// The lane, as long as its owner's epoch is still this one.
    pub(crate) fn get_mut(&mut self, cursor: Cursor) -> Option<&mut OwnedLane> {
        self.lanes
            .get_mut(&cursor.lane)
            .filter(|owned| owned.epoch == cursor.epoch)
    }

    /// Whether anything of a lane has been committed since it was taken.
    pub(crate) fn has_committed(&self, cursor: Cursor) -> bool {
        self.lanes
            .get(&cursor.lane)
            .is_some_and(|owned| owned.epoch == cursor.epoch && owned.committed)
    }

    /// Lanes of which something is held.
    pub(crate) fn holding(&self) -> Vec<Lane> {
        self.lanes
            .iter()
            .filter(|(_, owned)| owned.holds && !owned.leaving)
            .map(|(lane, _)| *lane)
            .collect()
    }

    /// Lanes whose held keys have not been looked at since they were taken.
    pub(crate) fn unswept(&self) -> Vec<Lane> {
        self.lanes
            .iter()
            .filter(|(_, owned)| !owned.swept && !owned.leaving)
            .map(|(lane, _)| *lane)
            .collect()
    }

    /// The lowest place up to which a lane was fetched, and where most of them stand; of those that take rows. One that is
    /// full would have the same rows read again and again while it gives no room.
    pub(crate) fn reach(&self) -> Option<(Position, Position)> {
        let mut fetched: Vec<_> = self
            .lanes
            .values()
            .filter(|owned| !owned.blocked && !owned.leaving && !owned.full())
            .map(|owned| owned.fetched)
            .collect();
        fetched.sort_unstable();
        Some((*fetched.first()?, *fetched.get(fetched.len() / 2)?))
    }

    /// Lanes that have to be read apart, because the scan is beyond them. One that is half full waits until it is not, so
    /// that a read is worth it.
    pub(crate) fn behind(&self, scan: Position) -> Option<Behind> {
        let behind = self.lanes.iter().filter(|(_, owned)| {
            owned.fetched < scan
                && !owned.blocked
                && !owned.leaving
                && owned.queue.len() < LANE_ROWS_MAX / 2
                && owned.queue_bytes < LANE_BYTES_MAX / 2
        });
        let (lane, first) = behind.clone().next()?;
        Some(Behind {
            first: Cursor {
                lane: *lane,
                epoch: first.epoch,
            },
            fetched: first.fetched,
            count: behind.clone().count(),
            lowest: behind.map(|(_, owned)| owned.fetched).min()?,
        })
    }

    /// Whether these are all still owned, under the same epochs.
    pub(crate) fn owns(&self, cursors: &[Cursor]) -> bool {
        cursors.iter().all(|cursor| {
            self.lanes
                .get(&cursor.lane)
                .is_some_and(|owned| owned.epoch == cursor.epoch)
        })
    }

    /// Whether a lane that nobody works on begins with a suspect.
    pub(crate) fn has_suspects(&self) -> bool {
        self.lanes
            .values()
            .any(|owned| owned.ready(self.stopping) && owned.is_suspect())
    }

    /// Whether the log is to be read on. A lane counts for no more than its fair part: lanes that stand still must not stop
    /// the reading for the others.
    pub(crate) fn has_room(&self) -> bool {
        let lanes = self.lanes.len().max(1);
        // A part is never nothing, however many the lanes.
        let (rows_part, bytes_part) = ((ROWS_MAX / lanes).max(1), (BYTES_MAX / lanes).max(1));
        let part = |owned: &OwnedLane| (owned.queue.len().min(rows_part), owned.queue_bytes.min(bytes_part));
        let parts = self.lanes.values().filter(|owned| !owned.blocked).map(part);
        let (rows, bytes) = parts.fold((0, 0), |(rows, bytes), (row, byte)| (rows + row, bytes + byte));
        // Whole parts: with lanes that do not divide the limits evenly, the sum stays a little below them.
        rows < rows_part * lanes && bytes < bytes_part * lanes
    }

    /// Hands a page of the scan to the lanes. A lane that had not been read up to `after` is left behind: it would have a
    /// gap. Returns whether any lane got a row.
    pub(crate) fn offer(
        &mut self,
        after: Position,
        page: &Page,
        rows: &[Arc<Recorded>],
        wanted: impl Fn(&Recorded) -> bool,
    ) -> bool {
        let mut any = false;
        for row in rows {
            if let Some(owned) = self.lanes.get_mut(&row.lane)
                && owned.fetched >= after
                && owned.fetched < row.position
                && !owned.full()
            {
                if wanted(row) {
                    owned.push(row.clone());
                    any = true;
                }
                // Not beyond this row: a lane that fills up later in the page stays behind at its last one.
                owned.fetched = row.position;
            }
        }
        for owned in self.lanes.values_mut() {
            // Not full: every row of it in this page was taken in.
            if owned.fetched >= after && !owned.full() {
                owned.fetched = owned.fetched.max(page.scanned_to);
            }
        }
        any
    }

    /// Hands a page that was read for one lane to it.
    pub(crate) fn offer_lane(
        &mut self,
        cursor: Cursor,
        after: Position,
        page: Page,
        wanted: impl Fn(&Recorded) -> bool,
    ) {
        let Some(owned) = self.get_mut(cursor).filter(|owned| owned.fetched == after) else {
            return;
        };
        for row in page.rows {
            if wanted(&row) {
                owned.push(Arc::new(row));
            }
        }
        owned.fetched = owned.fetched.max(page.scanned_to);
    }

    /// Picks work: whole lanes in turn, up to `rows_max` rows, and no more than a fair part of the lanes that have rows when
    /// others work beside; of all of them, or whoever comes later would find ever less. `suspects`: whether a suspect may be picked.
    pub(crate) fn pick(&mut self, rows_max: usize, workers: usize, suspects: bool) -> Option<Work> {
        if self.paused || self.dropped {
            return None;
        }
        let ready: Vec<Lane> = self
            .lanes
            .iter()
            .filter(|(_, owned)| owned.ready(self.stopping))
            .map(|(lane, _)| *lane)
            .collect();
        if ready.is_empty() {
            return None;
        }
        self.begun += 1;
        let begin = ready.partition_point(|lane| lane.0 < self.turn) % ready.len();
        let picked = self.lanes.values().filter(|owned| owned.busy).count();
        let lanes_max = (ready.len() + picked).div_ceil(workers.max(1));
        let mut slices = Vec::new();
        let mut room = rows_max;
        for lane in ready[begin..].iter().chain(&ready[..begin]) {
            if room == 0 || slices.len() == lanes_max {
                break;
            }
            let Some(owned) = self.lanes.get_mut(lane) else {
                continue;
            };
            if owned.is_suspect() {
                if suspects && !slices.is_empty() {
                    // Its turn is next: passed over, it would wait as long as lanes before it are ready.
                    break;
                }
                if suspects {
                    self.turn = lane.0 + 1;
                    return Some(Work::Suspects(owned.slice(*lane, rows_max, true, self.stopping)));
                }
                continue;
            }
            let slice = owned.slice(*lane, room, false, self.stopping);
            room -= slice.rows.len();
            self.turn = lane.0 + 1;
            slices.push(slice);
        }
        (!slices.is_empty()).then_some(Work::Batch(slices))
    }

    /// Takes one lane for work of another kind; `false`: it is busy, and is kept free for the asker.
    pub(crate) fn seize(&mut self, lane: Lane) -> Option<Result<Cursor, ()>> {
        let owned = self.lanes.get_mut(&lane)?;
        if owned.busy {
            owned.wanted = true;
            return Some(Err(()));
        }
        owned.busy = true;
        owned.wanted = false;
        self.begun += 1;
        Some(Ok(Cursor {
            lane,
            epoch: owned.epoch,
        }))
    }

    /// Records a committed move: queue, position, and what was marked with it.
    pub(crate) fn moved(&mut self, moves: &[Move]) {
        for step in moves {
            if let Some(owned) = self.get_mut(step.cursor) {
                owned.position = step.to;
                owned.committed = true;
                owned.fetched = owned.fetched.max(step.to);
                while owned.queue.front().is_some_and(|row| row.position <= step.to) {
                    if let Some(row) = owned.queue.pop_front() {
                        owned.queue_bytes -= weight(&row);
                    }
                }
                if let Some(marked) = step.batch_end {
                    owned.marked = owned.marked.max(marked);
                }
            }
        }
    }

    pub(crate) fn marked(&mut self, marks: &[(Cursor, Position)]) {
        for (cursor, position) in marks {
            if let Some(owned) = self.get_mut(*cursor) {
                owned.marked = owned.marked.max(*position);
                owned.committed = true;
            }
        }
    }

    /// What the batch after the next `rows` rows of a lane would be marked up to, when more is queued.
    pub(crate) fn next_mark(&self, cursor: Cursor, done: Position, rows: usize) -> Option<Position> {
        let owned = self
            .lanes
            .get(&cursor.lane)
            .filter(|owned| owned.epoch == cursor.epoch)?;
        if self.stopping || owned.leaving {
            return None;
        }
        let begin = owned.queue.partition_point(|row| row.position <= done);
        let end = (begin + rows).min(owned.queue.len());
        (end > begin).then(|| owned.queue[end - 1].position)
    }

    /// Nobody waits for this lane any more.
    pub(crate) fn not_wanted(&mut self, lane: Lane) {
        if let Some(owned) = self.lanes.get_mut(&lane) {
            owned.wanted = false;
        }
    }

    /// Gives lanes back after work.
    pub(crate) fn done(&mut self, cursors: impl IntoIterator<Item = Cursor>) {
        for cursor in cursors {
            if let Some(owned) = self.get_mut(cursor) {
                owned.busy = false;
            }
        }
    }

    pub(crate) fn has_surplus(&self) -> bool {
        self.share != 0 && self.lanes.len() > self.share
    }

    /// Lanes above the fair share that nobody works on: they leave the table and are the caller's to release. Busy ones
    /// are marked and leave later.
    pub(crate) fn surplus(&mut self) -> Vec<Cursor> {
        let extra = if self.share == 0 {
            0
        } else {
            self.lanes.len().saturating_sub(self.share)
        };
        let mut leaving: Vec<Lane> = self
            .lanes
            .iter()
            .filter(|(_, owned)| owned.leaving)
            .map(|(lane, _)| *lane)
            .collect();
        let others = self
            .lanes
            .iter()
            .rev()
            .filter(|(_, owned)| !owned.leaving)
            .map(|(lane, _)| *lane);
        let more = extra.saturating_sub(leaving.len());
        leaving.extend(others.take(more).collect::<Vec<_>>());
        leaving.truncate(extra);
        let all_leaving: HashSet<Lane> = leaving.iter().copied().collect();
        for (lane, owned) in &mut self.lanes {
            owned.leaving = all_leaving.contains(lane);
        }
        let free: Vec<Lane> = leaving
            .into_iter()
            .filter(|lane| self.lanes.get(lane).is_some_and(|owned| !owned.busy && !owned.owes()))
            .collect();
        free.into_iter()
            .filter_map(|lane| {
                self.lanes.remove(&lane).map(|owned| Cursor {
                    lane,
                    epoch: owned.epoch,
                })
            })
            .collect()
    }

    /// Steps over ranges that hold nothing for these lanes: of those that nobody works on and for which nothing waits.
    /// They are busy until [`Lanes::done`].
    pub(crate) fn idle_moves(&mut self, at_least: i64) -> Vec<Move> {
        self.begun += 1;
        let idle = self.lanes.iter_mut().filter(|(_, owned)| {
            !owned.busy && !owned.leaving && owned.queue.is_empty() && owned.fetched.0 - owned.position.0 >= at_least
        });
        idle.map(|(lane, owned)| {
            owned.busy = true;
            let cursor = Cursor {
                lane: *lane,
                epoch: owned.epoch,
            };
            Move {
                cursor,
                from: owned.position,
                to: owned.fetched,
                batch_end: None,
                confirmed: None,
            }
        })
        .collect()
    }
}
