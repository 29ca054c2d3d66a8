//! Slices of lanes, from the log to the broker: submitted and confirmed first, then one transaction moves the cursors over
//! what is settled and sets aside what was not accepted.

use super::{sender::send, state::State};
use crate::{
    batch::{self, Item, Standing, Trouble},
    clock::pace,
    failure::Failed,
    group::{Group, count},
    hold,
    lanes::Slice,
    time_limit::{Tx, ports::*},
    worker::{Stopped, held_limit, stopped},
};
use eventloom_core::{
    Position, faults,
    ports::{Backend, Cursor, Fate, HeldNow, HeldState, Move, Outgoing, Transaction},
};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// How long a message of a blocked topic waits at least.
const BLOCKED_FIRST: Duration = Duration::from_millis(200);

/// What happens to a message in the transaction that moves the cursor past it.
#[derive(Debug)]
enum Outcome {
    /// The broker has it.
    Done,
    /// It is held already, under its id: the duplicate of that one, and nothing that the broker has confirmed.
    Duplicate,
    /// It is set aside, and its key waits behind it.
    Hold(Failed, HeldState, Option<Duration>),
    /// It queues behind its key.
    Queue,
}

/// Sees to it that every message of the slices is confirmed, held or queued, and the cursors moved.
pub(crate) async fn see_through<S: Backend>(group: &Group<S>, relay: &State, slices: &[Slice]) -> Result<(), Stopped> {
    let mut standing = Standing::of(slices);
    let items: Vec<Item> = slices.iter().flat_map(items_of).collect();
    let done = items_through(group, relay, &mut standing, &items).await;
    if matches!(done, Err(Stopped::Store(_))) {
        // It may come back as another one: what it remembers is compared again.
        relay.distrust();
    }
    done
}

fn items_of(slice: &Slice) -> impl Iterator<Item = Item> {
    let cursor = slice.cursor();
    slice.rows.iter().map(move |row| Item {
        cursor,
        row: row.clone(),
        attempt: 1,
        redrives: 0,
    })
}

async fn items_through<S: Backend>(
    group: &Group<S>,
    relay: &State,
    standing: &mut Standing,
    items: &[Item],
) -> Result<(), Stopped> {
    let held = ask(group, standing, items).await.map_err(stopped)?;
    let mut fates: Vec<Option<Fate>> = vec![None; items.len()];
    let behind = |item: &Item| item.key().is_some_and(|key| held.keys.contains(key));
    let mut queued: HashSet<usize> = (0..items.len()).filter(|index| behind(&items[*index])).collect();
    let mut blamed: HashSet<usize> = HashSet::new();
    loop {
        let free: Vec<usize> = (0..items.len())
            .filter(|index| fates[*index].is_none() && !queued.contains(index))
            .filter(|index| !held.ids.contains(items[*index].id()))
            .collect();
        let outgoing: Vec<Outgoing> = free.iter().map(|index| outgoing(&items[*index])).collect();
        if faults::defect("advance_before_confirmation") {
            let all: Vec<Move> = standing.moves(items);
            commit_moves(group, standing, &all).await.map_err(stopped)?;
            send(group, relay, &outgoing).await?;
            return Ok(());
        }
        if !outgoing.is_empty() {
            let sent = send(group, relay, &outgoing).await?;
            blamed.extend(sent.blamed.iter().map(|nth| free[*nth]));
            for (index, fate) in free.into_iter().zip(sent.fates) {
                fates[index] = Some(fate);
            }
        }
        if fates.contains(&Some(Fate::Fenced)) {
            return Err(Stopped::InDoubt);
        }
        let outcomes = outcomes(group, relay, items, &fates, &queued, &blamed);
        match commit(group, relay, standing, items, &outcomes).await {
            Ok(Committed::All) => return after(items, &outcomes),
            // An operator let these keys go: they are sent like others.
            Ok(Committed::Gone(keys)) => {
                let gone = |index: usize| items[index].key().is_some_and(|key| keys.contains(key));
                queued.retain(|index| !gone(*index));
                let behind = |index: &usize| gone(*index) && fates[*index] == Some(Fate::Behind);
                let behind: Vec<usize> = (0..items.len()).filter(behind).collect();
                behind.into_iter().for_each(|index| fates[index] = None);
            }
            Err(Trouble::HeldLimit) => {
                let settled = before_holds(items, &outcomes);
                let mut moves = standing.moves(&settled);
                confirm(&mut moves, items, &outcomes);
                commit_moves(group, standing, &moves).await.map_err(stopped)?;
                relay.recorded(&moves);
                let no_room = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Hold(..) | Outcome::Queue));
                let waits = items.iter().zip(&outcomes).filter(|(_, outcome)| no_room(outcome));
                let waits: HashSet<Cursor> = waits.map(|(item, _)| item.cursor).collect();
                waits.into_iter().for_each(|cursor| held_limit(group, cursor));
                return after(items, &outcomes);
            }
            Err(Trouble::Conflict(_)) => {
                count(&group.meter.counters.conflicts, 1);
                pace(Duration::from_millis(fastrand::u64(1..20))).await;
            }
            Err(trouble) => return Err(stopped(trouble)),
        }
    }
}

