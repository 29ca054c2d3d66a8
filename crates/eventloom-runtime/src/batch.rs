//! Handles messages of several lanes in one transaction: inbox, effects, results, published events and cursors commit
//! together, or not at all.
//!
//! What may interleave, and why it is safe:
//!
//! - a successor takes a lane at any moment: the cursor statement, last before COMMIT, finds another epoch, and all is
//!   rolled back;
//! - the answer to COMMIT is lost: the lane is forgotten and taken anew, from the place that the tables know;
//! - a key is let go while a message queues to it: `queue_behind` locks the key's row first, and handles what it cannot lock;
//! - another transaction claims the same logical id: the claim waits for its end.

use crate::{
    consumer::Handlers,
    context::Context,
    failure::Failed,
    group::{Group, count},
    hold,
    lanes::Slice,
    meter::Ended,
    time_limit::{Tx, ports::*},
};
use eventloom_core::{
    NewEvent, Position, Recorded, RetryClass, StoreError, StoreErrorKind, faults,
    ports::{Backend, Claim, Cursor, FenceError, HeldNow, Move, Transaction},
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Instant,
};

/// A message of a batch, with the lane that it moves.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) cursor: Cursor,
    pub(crate) row: Arc<Recorded>,
    /// Which attempt a failure would be.
    pub(crate) attempt: u32,
    /// How often it was sent again by hand.
    pub(crate) redrives: u32,
}

impl Item {
    pub(crate) fn id(&self) -> &str {
        &self.row.envelope.id
    }

    pub(crate) fn key(&self) -> Option<&str> {
        // An empty key asks for no order: other programs write it where they have none.
        self.row.envelope.key.as_deref().filter(|key| !key.is_empty())
    }

    pub(crate) fn topic(&self) -> &str {
        &self.row.envelope.topic
    }

    pub(crate) fn key_or_id(&self) -> &str {
        self.key().unwrap_or(self.id())
    }
}

/// Where the lanes of a batch stand, as this owner has committed them.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    lanes: BTreeMap<Cursor, (Position, bool)>,
    /// The first answer of [`ask`], which only the planted defect keeps.
    asked_once: Option<HeldNow>,
}

impl Standing {
    pub(crate) fn of(slices: &[Slice]) -> Self {
        Standing {
            lanes: slices
                .iter()
                .map(|slice| (slice.cursor(), (slice.position, slice.holds)))
                .collect(),
            asked_once: None,
        }
    }

    pub(crate) fn position(&self, cursor: Cursor) -> Position {
        self.lanes
            .get(&cursor)
            .map_or(Position::START, |(position, _)| *position)
    }

    pub(crate) fn holds(&self, cursor: Cursor) -> bool {
        self.lanes.get(&cursor).is_none_or(|(_, holds)| *holds)
    }

    pub(crate) fn set_holds(&mut self, cursor: Cursor) {
        if let Some((_, holds)) = self.lanes.get_mut(&cursor) {
            *holds = true;
        }
    }

    /// The steps that these messages complete, in the order of lanes.
    pub(crate) fn moves(&self, items: &[Item]) -> Vec<Move> {
        let mut to: BTreeMap<Cursor, Position> = BTreeMap::new();
        for item in items {
            to.insert(item.cursor, item.row.position);
        }
        to.into_iter()
            .filter_map(|(cursor, to)| {
                let (from, _) = self.lanes.get(&cursor)?;
                Some(Move {
                    cursor,
                    from: *from,
                    to,
                    batch_end: None,
                    confirmed: None,
                })
            })
            .collect()
    }

    pub(crate) fn moved(&mut self, moves: &[Move]) {
        for step in moves {
            if let Some((position, _)) = self.lanes.get_mut(&step.cursor) {
                *position = step.to;
            }
        }
    }
}

/// Why a transaction did not commit. It is rolled back in each case but [`Trouble::InDoubt`].
#[derive(Debug)]
pub(crate) enum Trouble {
    /// This message's handler failed.
    Message { index: usize, failed: Failed },
    /// Lost against another transaction: run it again. With what a handler returned, when it was one that lost.
    Conflict(Option<Failed>),
    /// Something of these messages made the store refuse, and it is not known which.
    Somebody(StoreError),
    /// The lanes are somebody else's, or it is not known whether it committed: drop the work.
    InDoubt,
    /// The store is in trouble.
    Store(StoreError),
    /// A limit of what may be held is reached.
    HeldLimit,
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::Conflict => Trouble::Conflict(None),
            StoreErrorKind::Indeterminate => Trouble::InDoubt,
            StoreErrorKind::Aborted | StoreErrorKind::Constraint | StoreErrorKind::Timeout | StoreErrorKind::Other => {
                Trouble::Somebody(error)
            }
            _ => Trouble::Store(error),
        }
    }
}

