//! One scan of the log feeds all consumers of a process: a window of rows near the head, read once and shared.

use eventloom_core::{
    Position, Recorded,
    ports::{Log, Page, ReadError, ReadLimits},
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{Mutex as TurnMutex, Notify};

/// Rows kept for consumers that come by later.
const WINDOW_ROWS: usize = 4096;
const WINDOW_BYTES: usize = 16 << 20;
/// Real time under any clock, as all waits for rows are: commits come from the real world.
///
/// How long a reader polls before it asks writers to wake it: sleeping between busy moments costs half the throughput.
const AWAKE: Duration = Duration::from_millis(50);
const PACE_FIRST: Duration = Duration::from_millis(1);
/// Fewer rows a second than this and a reader sleeps at once: being woken by every commit costs less than the polls between
/// them, and takes no time. (What NOTIFY costs is felt by writers that commit at once, at thousands a second.)
const SPARSE_PER_SECOND: f64 = 250.0;
/// More rows a second than this are gathered for a while, so that they share transactions: a transaction for each handful
/// would take from the writers what it costs.
const DENSE_PER_SECOND: f64 = 1000.0;
const GATHER: Duration = Duration::from_millis(40);
/// Over how long rows are counted.
const FLOW_OVER: Duration = Duration::from_millis(100);
/// The fallback: how long a sleep lasts when nobody wakes it.
const DOZE_MOST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Window {
    rows: VecDeque<Arc<Recorded>>,
    bytes: usize,
    /// Every row with `from < position <= to` is in `rows`.
    from: Position,
    to: Position,
    filled: bool,
}

/// How many rows come, as the reads at the head have seen it.
#[derive(Debug, Default)]
struct Flow {
    read_at: Option<Instant>,
    /// Rows of the last [`FLOW_OVER`]; older ones fade.
    rows: f64,
    /// The last read has come to the horizon: another one brings what was committed since.
    at_horizon: bool,
}

impl Flow {
    fn note(&mut self, now: Instant, rows: usize, at_horizon: bool) {
        self.rows = self.rows_left(now) + rows as f64;
        self.read_at = Some(now);
        self.at_horizon = at_horizon;
    }

    fn rows_left(&self, now: Instant) -> f64 {
        let passed = self
            .read_at
            .map_or(Duration::MAX, |at| now.saturating_duration_since(at));
        self.rows * (-passed.as_secs_f64() / FLOW_OVER.as_secs_f64()).exp()
    }

    fn per_second(&self, now: Instant) -> f64 {
        self.rows_left(now) / FLOW_OVER.as_secs_f64()
    }

    /// How long the next read at the head is put off.
    fn gathers(&self, now: Instant) -> Duration {
        match self.read_at {
            Some(at) if self.at_horizon && self.per_second(now) > DENSE_PER_SECOND => {
                GATHER.saturating_sub(now.saturating_duration_since(at))
            }
            _ => Duration::ZERO,
        }
    }
}

/// The shared scan.
pub(crate) struct Tail<S> {
    store: S,
    /// Larger payloads are not read.
    payload_each_max: Option<u64>,
    window: Mutex<Window>,
    flow: Mutex<Flow>,
    /// Whose turn it is to read at the head.
    reading: TurnMutex<()>,
    /// Whose turn it is to sleep for all; counts sleeps that have ended.
    dozing: TurnMutex<()>,
    woken: Mutex<u64>,
    sleepers: Mutex<Sleepers>,
    /// For whoever sleeps: somebody waits who has not come as far, and whose rows would not wake it.
    hurry: Notify,
}

/// Who sleeps, and who waits for that.
#[derive(Debug, Default)]
struct Sleepers {
    asleep_at: Option<Position>,
    waiting: Vec<Position>,
}

/// Waits for its turn to sleep, until it is dropped. Either this sees who sleeps, or whoever falls asleep sees this.
struct Waiting<'t, S>(&'t Tail<S>, Position);

impl<'t, S: Log> Waiting<'t, S> {
    fn at(tail: &'t Tail<S>, seen: Position) -> Self {
        let mut sleepers = tail.sleepers();
        sleepers.waiting.push(seen);
        if sleepers.asleep_at.is_some_and(|at| at > seen) {
            tail.hurry.notify_one();
        }
        Waiting(tail, seen)
    }
}

