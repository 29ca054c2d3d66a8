//! Work that nobody waits for: cursors over ranges that hold nothing, pruning, and forgetting what was handled long ago.

use crate::{
    group::{Group, Process, count},
    time_limit::ports::*,
};
use eventloom_core::{
    StoreError, chain,
    ports::{Backend, Cursor, Move, Transaction},
};
use std::{sync::Arc, time::Duration};

/// How often idle cursors follow the log.
const STRIDE_EVERY: Duration = Duration::from_secs(2);
const PRUNE_EVERY: Duration = Duration::from_secs(10);
const ROWS_MAX: u32 = 2000;

/// Moves cursors of lanes for which nothing waits; runs until the process stops.
pub(crate) async fn stride<S: Backend>(group: Arc<Group<S>>) {
    while pause(&group.process, STRIDE_EVERY).await {
        let moves = group.lanes().idle_moves(1);
        if moves.is_empty() {
            continue;
        }
        let cursors: Vec<Cursor> = moves.iter().map(|step| step.cursor).collect();
        match group.within_lease(&cursors, commit_moves(&group, &moves)).await {
            Some(Ok(())) => {
                group.lanes().moved(&moves);
                group.done(cursors);
            }
            Some(Err(error)) => {
                tracing::debug!(consumer = %group.name(), error = %chain(&error), "idle cursors were not moved");
                count(&group.meter.counters.fenced, 1);
                group.forget(cursors);
            }
            None => group.forget(cursors),
        }
    }
}

async fn commit_moves<S: Backend>(group: &Group<S>, moves: &[Move]) -> Result<(), eventloom_core::ports::FenceError> {
    let mut tx = group.store().begin(group.scope()).await?;
    group.store().advance(&mut tx, group.name(), moves).await?;
    tx.commit().await?;
    Ok(())
}

/// How long things are kept that nobody needs any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    /// Rows of the log; `None`: for ever.
    pub(crate) log: Option<Duration>,
    /// Keys of [`once`](crate::once); `None`: for ever.
    pub(crate) once: Option<Duration>,
}

/// When something is looked at next: soon where there was something to do, later and later where there was nothing, since an
/// idle process is to ask its database for next to nothing.
struct Turn {
    rounds_left: u32,
    rounds: u32,
}

impl Turn {
    const ROUNDS_MAX: u32 = 24;

    fn first() -> Self {
        Turn {
            rounds_left: 1,
            rounds: 1,
        }
    }

    fn has_come(&mut self) -> bool {
        self.rounds_left -= 1;
        self.rounds_left == 0
    }

    /// After the turn.
    fn done(&mut self, rows: u64) {
        self.rounds = match rows {
            0 => (self.rounds * 3).min(Self::ROUNDS_MAX),
            _ => 1,
        };
        self.rounds_left = self.rounds;
    }
}

/// Prunes the log, the inboxes and the keys of requests in bounded steps; runs until the process stops.
pub(crate) async fn prune<S: Backend>(process: Arc<Process<S>>, groups: Vec<Arc<Group<S>>>, keep: Keep) {
    let (mut once, mut log) = (Turn::first(), Turn::first());
    let mut inboxes: Vec<Turn> = groups.iter().map(|_| Turn::first()).collect();
    while pause(&process, PRUNE_EVERY).await {
        if let Some(window) = keep.once
            && once.has_come()
        {
            once.done(told(
                "keys of requests were not pruned",
                forget_once(&process, window).await,
            ));
        }
        if let Some(keep) = keep.log
            && log.has_come()
        {
            log.done(told("the log was not pruned", prune_log(&process, keep).await));
        }
        let inboxes = groups
            .iter()
            .zip(&mut inboxes)
            .filter(|(group, _)| group.settings.inbox);
        for (group, turn) in inboxes {
            if turn.has_come() {
                turn.done(told("the inbox was not pruned", forget_handled(group).await));
            }
        }
    }
}

/// Rows that are gone; trouble is told, and tried again soon.
fn told(what: &str, pruned: Result<u64, StoreError>) -> u64 {
    pruned.unwrap_or_else(|error| {
        tracing::warn!(error = %chain(&error), "{what}");
        1
    })
}

async fn prune_log<S: Backend>(process: &Process<S>, keep: Duration) -> Result<u64, StoreError> {
    let mut rows = 0;
    while !process.stopping.is_cancelled() {
        let pruned = process.store.prune(keep, ROWS_MAX, process.clock.bind()).await?;
        rows += pruned.rows;
        if !pruned.more {
            break;
        }
    }
    Ok(rows)
}

async fn forget_once<S: Backend>(process: &Process<S>, window: Duration) -> Result<u64, StoreError> {
    let mut all = 0;
    while !process.stopping.is_cancelled() {
        let now = process.clock.bind();
        let rows = process.store.forget_once(window, ROWS_MAX, now).await?;
        all += rows;
        if rows < u64::from(ROWS_MAX) {
            break;
        }
    }
    Ok(all)
}

async fn forget_handled<S: Backend>(group: &Group<S>) -> Result<u64, StoreError> {
    let mut all = 0;
    while !group.is_stopping() {
        let window = group.settings.inbox_window;
        let forget = group
            .store()
            .forget_handled(group.name(), window, ROWS_MAX, group.now());
        let rows = forget.await?;
        all += rows;
        if rows < u64::from(ROWS_MAX) {
            break;
        }
    }
    Ok(all)
}

/// `false`: the process stops.
pub(crate) async fn pause<S: Backend>(process: &Process<S>, pause: Duration) -> bool {
    // Instances that were started together do not stay together.
    let pause = pause.mul_f64(0.75 + fastrand::f64() / 2.0);
    tokio::select! {
        () = process.clock.sleep(pause) => true,
        () = process.stopping.cancelled() => false,
    }
}