impl From<FenceError> for Trouble {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Store(error) => error.into(),
            _ => Trouble::InDoubt,
        }
    }
}

/// Handles messages in one transaction and commits their cursors. Returns how many: those of the beginning, where more would
/// take too long.
pub(crate) async fn run<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    items: &[Item],
    suspect: bool,
) -> Result<usize, Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    faults::point("batch.after_begin");
    let mut work = Transacted::new(group);
    let items = match work.messages(&mut tx, standing, items).await {
        Ok(done) => &items[..done],
        Err(trouble) => {
            // A rollback that fails means that the connection is gone: then the store is to blame, not the message.
            if let Err(error) = tx.rollback().await {
                return Err(Trouble::Store(error));
            }
            return Err(work.whose(trouble));
        }
    };
    let finished = finish(group, tx, standing, items, &work.outgoing, suspect).await;
    let moves = finished.map_err(|trouble| work.whose(trouble))?;
    faults::point("batch.after_commit");
    standing.moved(&moves);
    group.lanes().moved(&moves);
    work.settle(items);
    group.note_keys(items);
    Ok(items.len())
}

/// What follows the handlers in their transaction, up to its commit. Returns the steps of the cursors.
async fn finish<S: Backend>(
    group: &Group<S>,
    mut tx: Tx<S>,
    standing: &Standing,
    items: &[Item],
    outgoing: &[NewEvent],
    suspect: bool,
) -> Result<Vec<Move>, Trouble> {
    let store = group.store();
    if suspect {
        let ids: Vec<&str> = items.iter().map(Item::id).collect();
        store.clear_attempts(&mut tx, group.name(), &ids).await?;
    }
    faults::point("batch.before_publish");
    if !outgoing.is_empty() {
        group.append(&mut tx, outgoing).await?;
    }
    faults::point("batch.before_advance");
    let mut moves = standing.moves(items);
    {
        let lanes = group.lanes();
        // What rides along is what the next batch can hold, not more: after a kill every marked message is a suspect.
        let rows_each = group.batch.get().div_ceil(moves.len().max(1));
        for step in &mut moves {
            step.batch_end = lanes.next_mark(step.cursor, step.to, rows_each);
        }
    }
    if !faults::defect("no_epoch_check") {
        store.advance(&mut tx, group.name(), &moves).await?;
    } else {
        let _ = store.advance(&mut tx, group.name(), &moves).await;
    }
    faults::point("batch.before_commit");
    tx.commit().await?;
    Ok(moves)
}

/// The messages of one transaction.
pub(crate) struct Transacted<'g, S: Backend> {
    group: &'g Group<S>,
    /// In real time, which the store ends transactions by.
    begun: Instant,
    pub(crate) outgoing: Vec<NewEvent>,
    /// Whether a handler has run.
    called: bool,
    handled: Vec<usize>,
    duplicates: usize,
    unhandled: usize,
    queued: usize,
}

impl<'g, S: Backend> Transacted<'g, S> {
    pub(crate) fn new(group: &'g Group<S>) -> Self {
        Transacted {
            group,
            begun: Instant::now(),
            outgoing: Vec::new(),
            called: false,
            handled: Vec::new(),
            duplicates: 0,
            unhandled: 0,
            queued: 0,
        }
    }

