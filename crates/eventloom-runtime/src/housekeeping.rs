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

/// Prunes the log, the inboxes and the keys of requests in bounded steps; runs until the process stops.
pub(crate) async fn prune<S: Backend>(process: Arc<Process<S>>, groups: Vec<Arc<Group<S>>>, keep: Keep) {
    while pause(&process, PRUNE_EVERY).await {
        if let Some(window) = keep.once
            && let Err(error) = forget_once(&process, window).await
        {
            tracing::warn!(error = %chain(&error), "keys of requests were not pruned");
        }
        if let Some(keep) = keep.log
            && let Err(error) = prune_log(&process, keep).await
        {
            tracing::warn!(error = %chain(&error), "the log was not pruned");
        }
        for group in &groups {
            if let Err(error) = forget_handled(group).await {
                tracing::warn!(consumer = %group.name(), error = %chain(&error), "the inbox was not pruned");
            }
        }
    }
}

async fn prune_log<S: Backend>(process: &Process<S>, keep: Duration) -> Result<(), StoreError> {
    while !process.stopping.is_cancelled() {
        let pruned = process.store.prune(keep, ROWS_MAX, process.clock.bind()).await?;
        if !pruned.more {
            break;
        }
    }
    Ok(())
}

async fn forget_once<S: Backend>(process: &Process<S>, window: Duration) -> Result<(), StoreError> {
    while !process.stopping.is_cancelled() {
        let rows = process
            .store
            .forget_once(window, ROWS_MAX, process.clock.bind())
            .await?;
        if rows < u64::from(ROWS_MAX) {
            break;
        }
    }
    Ok(())
}

async fn forget_handled<S: Backend>(group: &Group<S>) -> Result<(), StoreError> {
    while !group.is_stopping() {
        let window = group.settings.inbox_window;
        let rows = group
            .store()
            .forget_handled(group.name(), window, ROWS_MAX, group.now())
            .await?;
        if rows < u64::from(ROWS_MAX) {
            break;
        }
    }
    Ok(())
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
