//! Tries held messages again when their time has come, in the order of their key, and lets keys go.
//!
//! It works on a lane as its workers do: nobody else handles a message of the lane meanwhile, so a key is handled by one
//! task at a time. A drain that is cut short is found by its successor through the marks on the rows.

use crate::{
    batch::{Item, Transacted, Trouble},
    calls,
    clock::pace,
    consumer::{Mode, Poison},
    failure::Failed,
    group::{Group, count},
    hold,
    losing::{AfterLoss, Losses},
    relay,
    suspect::{self, Counted},
    time_limit::{Tx, ports::*},
    worker::{Stopped, stopped},
};
use eventloom_core::{
    Epoch, Lane, NewEvent, faults,
    ports::{Attempted, Backend, Cursor, Due, HeldMessage, HeldState, LetGo, Transaction},
};
use futures::{StreamExt, stream};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Messages of one key that share a transaction, and due messages looked at in one go.
const TOGETHER_MAX: u32 = 64;
const DUE_MAX: u32 = 256;
/// How often held messages are looked at for what somebody else changed (a redrive, a deletion).
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon a lane that was lost or stopped is looked at again.
const BUSY_PACE: Duration = Duration::from_millis(5);
/// How soon a suspect asks again for its turn.
const LATER_PACE: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_millis(500);
/// Lanes that are looked at each time for whether they still hold anything.
const LANES_LOOKED_AT: usize = 8;

/// Runs until the process stops.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>) {
    let mut turn = 0;
    while !group.is_stopping() {
        // Before the look: what is due next is told from its moment on.
        let looked = group.process.clock.now();
        let rest = match round(&group, &mut turn).await {
            Ok(rest) => Ok(looked + rest),
            Err(Stopped::Store(error)) => {
                group.note_trouble("cannot look at held messages", &error);
                Err(RETRY)
            }
            Err(Stopped::Later) => Err(LATER_PACE),
            Err(_) => Err(BUSY_PACE),
        };
        let rested = async {
            match rest {
                Ok(until) => group.process.clock.sleep_until(until).await,
                Err(pause) => pace(pause).await,
            }
        };
        tokio::select! {
            () = group.held.notified() => {}
            () = rested => {}
            () = group.process.stopping.cancelled() => {}
        }
    }
}

/// One look at everything held in owned lanes. Returns how long to rest.
async fn round<S: Backend>(group: &Group<S>, turn: &mut usize) -> Result<Duration, Stopped> {
    let lanes = group.lanes().holding();
    if lanes.is_empty() {
        return Ok(Duration::from_secs(3600));
    }
    let stopped = {
        let lanes = group.lanes();
        lanes.paused || lanes.dropped
    };
    if stopped {
        return Ok(LOOK_EVERY);
    }
    let unswept = group.lanes().unswept();
    for lane in unswept {
        on_lane(group, lane, async |cursor| sweep(group, cursor).await).await?;
    }
    let probe_in = group.probe_in();
    // In an outage one message at a time tells whether it is over.
    let due_max = match probe_in {
        None => DUE_MAX,
        Some(wait) if wait.is_zero() => 1,
        Some(wait) => return Ok(wait),
    };
    let (due, next) = group
        .store()
        .due(group.name(), &lanes, due_max, group.now())
        .await
        .map_err(Stopped::Store)?;
    let mut by_lane: BTreeMap<Lane, Vec<Due>> = BTreeMap::new();
    for due in due {
        by_lane.entry(due.lane).or_default().push(due);
    }
    let any = !by_lane.is_empty();
    // Lanes beside each other: one that is busy or slow holds up nobody else's retries.
    let mut drains = stream::iter(by_lane.into_iter().map(|(lane, due)| drain_lane(group, lane, due)))
        .buffer_unordered(group.settings.workers as usize);
    let mut worst = Ok(());
    while let Some(drained) = drains.next().await {
        worst = worst.and(drained);
    }
    drop(drains);
    worst?;
    for _ in 0..LANES_LOOKED_AT.min(lanes.len()) {
        *turn = (*turn + 1) % lanes.len();
        on_lane(group, lanes[*turn], async |cursor| look(group, cursor).await).await?;
    }
    Ok(if any {
        Duration::ZERO
    } else {
        next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)
    })
}

async fn drain_lane<S: Backend>(group: &Group<S>, lane: Lane, due: Vec<Due>) -> Result<(), Stopped> {
    on_lane(group, lane, async |cursor| {
        for due in due {
            drain(group, cursor, due).await?;
        }
        Ok(())
    })
    .await
}

