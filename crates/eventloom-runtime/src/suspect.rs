//! Messages that may have killed a process: singly, each attempt committed before it runs, one at a time in a process.

use crate::{
    batch::{Item, Standing, Trouble},
    consumer::Poison,
    drain,
    failure::Failed,
    group::{self, Group},
    lanes::Slice,
    time_limit::{Tx, ports::*},
    worker::{Stopped, alone, hold_or_stop, stopped},
};
use eventloom_core::{
    faults,
    ports::{Backend, Transaction},
};
use std::collections::HashSet;

/// Sees suspects of one lane through. The caller holds the process's permit for suspects.
pub(crate) async fn run<S: Backend>(group: &Group<S>, slice: &Slice) -> Result<(), Stopped> {
    let mut standing = Standing::of(std::slice::from_ref(slice));
    for row in &slice.rows {
        group::count(&group.meter.counters.suspects, 1);
        let mut item = Item {
            redrives: 0,
            cursor: slice.cursor(),
            row: row.clone(),
            attempt: 1,
        };
        item.attempt = count(group, &item, Counted::OfTheLog).await.map_err(stopped)?;
        let seen = see_through(group, &mut standing, item.clone()).await;
        if seen.is_err() {
            // The process has outlived the attempt, and the message is not to blame: it does not count.
            take_back(group, &item, Counted::OfTheLog).await;
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

/// Where attempts of a suspect are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    OfTheLog,
    OfTheHeld,
}

/// Attempts that were counted, cost none, and could not be taken back since the store was in trouble. The next count of the
/// same message takes them back first; a process that ends forgets them, and then they cost one.
#[derive(Debug, Default)]
pub(crate) struct Owed(HashSet<(Counted, String)>);

impl Owed {
    /// More than one process has at a time: a suspect is alone. Beyond it an attempt is lost, which is no loss of a message.
    const MOST: usize = 1024;

    fn note(&mut self, of: Counted, id: &str) {
        if self.0.len() < Self::MOST {
            self.0.insert((of, id.to_owned()));
        }
    }

    fn settle(&mut self, of: Counted, id: &str) -> bool {
        self.0.remove(&(of, id.to_owned()))
    }
}

/// Counts an attempt, and commits that before it runs. Returns how many there are, this one included.
pub(crate) async fn count<S: Backend>(group: &Group<S>, item: &Item, of: Counted) -> Result<u32, Trouble> {
    faults::point("suspect.before_count");
    let owed = group.owed().settle(of, item.id());
    let counted = commit_count(group, item, of, owed).await;
    if owed && counted.is_err() {
        // Whether or not it was committed: one more is counted than was run.
        group.owed().note(of, item.id());
    }
    faults::point("suspect.after_count");
    counted
}

async fn commit_count<S: Backend>(group: &Group<S>, item: &Item, of: Counted, owed: bool) -> Result<u32, Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    if owed {
        uncount(group, &mut tx, item, of).await?;
    }
    let attempts = match of {
        Counted::OfTheLog => store.count_attempt(&mut tx, group.name(), item.id()).await?,
        Counted::OfTheHeld => {
            let attempts = store.count_held_attempt(&mut tx, group.name(), item.id()).await?;
            drain::mark(group, &mut tx, std::slice::from_ref(item), item.cursor.epoch).await?;
            attempts
        }
    };
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    Ok(attempts)
}

/// Takes an attempt back that was not the message's. When the store is in trouble that is done by the next count.
pub(crate) async fn take_back<S: Backend>(group: &Group<S>, item: &Item, of: Counted) {
    let taken_back = async {
        let store = group.store();
        let mut tx = store.begin(group.scope()).await?;
        uncount(group, &mut tx, item, of).await?;
        store.fence(&mut tx, group.name(), &[item.cursor]).await?;
        tx.commit().await?;
        Ok(())
    };
    match taken_back.await {
        // In doubt: another owner counts now, or it has happened. Twice would be too much.
        Ok(()) | Err(Trouble::InDoubt) => {}
        Err(_) => group.owed().note(of, item.id()),
    }
}

async fn uncount<S: Backend>(group: &Group<S>, tx: &mut Tx<S>, item: &Item, of: Counted) -> Result<(), Trouble> {
    let store = group.store();
    match of {
        Counted::OfTheLog => store.uncount_attempt(tx, group.name(), item.id()).await?,
        Counted::OfTheHeld => store.uncount_held_attempt(tx, group.name(), item.id()).await?,
    }
    Ok(())
}
