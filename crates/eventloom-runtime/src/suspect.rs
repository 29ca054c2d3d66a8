//! Messages that may have killed a process: singly, each attempt committed before it runs, one at a time in a process.

use crate::{
    batch::{Item, Standing, Trouble},
    consumer::Poison,
    failure::Failed,
    group::{Group, count},
    lanes::Slice,
    worker::{Stopped, alone, hold_or_stop, stopped},
};
use eventloom_core::{
    faults,
    ports::{Backend, Transaction},
};

/// Sees suspects of one lane through. The caller holds the process's permit for suspects.
pub(crate) async fn run<S: Backend>(group: &Group<S>, slice: &Slice) -> Result<(), Stopped> {
    let mut standing = Standing::of(std::slice::from_ref(slice));
    for row in &slice.rows {
        count(&group.counters.suspects, 1);
        let mut item = Item {
            cursor: slice.cursor(),
            row: row.clone(),
            attempt: 1,
        };
        item.attempt = count_attempt(group, &item).await.map_err(stopped)?;
        let seen = see_through(group, &mut standing, item.clone()).await;
        if let Err(Stopped::Outage | Stopped::Later | Stopped::HeldLimit) = seen {
            // The process has outlived the attempt, and the message is not to blame: it does not count.
            forget_attempts(group, &item).await.map_err(stopped)?;
        }
        if seen? && group.settings.poison == Poison::Block {
            return Ok(());
        }
    }
    Ok(())
}

/// Handles one whose attempt has been counted. `true`: it was set aside.
async fn see_through<S: Backend>(group: &Group<S>, standing: &mut Standing, mut item: Item) -> Result<bool, Stopped> {
    let failed = if item.attempt > group.settings.attempts_max {
        item.attempt -= 1;
        Some(Failed::permanent(format!(
            "the process ended while handling it, {} times",
            item.attempt
        )))
    } else {
        alone(group, standing, &item, true).await?
    };
    let Some(failed) = failed else { return Ok(false) };
    hold_or_stop(group, standing, &item, failed).await?;
    Ok(true)
}

async fn forget_attempts<S: Backend>(group: &Group<S>, item: &Item) -> Result<(), Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    store.clear_attempts(&mut tx, group.name(), &[item.id()]).await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    Ok(())
}

async fn count_attempt<S: Backend>(group: &Group<S>, item: &Item) -> Result<u32, Trouble> {
    faults::point("suspect.before_count");
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    let attempts = store.count_attempt(&mut tx, group.name(), item.id()).await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    faults::point("suspect.after_count");
    Ok(attempts)
}
