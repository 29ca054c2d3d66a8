//! Sets a message aside in the transaction that moves the cursor past it, so that nothing waits but its key.

use crate::{
    batch::{Item, Standing, Trouble},
    consumer::{Mode, Poison},
    failure::Failed,
    group::{Group, count},
    time_limit::{Tx, ports::*},
};
use eventloom_core::{
    RetryClass, faults,
    ports::{Backend, EffectRequest, HeldState, NewHeld, Transaction},
};
use std::{collections::BTreeSet, time::Duration};

/// Whether a message waits in the queue of its key, or alone.
pub(crate) fn is_queued<S: Backend>(group: &Group<S>, item: &Item) -> bool {
    item.key().is_some() && group.settings.poison != Poison::Skip
}

/// What follows a failed attempt: the state, and when it is tried again.
pub(crate) fn follows<S: Backend>(group: &Group<S>, failed: &Failed, attempts: u32) -> (HeldState, Option<Duration>) {
    if failed.class == RetryClass::Permanent || attempts >= group.settings.attempts_max {
        (HeldState::Dead, None)
    } else {
        (HeldState::Waiting, Some(group.settings.backoff.after(attempts)))
    }
}

/// Holds one message and commits. Its key was asked for under this owner's epoch and was not held: it becomes the head.
pub(crate) async fn hold<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    item: &Item,
    failed: &Failed,
) -> Result<(), Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    let (state, due_in) = follows(group, failed, item.attempt);
    let new = put(group, &mut tx, item, failed, state, due_in).await?;
    store.clear_attempts(&mut tx, group.name(), &[item.id()]).await?;
    let moves = standing.moves(std::slice::from_ref(item));
    store.advance(&mut tx, group.name(), &moves).await?;
    faults::point("hold.before_commit");
    tx.commit().await?;
    faults::point("hold.after_commit");
    standing.moved(&moves);
    group.lanes().moved(&moves);
    committed(group, standing, item, new.then_some(state));
    Ok(())
}

/// After the commit of a held message: the lane holds something, and its retries are to be looked at. `None`: it was a
/// duplicate of one that is held.
pub(crate) fn committed<S: Backend>(group: &Group<S>, standing: &mut Standing, item: &Item, state: Option<HeldState>) {
    let Some(state) = state else {
        count(&group.meter.counters.duplicates, 1);
        return;
    };
    standing.set_holds(item.cursor);
    if let Some(owned) = group.lanes().get_mut(item.cursor) {
        owned.holds = true;
        if group.settings.poison == Poison::Block {
            owned.block(true);
        }
    }
    let counter = match state {
        HeldState::Dead => &group.meter.counters.dead,
        HeldState::Waiting => &group.meter.counters.held,
    };
    count(counter, 1);
    group.held.notify_one();
}

/// Inserts a failed message and, when its key waits behind it, the key. `false`: its logical id is held already, under
/// another key. Then it is done with as the duplicate of that one, whatever becomes of it, and its own key flows on: with
/// nothing of it in the queue nobody would ever let it go.
pub(crate) async fn put<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    item: &Item,
    failed: &Failed,
    state: HeldState,
    due_in: Option<Duration>,
) -> Result<bool, Trouble> {
    let store = group.store();
    let queued = is_queued(group, item);
    let limit_of = if queued { item.key() } else { None };
    room_for(group, tx, limit_of).await?;
    faults::point("hold.before_insert");
    if let Some(key) = limit_of {
        store.lock_key(tx, group.name(), key, item.cursor.lane).await?;
    }
    let held = NewHeld {
        message: &item.row,
        queued,
        state,
        attempts: item.attempt,
        due_in,
        failure: Some(&failed.failure),
    };
    let new = store
        .put(tx, group.name(), &group.process.owner, &[held], group.now())
        .await?;
    give_up(group, tx, [item]).await?;
    if new == 0
        && let Some(key) = limit_of
    {
        // The key's row of a moment ago; the look under its lock sees whether anything else stands behind it.
        store.let_go(tx, group.name(), key, group.now()).await?;
    }
    Ok(new != 0)
}

/// Whoever asks for a failed call next, the same message or a duplicate of it on another lane, is not to wait for this one.
pub(crate) async fn give_up<'i, S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    items: impl IntoIterator<Item = &'i Item>,
) -> Result<(), Trouble> {
    if group.settings.mode == Mode::Effect {
        let items = items.into_iter();
        let requests: Vec<EffectRequest<'_>> = items
            .map(|item| EffectRequest {
                id: item.id(),
                cursor: item.cursor,
            })
            .collect();
        group.store().give_up_effects(tx, group.name(), &requests).await?;
    }
    Ok(())
}

/// Queues messages behind their held keys. Their keys' rows are locked against letting go.
pub(crate) async fn queue<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    items: &[Item],
    which: &[usize],
) -> Result<(), Trouble> {
    let keys: BTreeSet<&str> = which.iter().filter_map(|index| items[*index].key()).collect();
    room_for(group, tx, keys).await?;
    let message = |index: &usize| NewHeld {
        message: &items[*index].row,
        queued: true,
        state: HeldState::Waiting,
        attempts: 0,
        due_in: None,
        failure: None,
    };
    let messages: Vec<NewHeld<'_>> = which.iter().map(message).collect();
    faults::point("queue.before_insert");
    group
        .store()
        .put(tx, group.name(), &group.process.owner, &messages, group.now())
        .await?;
    give_up(group, tx, which.iter().map(|index| &items[*index])).await
}

/// Whether more may be held, of the consumer and of these keys.
async fn room_for<'k, S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    keys: impl IntoIterator<Item = &'k str>,
) -> Result<(), Trouble> {
    let store = group.store();
    if store
        .holds_at_least(tx, group.name(), None, group.settings.held_max)
        .await?
    {
        return Err(Trouble::HeldLimit);
    }
    for key in keys {
        if store
            .holds_at_least(tx, group.name(), Some(key), group.settings.held_per_key_max)
            .await?
        {
            return Err(Trouble::HeldLimit);
        }
    }
    Ok(())
}