    /// Whose trouble it is. What the store refuses behind a handler is laid to the handler: it has taken on another role, or
    /// made its transaction read-only. A store that refuses everything has refused before it, or does not let the message be
    /// set aside.
    pub(crate) fn whose(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Store(error) if self.called && error.kind() == StoreErrorKind::Refused => Trouble::Somebody(error),
            trouble => trouble,
        }
    }

    /// Returns how many of them are done with: those of the beginning.
    async fn messages(&mut self, tx: &mut Tx<S>, standing: &mut Standing, items: &[Item]) -> Result<usize, Trouble> {
        let group = self.group;
        let held = match standing.asked_once.clone() {
            Some(asked_once) => asked_once,
            None => ask(group, tx, standing, items).await?,
        };
        if faults::defect("held_asked_once_a_batch") {
            standing.asked_once = Some(held.clone());
        }
        let is_queued = |item: &Item| item.key().is_some_and(|key| held.keys.contains(key));
        let (mut behind, free): (Vec<usize>, Vec<usize>) =
            (0..items.len()).partition(|index| is_queued(&items[*index]));
        let free: Vec<usize> = free
            .into_iter()
            .filter(|index| !held.ids.contains(items[*index].id()))
            .collect();
        let handled = self.handle(tx, items, &free).await?;
        let done = free.get(handled).copied().unwrap_or(items.len());
        behind.retain(|index| *index < done);
        if !behind.is_empty() {
            self.queue_behind(tx, items, behind).await?;
        }
        Ok(done)
    }

    /// A handler may take nine tenths of the lease. So that the whole transaction ends within it, no other is begun when a
    /// tenth has passed: the store ends what stands idle for longer, and a renewal may have to wait for all of it.
    fn takes_too_long(&self) -> bool {
        self.begun.elapsed() > self.group.settings.lease / 10
    }

    /// Claims and handles some of the messages, in order, and stores their results. Returns how many, when it takes too long
    /// for all of them; the first is always among them.
    pub(crate) async fn handle(&mut self, tx: &mut Tx<S>, items: &[Item], which: &[usize]) -> Result<usize, Trouble> {
        let group = self.group;
        faults::point("batch.before_claim");
        let new = self.claim(tx, items, which).await?;
        faults::point("batch.after_claim");
        let mut results: Vec<(&str, String)> = Vec::new();
        let mut done = which.len();
        let mut called = false;
        for (nth, index) in which.iter().enumerate() {
            let item = &items[*index];
            if !new.contains(index) {
                self.duplicates += 1;
                continue;
            }
            if called && self.takes_too_long() {
                done = nth;
                break;
            }
            called = true;
            self.called = true;
            match call(group, tx, item, &mut self.outgoing).await {
                Ok(Some(result)) => {
                    self.handled.push(*index);
                    if result != "null" {
                        results.push((item.id(), result));
                    }
                }
                Ok(None) => self.unhandled += 1,
                Err(failed) => return Err(blame(*index, failed)),
            }
            if !tx.is_intact() {
                // At once: what comes after it would run outside of any transaction.
                let ended = "the handler ended the transaction that it was given, or left a nested one open";
                return Err(blame(*index, Failed::transient(ended)));
            }
            faults::point("batch.after_handler");
        }
        faults::point("batch.before_record");
        if group.settings.inbox && !results.is_empty() {
            let results: Vec<(&str, &str)> = results.iter().map(|(id, result)| (*id, result.as_str())).collect();
            group.store().record(tx, group.name(), &results).await?;
        }
        let left = which[done..].iter().filter(|index| new.contains(index));
        let mut left: Vec<&str> = left.map(|index| items[*index].id()).collect();
        if group.settings.inbox && !left.is_empty() {
            left.sort_unstable();
            group.store().unclaim(tx, group.name(), &left).await?;
        }
        Ok(done)
    }

    /// Which of the messages are handled for the first time.
    async fn claim(&mut self, tx: &mut Tx<S>, items: &[Item], which: &[usize]) -> Result<HashSet<usize>, Trouble> {
        if !self.group.settings.inbox || faults::defect("claim_without_inbox") {
            return Ok(which.iter().copied().collect());
        }
        // The first message of an id claims it; a second one in the same batch is a duplicate.
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for index in which {
            first.entry(items[*index].id()).or_insert(*index);
        }
        let ids: Vec<&str> = first.keys().copied().collect();
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let group = self.group;
        let claims = if faults::defect("inbox_in_own_transaction") {
            let mut own = group.store().begin(group.scope()).await?;
            let claims = group.store().claim(&mut own, group.name(), &ids, group.now()).await?;
            own.commit().await?;
            claims
        } else {
            group.store().claim(tx, group.name(), &ids, group.now()).await?
        };
        Ok(first
            .values()
            .zip(claims)
            .filter(|(_, claim)| *claim == Claim::New)
            .map(|(index, _)| *index)
            .collect())
    }

    /// Queues messages behind their held keys. A key that was let go meanwhile is handled instead, under no lock of ours:
    /// locks are given back first, and taken and looked at again until nothing is gone.
    async fn queue_behind(&mut self, tx: &mut Tx<S>, items: &[Item], mut behind: Vec<usize>) -> Result<(), Trouble> {
        let group = self.group;
        loop {
            tx.savepoint().await?;
            faults::point("queue.before_lock");
            let mut keys: Vec<&str> = behind.iter().filter_map(|index| items[*index].key()).collect();
            keys.sort_unstable();
            keys.dedup();
            let there = if faults::defect("queue_without_lock") {
                keys.iter().map(|key| (*key).to_owned()).collect()
            } else {
                group.store().share_keys(tx, group.name(), &keys).await?
            };
            let is_there = |index: &usize| items[*index].key().is_some_and(|key| there.contains(key));
            let (queue, gone): (Vec<usize>, Vec<usize>) = behind.iter().copied().partition(is_there);
            if gone.is_empty() {
                return self.queue(tx, items, &queue).await;
            }
            tx.rollback_to_savepoint().await?;
            let mut rest = &gone[..];
            while !rest.is_empty() {
                // In one transaction with what was handled before it, however long it takes: their cursors move together.
                rest = &rest[self.handle(tx, items, rest).await?..];
            }
            behind = queue;
            if behind.is_empty() {
                return Ok(());
            }
        }
    }

    async fn queue(&mut self, tx: &mut Tx<S>, items: &[Item], queue: &[usize]) -> Result<(), Trouble> {
        hold::queue(self.group, tx, items, queue).await?;
        self.queued += queue.len();
        Ok(())
    }

    /// After the commit.
    pub(crate) fn settle(&self, items: &[Item]) {
        let counters = &self.group.meter.counters;
        count(&counters.handled, self.handled.len());
        count(&counters.duplicates, self.duplicates);
        count(&counters.unhandled, self.unhandled);
        count(&counters.held, self.queued);
        count(&counters.commits, 1);
        let topics = self.handled.iter().map(|index| items[*index].topic());
        self.group.meter.consumed(topics, Ended::Well);
        let mut outage = self.group.outage();
        for index in &self.handled {
            let item = &items[*index];
            if outage.succeeded(item.key_or_id()) {
                tracing::info!(consumer = %self.group.name(), "the outage is over");
            }
        }
    }
}