/// Works on one lane as long as the lease is good, once its worker has given it back.
async fn on_lane<S: Backend>(
    group: &Group<S>,
    lane: Lane,
    work: impl AsyncFnOnce(Cursor) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let cursor = loop {
        let changed = group.changed.notified();
        let seized = group.lanes().seize(lane);
        match seized {
            None => return Ok(()),
            Some(Ok(cursor)) => break cursor,
            Some(Err(())) => {
                tokio::select! {
                    () = changed => {}
                    () = group.process.stopping.cancelled() => {
                        group.lanes().not_wanted(lane);
                        return Ok(());
                    }
                }
            }
        }
    };
    match group.within_lease(&[cursor], work(cursor)).await {
        Some(Ok(())) => {
            group.done([cursor]);
            Ok(())
        }
        Some(Err(error @ (Stopped::Outage | Stopped::Broker | Stopped::HeldLimit | Stopped::Later))) => {
            group.done([cursor]);
            Err(error)
        }
        Some(Err(error)) => {
            group.forget([cursor]);
            Err(error)
        }
        None => {
            group.forget([cursor]);
            Err(Stopped::InDoubt)
        }
    }
}

/// After a lane was taken: lets go, or wakes, what its former owner had no time for.
async fn sweep<S: Backend>(group: &Group<S>, cursor: Cursor) -> Result<(), Stopped> {
    let mut after = String::new();
    loop {
        let keys = group
            .store()
            .keys_of_lane(group.name(), cursor.lane, &after, TOGETHER_MAX)
            .await
            .map_err(Stopped::Store)?;
        let Some(last) = keys.last() else { break };
        after.clone_from(last);
        for key in &keys {
            let_go(group, cursor, key).await?;
        }
    }
    if let Some(owned) = group.lanes().get_mut(cursor) {
        owned.swept = true;
    }
    Ok(())
}

/// Finds out whether a lane still holds anything. Only its owner holds, so a lane that is free stays free.
async fn look<S: Backend>(group: &Group<S>, cursor: Cursor) -> Result<(), Stopped> {
    let holds = group
        .store()
        .lane_holds(group.name(), cursor.lane)
        .await
        .map_err(Stopped::Store)?;
    if let Some(owned) = group.lanes().get_mut(cursor)
        && !holds
    {
        owned.holds = false;
        if group.settings.poison == Poison::Block {
            owned.block(false);
        }
    }
    Ok(())
}

/// Tries a due message again; heading a queue, it takes those behind it along.
async fn drain<S: Backend>(group: &Group<S>, cursor: Cursor, due: Due) -> Result<(), Stopped> {
    let Some(key) = &due.queue else {
        let held = group
            .store()
            .held_message(group.name(), &due.id)
            .await
            .map_err(Stopped::Store)?;
        let held: Vec<_> = held
            .into_iter()
            .filter(|held| held.state == HeldState::Waiting)
            .collect();
        return handle(group, cursor, &held).await.map(drop);
    };
    loop {
        let queue = group
            .store()
            .queue_of(group.name(), key, TOGETHER_MAX)
            .await
            .map_err(Stopped::Store)?;
        let ready: Vec<_> = queue
            .iter()
            .take_while(|held| held.state == HeldState::Waiting)
            .cloned()
            .collect();
        match handle(group, cursor, &ready).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(stopped @ (Stopped::Outage | Stopped::Broker | Stopped::Later)) => {
                // It stopped for now with the lane still ours: what was handled before has left a head without a due time,
                // and no sweep comes by here again.
                let_go(group, cursor, key).await?;
                return Err(stopped);
            }
            Err(stopped) => return Err(stopped),
        }
        if ready.len() < queue.len() {
            // The next one is dead, and the key waits behind it.
            return Ok(());
        }
        if let_go(group, cursor, key).await? == LetGo::Free {
            return Ok(());
        }
    }
}