impl<S> Drop for Waiting<'_, S> {
    fn drop(&mut self) {
        let mut sleepers = self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = sleepers.waiting.iter().position(|seen| *seen == self.1) {
            sleepers.waiting.swap_remove(at);
        }
    }
}

/// Sleeps for all, until it is dropped.
struct Asleep<'t, S>(&'t Tail<S>);

impl<'t, S: Log> Asleep<'t, S> {
    fn at(tail: &'t Tail<S>, seen: Position) -> Self {
        let mut sleepers = tail.sleepers();
        sleepers.asleep_at = Some(seen);
        if sleepers.waiting.iter().any(|waiting| *waiting < seen) {
            tail.hurry.notify_one();
        }
        Asleep(tail)
    }
}

impl<S> Drop for Asleep<'_, S> {
    fn drop(&mut self) {
        let mut sleepers = self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.asleep_at = None;
    }
}

/// Rows shared with other consumers, and how far they reach.
#[derive(Debug)]
pub(crate) struct SharedPage {
    pub(crate) rows: Vec<Arc<Recorded>>,
    pub(crate) page: Page,
}

impl<S: Log> Tail<S> {
    pub(crate) fn new(store: S, payload_each_max: Option<u64>) -> Self {
        Tail {
            store,
            payload_each_max,
            window: Mutex::default(),
            flow: Mutex::default(),
            reading: TurnMutex::default(),
            dozing: TurnMutex::default(),
            woken: Mutex::default(),
            sleepers: Mutex::default(),
            hurry: Notify::new(),
        }
    }

    /// Rows after a position: from the window, by reading on at its end, or (far behind it) by a read of its own.
    pub(crate) async fn read_after(&self, after: Position, limits: ReadLimits) -> Result<SharedPage, ReadError> {
        let limits = limits.payload_each_max(self.payload_each_max);
        if let Some(page) = self.window().after(after, limits) {
            return Ok(page);
        }
        if !self.window().ends_at(after) {
            return self.store.read_after(after, limits).await.map(SharedPage::from);
        }
        let _turn = self.reading.lock().await;
        // While we waited, another consumer may have read on.
        if let Some(page) = self.window().after(after, limits) {
            return Ok(page);
        }
        let gathers = self.flow().gathers(Instant::now());
        if !gathers.is_zero() {
            tokio::time::sleep(gathers).await;
        }
        let begun = Instant::now();
        let page = SharedPage::from(self.store.read_after(after, limits).await?);
        let at_horizon = page.page.scanned_to >= page.page.horizon;
        self.flow().note(begun, page.rows.len(), at_horizon);
        self.window().extend(after, &page);
        Ok(page)
    }

    /// Whether so few rows come that a reader at the head sleeps at once.
    pub(crate) fn is_sparse(&self) -> bool {
        self.flow().per_second(Instant::now()) <= SPARSE_PER_SECOND
    }

    /// Waits until rows above `seen` may be there. One consumer sleeps for all.
    pub(crate) async fn idle(&self, seen: Position) -> Result<(), ReadError> {
        let before = *self.woken();
        let _turn = {
            let _waiting = Waiting::at(self, seen);
            self.dozing.lock().await
        };
        if *self.woken() != before || self.window().continues(seen) {
            return Ok(());
        }
        let begun = Instant::now();
        let mut pace = PACE_FIRST;
        while begun.elapsed() < AWAKE && !self.is_sparse() {
            tokio::time::sleep(pace).await;
            pace *= 2;
            if self.store.horizon().await?.position > seen {
                *self.woken() += 1;
                return Ok(());
            }
        }
        let disturbed = {
            let _asleep = Asleep::at(self, seen);
            tokio::select! {
                slept = self.sleep(seen) => Some(slept),
                () = self.hurry.notified() => None,
            }
        };
        match disturbed {
            Some(slept) => {
                *self.woken() += 1;
                slept
            }
            // Somebody who has not come as far sleeps for all now.
            None => Ok(()),
        }
    }