/// As it is handed over; what was confirmed of its lane is known when it is.
pub(super) fn outgoing(item: &Item) -> Outgoing {
    Outgoing {
        message: item.row.clone(),
        epoch: item.cursor.epoch,
        redrives: item.redrives,
        confirmed: None,
    }
}

/// Which keys and ids are held. No transaction is opened for lanes that hold nothing.
async fn ask<S: Backend>(group: &Group<S>, standing: &Standing, items: &[Item]) -> Result<HeldNow, Trouble> {
    if !items.iter().any(|item| standing.holds(item.cursor)) {
        return Ok(HeldNow::default());
    }
    let mut tx = group.store().begin(group.scope()).await?;
    let held = batch::ask(group, &mut tx, standing, items).await?;
    tx.rollback().await?;
    Ok(held)
}

/// What becomes of each message; `None` from the first of a lane that is still to be sent.
fn outcomes<S: Backend>(
    group: &Group<S>,
    relay: &State,
    items: &[Item],
    fates: &[Option<Fate>],
    queued: &HashSet<usize>,
    blamed: &HashSet<usize>,
) -> Vec<Option<Outcome>> {
    let mut stopped: HashSet<Cursor> = HashSet::new();
    // Keys that are held, or will be by this transaction.
    let mut waiting: HashSet<&str> = HashSet::new();
    let mut outcomes = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if stopped.contains(&item.cursor) {
            outcomes.push(None);
            continue;
        }
        if queued.contains(&index) {
            outcomes.push(Some(Outcome::Queue));
            continue;
        }
        let outcome = match &fates[index] {
            None => Some(Outcome::Duplicate),
            Some(Fate::Confirmed) => Some(Outcome::Done),
            Some(Fate::Refused(why)) => Some(Outcome::Hold(Failed::permanent(why), HeldState::Dead, None)),
            Some(Fate::Blocked(why)) => {
                let breaker = relay
                    .topics()
                    .get(&item.row.envelope.topic)
                    .and_then(|topic| topic.probe_in(relay.now()));
                let due_in = breaker.unwrap_or_default().max(BLOCKED_FIRST);
                Some(Outcome::Hold(Failed::transient(why), HeldState::Waiting, Some(due_in)))
            }
            Some(Fate::Unknown(_) | Fate::Behind) if item.key().is_some_and(|key| waiting.contains(key)) => {
                Some(Outcome::Queue)
            }
            // The broker confirms others and not this one: it waits by itself, and its key behind it.
            Some(Fate::Unknown(why)) if blamed.contains(&index) => {
                let failed = Failed::transient(why);
                let (state, due_in) = hold::follows(group, &failed, item.attempt);
                Some(Outcome::Hold(failed, state, due_in))
            }
            Some(Fate::Unknown(_) | Fate::Behind | Fate::Fenced | Fate::Lost) => None,
        };
        match &outcome {
            None => drop(stopped.insert(item.cursor)),
            Some(Outcome::Hold(..)) => waiting.extend(item.key()),
            Some(_) => {}
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// What was committed.
enum Committed {
    All,
    /// Nothing: these keys are not held any more.
    Gone(HashSet<String>),
}

/// One transaction for what is settled: messages set aside, messages queued, cursors moved.
async fn commit<S: Backend>(
    group: &Group<S>,
    relay: &State,
    standing: &mut Standing,
    items: &[Item],
    outcomes: &[Option<Outcome>],
) -> Result<Committed, Trouble> {
    let store = group.store();
    let settled: Vec<Item> = settled(items, outcomes, |_| true);
    if settled.is_empty() {
        return Ok(Committed::All);
    }
    let mut tx = store.begin(group.scope()).await?;
    let mut set_aside: Vec<(&Item, Option<HeldState>)> = Vec::new();
    let queue: Vec<usize> = (0..items.len())
        .filter(|index| matches!(outcomes[*index], Some(Outcome::Queue)))
        .collect();
    let work = async {
        for (item, outcome) in items.iter().zip(outcomes) {
            if let Some(Outcome::Hold(failed, state, due_in)) = outcome {
                let new = hold::put(group, &mut tx, item, failed, *state, *due_in).await?;
                set_aside.push((item, new.then_some(*state)));
            }
        }
        if queue.is_empty() {
            return Ok(HashSet::new());
        }
        let gone = share(group, &mut tx, items, &queue).await?;
        if gone.is_empty() {
            hold::queue(group, &mut tx, items, &queue).await?;
        }
        Ok(gone)
    };
    let gone: HashSet<String> = match work.await {
        Ok(gone) => gone,
        Err(trouble) => {
            tx.rollback().await.map_err(Trouble::Store)?;
            return Err(trouble);
        }
    };
    if !gone.is_empty() {
        tx.rollback().await?;
        return Ok(Committed::Gone(gone));
    }
    let mut moves = standing.moves(&settled);
    confirm(&mut moves, items, outcomes);
    store.advance(&mut tx, group.name(), &moves).await?;
    faults::point("relay.before_commit");
    tx.commit().await?;
    faults::point("relay.after_commit");
    relay.recorded(&moves);
    let confirmed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Some(Outcome::Done)))
        .count();
    standing.moved(&moves);
    group.lanes().moved(&moves);
    group.note_keys(&settled);
    for (item, state) in set_aside {
        hold::committed(group, standing, item, state);
    }
    let duplicates = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Some(Outcome::Duplicate)))
        .count();
    count(&group.meter.counters.handled, confirmed);
    count(&group.meter.counters.duplicates, duplicates);
    count(&group.meter.counters.held, queue.len());
    count(&group.meter.counters.commits, 1);
    Ok(Committed::All)
}