/// Handles held messages in order. `false`: one failed, and what follows it waits.
async fn handle<S: Backend>(group: &Group<S>, cursor: Cursor, held: &[HeldMessage]) -> Result<bool, Stopped> {
    let items: Vec<Item> = held.iter().map(|held| item(cursor, held)).collect();
    let suspect = |held: &HeldMessage| held.taken_epoch.is_some_and(|epoch| epoch != cursor.epoch);
    let mut at = 0;
    while at < items.len() {
        if suspect(&held[at]) {
            if !handle_suspect(group, &items[at]).await? {
                return Ok(false);
            }
            at += 1;
            continue;
        }
        let end = (at..items.len())
            .find(|index| suspect(&held[*index]))
            .unwrap_or(items.len());
        if !handle_together(group, &items[at..end]).await? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

fn item(cursor: Cursor, held: &HeldMessage) -> Item {
    Item {
        cursor,
        row: Arc::new(held.message.clone()),
        attempt: held.attempts + 1,
        redrives: held.redrives,
    }
}

/// Messages that a process may have died of: one at a time in this process, each attempt committed before it runs.
async fn handle_suspect<S: Backend>(group: &Group<S>, item: &Item) -> Result<bool, Stopped> {
    let permit = group.process.suspects.clone().try_acquire_owned();
    let Ok(_permit) = permit else {
        // Another suspect is running somewhere in this process; this one stays due.
        return Err(Stopped::Later);
    };
    count(&group.meter.counters.suspects, 1);
    let mut item = item.clone();
    item.attempt = suspect::count(group, &item, Counted::OfTheHeld)
        .await
        .map_err(stopped)?;
    if item.attempt > group.settings.attempts_max {
        item.attempt -= 1;
        let failed = Failed::permanent(format!("the process ended while handling it, {} times", item.attempt));
        fail(group, &item, &failed).await.map_err(stopped)?;
        return Ok(false);
    }
    let handled = handle_together(group, std::slice::from_ref(&item)).await;
    if handled.is_err() {
        suspect::take_back(group, &item, Counted::OfTheHeld).await;
    }
    handled
}

/// Handles messages of one key in one transaction; around one that fails, as a batch does.
async fn handle_together<S: Backend>(group: &Group<S>, items: &[Item]) -> Result<bool, Stopped> {
    if items.is_empty() {
        return Ok(true);
    }
    if group.settings.mode == Mode::Effect {
        return calls::drain(group, items).await;
    }
    if let Some(relay) = &group.relay {
        return relay::drain(group, relay, items).await;
    }
    commit_mark(group, items).await.map_err(stopped)?;
    let mut rest = items;
    let mut together = items.len();
    let mut losses = Losses::new(group.settings.lease);
    while !rest.is_empty() {
        let now = &rest[..together.min(rest.len())];
        match run_together(group, now).await {
            Ok(done) => {
                rest = &rest[done..];
                losses = Losses::new(group.settings.lease);
            }
            // What stands before it is done first, then it is looked at by itself.
            Err(Trouble::Message { index, .. }) if index > 0 => together = index,
            Err(Trouble::Message { failed, .. }) => {
                count(&group.meter.counters.failures, 1);
                return failed_again(group, &now[0], failed).await;
            }
            Err(Trouble::Conflict(_)) if now.len() > 1 => {
                count(&group.meter.counters.conflicts, 1);
                together = 1;
                losses = Losses::new(group.settings.lease);
            }
            Err(Trouble::Conflict(by_handler)) => {
                count(&group.meter.counters.conflicts, 1);
                match losses.lost(by_handler) {
                    AfterLoss::Again(pause) => pace(pause).await,
                    AfterLoss::Fails(failed) => {
                        count(&group.meter.counters.failures, 1);
                        return failed_again(group, &now[0], failed).await;
                    }
                    AfterLoss::Later => return Err(Stopped::Later),
                }
            }
            Err(Trouble::Somebody(_)) if now.len() > 1 => together = now.len() / 2,
            Err(Trouble::Somebody(error)) => {
                let what = "the handler returned, and then the store refused its transaction";
                return failed_again(group, &now[0], Failed::transient(format!("{what}: {error}"))).await;
            }
            Err(trouble) => return Err(stopped(trouble)),
        }
    }
    Ok(true)
}

/// Returns how many were handled: those of the beginning, where more would take too long.
async fn run_together<S: Backend>(group: &Group<S>, items: &[Item]) -> Result<usize, Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    let mut work = Transacted::new(group);
    let all: Vec<usize> = (0..items.len()).collect();
    let items = match work.handle(&mut tx, items, &all).await {
        Ok(done) => &items[..done],
        Err(trouble) => {
            tx.rollback().await.map_err(Trouble::Store)?;
            return Err(work.whose(trouble));
        }
    };
    let finished = finish(group, tx, items, &work.outgoing).await;
    finished.map_err(|trouble| work.whose(trouble))?;
    faults::point("drain.after_commit");
    work.settle(items);
    Ok(items.len())
}

/// What follows the handlers in their transaction, up to its commit.
async fn finish<S: Backend>(
    group: &Group<S>,
    mut tx: Tx<S>,
    items: &[Item],
    outgoing: &[NewEvent],
) -> Result<(), Trouble> {
    faults::point("drain.before_remove");
    remove(group, &mut tx, items).await?;
    if !outgoing.is_empty() {
        group.append(&mut tx, outgoing).await?;
    }
    group.store().fence(&mut tx, group.name(), &[items[0].cursor]).await?;
    faults::point("drain.before_commit");
    tx.commit().await?;
    Ok(())
}

/// Removes what was handled. One that is gone was answered for by somebody else: then nothing of this is committed.
pub(crate) async fn remove<S: Backend>(group: &Group<S>, tx: &mut Tx<S>, items: &[Item]) -> Result<(), Trouble> {
    let mut ids: Vec<&str> = items.iter().map(Item::id).collect();
    ids.sort_unstable();
    let removed = group.store().remove(tx, group.name(), &ids).await?;
    if removed == ids.len() as u64 {
        Ok(())
    } else {
        Err(Trouble::InDoubt)
    }
}

async fn commit_mark<S: Backend>(group: &Group<S>, items: &[Item]) -> Result<(), Trouble> {
    faults::point("drain.before_mark");
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    mark(group, &mut tx, items, items[0].cursor.epoch).await?;
    store.fence(&mut tx, group.name(), &[items[0].cursor]).await?;
    tx.commit().await?;
    faults::point("drain.after_mark");
    Ok(())
}

pub(crate) async fn mark<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    items: &[Item],
    epoch: Epoch,
) -> Result<(), Trouble> {
    let mut ids: Vec<&str> = items.iter().map(Item::id).collect();
    ids.sort_unstable();
    group.store().mark_taken(tx, group.name(), &ids, epoch).await?;
    Ok(())
}