/// Which keys and ids of these messages are held. A lane that holds nothing is not asked for: its owner alone holds.
pub(crate) async fn ask<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    standing: &Standing,
    items: &[Item],
) -> Result<HeldNow, StoreError> {
    let asked: Vec<&Item> = items.iter().filter(|item| standing.holds(item.cursor)).collect();
    if asked.is_empty() {
        return Ok(HeldNow::default());
    }
    let mut keys: Vec<&str> = asked.iter().filter_map(|item| item.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut ids: Vec<&str> = asked.iter().map(|item| item.id()).collect();
    ids.sort_unstable();
    ids.dedup();
    group.store().ask(tx, group.name(), &keys, &ids).await
}

/// Runs one handler within its deadline. `Ok(None)`: its type has none, and is acknowledged.
async fn call<S: Backend>(
    group: &Group<S>,
    connection: &mut S::Connection,
    item: &Item,
    outgoing: &mut Vec<NewEvent>,
) -> Result<Option<String>, Failed> {
    let envelope = &item.row.envelope;
    let Handlers::Transaction(handlers) = &group.handlers else {
        return Ok(None);
    };
    let Some(handler) = handlers.get(envelope.event_type.as_str()) else {
        return group.unhandled(item).map(|()| None);
    };
    let mut cx = Context::new(connection, group.delivery(item), outgoing);
    let run = handler.run(envelope.payload.as_ref(), &mut cx);
    group.within_deadline(item, run).await.map(Some)
}

/// A failure of the store inside a handler is not the message's fault when the transaction lost against another one, or
/// when an earlier message had aborted it.
fn blame(index: usize, failed: Failed) -> Trouble {
    match (failed.class, failed.store) {
        (RetryClass::Transient, Some(StoreErrorKind::Conflict)) => Trouble::Conflict(Some(failed)),
        (_, Some(kind @ StoreErrorKind::Aborted)) => {
            Trouble::Somebody(StoreError::new(kind, "running a handler", failed.failure.error))
        }
        _ => Trouble::Message { index, failed },
    }
}
