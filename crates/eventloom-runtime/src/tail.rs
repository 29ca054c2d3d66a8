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
use tokio::sync::Mutex as TurnMutex;

/// Rows kept for consumers that come by later.
const WINDOW_ROWS: usize = 4096;
const WINDOW_BYTES: usize = 16 << 20;
/// Real time under any clock, as all waits for rows are: commits come from the real world.
///
/// How long a reader polls before it asks writers to wake it: sleeping between busy moments costs half the throughput.
const AWAKE: Duration = Duration::from_millis(50);
const PACE_FIRST: Duration = Duration::from_millis(1);
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

/// The shared scan.
pub(crate) struct Tail<S> {
    store: S,
    /// Larger payloads are not read.
    payload_each_max: Option<u64>,
    window: Mutex<Window>,
    /// Whose turn it is to read at the head.
    reading: TurnMutex<()>,
    /// Whose turn it is to sleep for all; counts sleeps that have ended.
    dozing: TurnMutex<()>,
    woken: Mutex<u64>,
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
            reading: TurnMutex::default(),
            dozing: TurnMutex::default(),
            woken: Mutex::default(),
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
        let page = SharedPage::from(self.store.read_after(after, limits).await?);
        self.window().extend(after, &page);
        Ok(page)
    }

    /// Waits until rows above `seen` may be there. One consumer sleeps for all.
    pub(crate) async fn idle(&self, seen: Position) -> Result<(), ReadError> {
        let before = *self.woken();
        let _turn = self.dozing.lock().await;
        if *self.woken() != before || self.window().continues(seen) {
            return Ok(());
        }
        let begun = Instant::now();
        let mut pace = PACE_FIRST;
        while begun.elapsed() < AWAKE {
            tokio::time::sleep(pace).await;
            pace *= 2;
            if self.store.horizon().await?.position > seen {
                *self.woken() += 1;
                return Ok(());
            }
        }
        let slept = self.store.doze(seen, DOZE_MOST).await;
        *self.woken() += 1;
        slept
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
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
}