/// Writes into the moves up to where the broker has confirmed each lane.
fn confirm(moves: &mut [Move], items: &[Item], outcomes: &[Option<Outcome>]) {
    let mut last: HashMap<Cursor, Position> = HashMap::new();
    let to: HashMap<Cursor, Position> = moves.iter().map(|step| (step.cursor, step.to)).collect();
    for (item, outcome) in items.iter().zip(outcomes) {
        let moved = to.get(&item.cursor).is_some_and(|to| item.row.position <= *to);
        if moved && matches!(outcome, Some(Outcome::Done)) {
            last.insert(item.cursor, item.row.position);
        }
    }
    for step in moves {
        step.confirmed = last.get(&step.cursor).copied();
    }
}

/// Locks the keys that messages queue behind; returns those that are not held any more.
async fn share<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    items: &[Item],
    queue: &[usize],
) -> Result<HashSet<String>, Trouble> {
    let mut keys: Vec<&str> = queue.iter().filter_map(|index| items[*index].key()).collect();
    keys.sort_unstable();
    keys.dedup();
    faults::point("queue.before_lock");
    let there = group.store().share_keys(tx, group.name(), &keys).await?;
    let gone = keys.into_iter().filter(|key| !there.contains(*key));
    Ok(gone.map(str::to_owned).collect())
}

async fn commit_moves<S: Backend>(group: &Group<S>, standing: &mut Standing, moves: &[Move]) -> Result<(), Trouble> {
    if moves.is_empty() {
        return Ok(());
    }
    let mut tx = group.store().begin(group.scope()).await?;
    group.store().advance(&mut tx, group.name(), moves).await?;
    tx.commit().await?;
    standing.moved(moves);
    group.lanes().moved(moves);
    Ok(())
}

/// Items that are settled, of each lane up to the first that is not, or for which `until` does not hold.
fn settled(items: &[Item], outcomes: &[Option<Outcome>], until: impl Fn(&Outcome) -> bool) -> Vec<Item> {
    let mut ended: HashSet<Cursor> = HashSet::new();
    let mut settled = Vec::with_capacity(items.len());
    for (item, outcome) in items.iter().zip(outcomes) {
        if ended.contains(&item.cursor) {
            continue;
        }
        match outcome {
            Some(outcome) if until(outcome) => settled.push(item.clone()),
            _ => drop(ended.insert(item.cursor)),
        }
    }
    settled
}

fn before_holds(items: &[Item], outcomes: &[Option<Outcome>]) -> Vec<Item> {
    settled(items, outcomes, |outcome| {
        matches!(outcome, Outcome::Done | Outcome::Duplicate)
    })
}

/// Whether anything is left to be sent: then the broker is to be asked later.
fn after(items: &[Item], outcomes: &[Option<Outcome>]) -> Result<(), Stopped> {
    let left = items
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| outcome.is_none())
        .count();
    match left {
        0 => Ok(()),
        _ => Err(Stopped::Broker),
    }
}