/// Records that a held message failed once more, unless most keys fail. Always `false`: what follows it waits.
pub(crate) async fn failed_again<S: Backend>(group: &Group<S>, item: &Item, failed: Failed) -> Result<bool, Stopped> {
    if group.blames_an_outage(item.key_or_id(), &failed) {
        put_off(group, item).await.map_err(stopped)?;
        return Err(Stopped::Outage);
    }
    tracing::warn!(consumer = %group.name(), id = item.id(), attempt = item.attempt, error = %failed.failure.error,
        "a held message failed again");
    fail(group, item, &failed).await.map_err(stopped)?;
    Ok(false)
}

pub(crate) async fn fail<S: Backend>(group: &Group<S>, item: &Item, failed: &Failed) -> Result<(), Trouble> {
    let store = group.store();
    faults::point("drain.before_fail");
    let then = match hold::follows(group, failed, item.attempt) {
        (HeldState::Waiting, due_in) => Attempted::Again(due_in.unwrap_or_default()),
        (HeldState::Dead, _) => Attempted::Dead,
    };
    let mut tx = store.begin(group.scope()).await?;
    let there = store
        .fail(
            &mut tx,
            group.name(),
            item.id(),
            &failed.failure,
            item.attempt,
            then,
            group.now(),
        )
        .await?;
    if !there {
        return Err(Trouble::InDoubt);
    }
    hold::give_up(group, &mut tx, [item]).await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    if then == Attempted::Dead {
        count(&group.meter.counters.dead, 1);
    }
    Ok(())
}

async fn put_off<S: Backend>(group: &Group<S>, item: &Item) -> Result<(), Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    store
        .put_off(&mut tx, group.name(), &[item.id()], RETRY, group.now())
        .await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    Ok(())
}

/// Lets a key go in a transaction of its own, which touches only the key's row, `held` and the cursor.
async fn let_go<S: Backend>(group: &Group<S>, cursor: Cursor, key: &str) -> Result<LetGo, Stopped> {
    let store = group.store();
    loop {
        let attempt = async {
            let mut tx = store.begin(group.scope()).await?;
            let found = store.let_go(&mut tx, group.name(), key, group.now()).await?;
            store.fence(&mut tx, group.name(), &[cursor]).await?;
            faults::point("letgo.before_commit");
            tx.commit().await?;
            faults::point("letgo.after_commit");
            Ok::<_, Trouble>(found)
        };
        match attempt.await {
            Ok(found) => return Ok(found),
            Err(Trouble::Conflict(_)) => pace(Duration::from_millis(fastrand::u64(1..20))).await,
            Err(trouble) => return Err(stopped(trouble)),
        }
    }
}