    /// Sleeps until something disturbs it. A sleep that nothing has disturbed is followed by another one, which begins with
    /// a look of its own: reading in between would find nothing.
    async fn sleep(&self, seen: Position) -> Result<(), ReadError> {
        loop {
            let begun = Instant::now();
            self.store.doze(seen, DOZE_MOST).await?;
            if begun.elapsed() < DOZE_MOST * 9 / 10 {
                return Ok(());
            }
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flow(&self) -> MutexGuard<'_, Flow> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn woken(&self) -> MutexGuard<'_, u64> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    /// Whether a read after this position can go on from the window. One that begins above it has nothing for this reader:
    /// somebody who began at the head has put it there, beyond what can be read yet.
    fn continues(&self, after: Position) -> bool {
        self.filled && self.from <= after && after < self.to
    }

    fn after(&self, after: Position, limits: ReadLimits) -> Option<SharedPage> {
        if !self.continues(after) {
            return None;
        }
        let begin = self.rows.partition_point(|row| row.position <= after);
        let rows: Vec<_> = self
            .rows
            .iter()
            .skip(begin)
            .take(limits.rows_max as usize)
            .cloned()
            .collect();
        let complete = begin + rows.len() == self.rows.len();
        let scanned_to = if complete {
            self.to
        } else {
            rows.last().map_or(self.to, |row| row.position)
        };
        Some(SharedPage {
            rows,
            page: Page {
                rows: Vec::new(),
                scanned_to,
                horizon: self.to,
            },
        })
    }

    /// Whether a read after this position continues the window, or may begin a new one nearer to the head.
    fn ends_at(&self, after: Position) -> bool {
        !self.filled || after >= self.to
    }

    fn extend(&mut self, after: Position, page: &SharedPage) {
        if !self.filled || after != self.to {
            *self = Window {
                from: after,
                to: after,
                filled: true,
                ..Window::default()
            };
        }
        for row in &page.rows {
            self.bytes += weight(row);
            self.rows.push_back(row.clone());
        }
        self.to = self.to.max(page.page.scanned_to);
        while self.rows.len() > WINDOW_ROWS || self.bytes > WINDOW_BYTES {
            let Some(row) = self.rows.pop_front() else { break };
            self.bytes -= weight(&row);
            self.from = row.position;
        }
    }
}

fn weight(row: &Recorded) -> usize {
    256 + row.envelope.payload.as_ref().map_or(0, |payload| payload.bytes().len())
}

impl From<Page> for SharedPage {
    fn from(mut page: Page) -> Self {
        let rows = std::mem::take(&mut page.rows).into_iter().map(Arc::new).collect();
        SharedPage { rows, page }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_page(scanned_to: i64) -> SharedPage {
        SharedPage::from(Page {
            rows: Vec::new(),
            scanned_to: Position(scanned_to),
            horizon: Position(scanned_to),
        })
    }

    #[test]
    fn a_window_above_the_horizon_is_no_news_for_those_below() {
        let mut window = Window::default();
        assert!(!window.continues(Position(0)), "nothing was read yet");
        // Registered at the head, 100, while a writer holds the horizon at 90.
        window.extend(Position(100), &empty_page(90));
        assert!(
            !window.continues(Position(90)),
            "it would read again and again, and find nothing"
        );
        window.extend(Position(100), &empty_page(120));
        assert!(!window.continues(Position(90)));
        assert!(window.continues(Position(100)) && window.continues(Position(119)));
        assert!(!window.continues(Position(120)));
    }

    #[test]
    fn rows_are_gathered_when_many_come_and_awaited_when_few_do() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        // Rows of each read, the milliseconds between reads, and how long the next one is put off then.
        let cases = [
            ("nothing", 0, 10, true, 0, true),
            ("100 a second", 1, 10, true, 0, true),
            ("500 a second", 5, 10, true, 0, false),
            ("5000 a second", 50, 10, true, 40, false),
            ("a backlog", 1000, 10, false, 0, false),
        ];
        for (flow_is, rows, every_ms, at_horizon, put_off_ms, sparse) in cases {
            let mut flow = Flow::default();
            assert!(flow.gathers(at(0)).is_zero() && flow.per_second(at(0)) < SPARSE_PER_SECOND);
            for nth in 0..50 {
                flow.note(at(nth * every_ms), rows, at_horizon);
            }
            let now = at(49 * every_ms);
            assert_eq!(flow.gathers(now), Duration::from_millis(put_off_ms), "{flow_is}");
            assert_eq!(flow.per_second(now) < SPARSE_PER_SECOND, sparse, "{flow_is}");
            assert!(flow.per_second(now + 5 * FLOW_OVER) < flow.per_second(now).max(1.0) / 100.0 + 1.0);
        }
    }
}
