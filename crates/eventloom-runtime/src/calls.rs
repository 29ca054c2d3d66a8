//! Mode effect: calls to the outside run while no transaction is open; claims before and results after are committed.
//!
//! What may interleave, and why it is safe:
//!
//! - the process ends during a call: the claim stands without a result, the lane's successor calls again under the same
//!   idempotency key, as a suspect;
//! - the lease ends during a call: the future is dropped, its result cannot be stored (another epoch), the successor calls
//!   again under the same key;
//! - the same logical id stands twice in the log: the second claim is told that it is handled, or in progress, and what is
//!   not called at the moment but held is passed over: it is called, or given up by a human, where it is held.

mod held;

pub(crate) use held::drain;

use crate::{
    batch::{self, Item, Standing, Trouble},
    clock::pace,
    consumer::{Handlers, Poison},
    effect::Called,
    failure::Failed,
    group::{Group, count},
    hold,
    in_flight::{Gate, Place, beside},
    lanes::Slice,
    meter::Ended,
    results::Step,
    time_limit::{Tx, ports::*},
    worker::{Stopped, stopped},
};
use eventloom_core::{
    NewEvent, Position, StoreError, faults,
    ports::{Backend, EffectClaim, EffectRequest, Move, Transaction},
};
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

/// How soon a message is asked for again whose logical id is being called elsewhere.
const IN_PROGRESS_PACE: Duration = Duration::from_millis(100);

/// How a message of a slice stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    Done,
    Call {
        again: bool,
    },
    /// Called elsewhere at the moment: neither it nor what follows in the lane is moved past.
    Elsewhere,
}

/// Sees one lane's messages through: keys in parallel, each key in order.
pub(crate) async fn see_through<S: Backend>(group: &Group<S>, slice: &Slice) -> Result<(), Stopped> {
    let mut standing = Standing::of(std::slice::from_ref(slice));
    let items: Vec<Item> = slice
        .rows
        .iter()
        .map(|row| Item {
            redrives: 0,
            cursor: slice.cursor(),
            row: row.clone(),
            attempt: 1,
        })
        .collect();
    let stands = prepare(group, &standing, &items, slice.mark).await.map_err(stopped)?;
    group.note_keys(&items);
    if let Some(mark) = slice.mark {
        group.lanes().marked(&[(slice.cursor(), mark)]);
    }
    let waits = stands.contains(&Stand::Elsewhere);
    let mut lane = Progress {
        done: stands.iter().map(|stand| *stand == Stand::Done).collect(),
    };
    if lane.done.iter().all(|done| *done) {
        return settle(group, &mut standing, &items, &mut lane, &[], false)
            .await
            .map_err(stopped);
    }
    let mut chains = chains(&items, &stands);
    // In an outage, when the lane is blocked, and when no more may be held, what runs is finished, and nothing more is begun.
    let gate = Gate::new();
    let mut running = FuturesUnordered::new();
    for (chain, messages) in chains.iter_mut().enumerate() {
        if let Some((index, again)) = messages.pop_front() {
            running.push(start(group, &gate, chain, index, &items[index], again));
        }
    }
    let (mut outage, mut no_room) = (false, false);
    let mut meanwhile = Vec::new();
    loop {
        // Whatever else has come back meanwhile shares the commit.
        let mut back: Vec<Back<'_>> = std::mem::take(&mut meanwhile);
        if back.iter().any(|back| matches!(back.called, Some(Err(_)))) {
            gate.wait();
        }
        if back.is_empty() {
            let Some(first) = running.next().await else { break };
            back.push(first);
        }
        while let Some(Some(more)) = running.next().now_or_never() {
            back.push(more);
        }
        let mut made = Vec::new();
        let mut free = Vec::new();
        let mut failures = Vec::new();
        // They have their place until their results are stored: after a kill no more than those are made again.
        let mut places = Vec::new();
        for Back {
            chain,
            index,
            called,
            place,
        } in back
        {
            places.push(place);
            match called {
                None => {}
                Some(Ok(answer)) => {
                    made.push(Made::of(index, answer));
                    free.push((chain, index));
                }
                Some(Err(failed)) => failures.push((chain, index, failed)),
            }
        }
        if !failures.is_empty() {
            gate.wait();
        }
        if !made.is_empty() {
            let settled = settle_each(group, &mut standing, &items, &mut lane, &made);
            let refused = beside(&mut running, &mut meanwhile, settled).await.map_err(stopped)?;
            for (index, failed) in refused {
                gate.wait();
                let chain = free.iter().position(|(_, free)| *free == index);
                failures.extend(chain.map(|nth| (free.swap_remove(nth).0, index, failed)));
            }
        }
        for (chain, index, failed) in failures {
            count(&group.meter.counters.failures, 1);
            if group.blames_an_outage(items[index].key_or_id(), &failed) {
                outage = true;
                gate.halt();
                continue;
            }
            // Of a blocked lane the rest is left where it is.
            let blocks = group.settings.poison == Poison::Block;
            let behind: Vec<usize> = if hold::is_queued(group, &items[index]) && !blocks {
                chains[chain].iter().map(|(index, _)| *index).collect()
            } else {
                Vec::new()
            };
            let held = set_aside(group, &mut standing, &items, &mut lane, index, &behind, &failed);
            let held = match beside(&mut running, &mut meanwhile, held).await {
                // It stays where it is, and innocents that run are not made again for it.
                Err(Trouble::HeldLimit) => {
                    no_room = true;
                    gate.halt();
                    continue;
                }
                held => held.map_err(stopped)?,
            };
            if held && !behind.is_empty() {
                chains[chain].clear();
            }
            if held && blocks {
                gate.halt();
            }
            free.push((chain, index));
        }
        gate.open();
        drop(places);
        for (chain, _) in free {
            if !gate.is_halted()
                && let Some((index, again)) = chains[chain].pop_front()
            {
                running.push(start(group, &gate, chain, index, &items[index], again));
            }
        }
    }
    if outage {
        return Err(Stopped::Outage);
    }
    if no_room {
        return Err(Stopped::HeldLimit);
    }
    if waits {
        pace(IN_PROGRESS_PACE).await;
    }
    Ok(())
}

/// How far a lane's slice has come.
struct Progress {
    done: Vec<bool>,
}

impl Progress {
    /// The last position of the contiguous prefix that is done.
    fn reaches(&self, items: &[Item]) -> Option<Position> {
        if faults::defect("cursor_past_unfinished") {
            return items.last().map(|item| item.row.position);
        }
        let prefix = self.done.iter().take_while(|done| **done).count();
        prefix.checked_sub(1).map(|last| items[last].row.position)
    }

    /// The cursor's step over it; `None` where nothing more is complete.
    fn step(&self, standing: &Standing, items: &[Item]) -> Option<Move> {
        let cursor = items[0].cursor;
        let from = standing.position(cursor);
        let to = self.reaches(items).filter(|to| *to > from)?;
        Some(Move {
            cursor,
            from,
            to,
            batch_end: None,
            confirmed: None,
        })
    }
}

/// Messages of a key follow each other; those without a key stand alone.
fn chains(items: &[Item], stands: &[Stand]) -> Vec<VecDeque<(usize, bool)>> {
    let mut chains: Vec<VecDeque<(usize, bool)>> = Vec::new();
    let mut of_key: HashMap<&str, usize> = HashMap::new();
    for (index, (item, stand)) in items.iter().zip(stands).enumerate() {
        let again = match stand {
            Stand::Call { again } => *again,
            Stand::Done => continue,
            // What follows waits for the next look.
            Stand::Elsewhere => break,
        };
        let chain = match item.key() {
            Some(key) if !faults::defect("two_tasks_on_one_key") => *of_key.entry(key).or_insert(chains.len()),
            _ => chains.len(),
        };
        if chain == chains.len() {
            chains.push(VecDeque::new());
        }
        chains[chain].push_back((index, again));
    }
    chains
}

/// One transaction before any call: what is taken is marked, messages of held keys queue, and the others are claimed.
async fn prepare<S: Backend>(
    group: &Group<S>,
    standing: &Standing,
    items: &[Item],
    mark: Option<Position>,
) -> Result<Vec<Stand>, Trouble> {
    let store = group.store();
    let _turn = group.calls.prepare().await;
    faults::point("effect.before_claim");
    let mut tx = store.begin(group.scope()).await?;
    let held = batch::ask(group, &mut tx, standing, items).await?;
    let mut stands = vec![Stand::Done; items.len()];
    let mut keys: Vec<&str> = items
        .iter()
        .filter_map(Item::key)
        .filter(|key| held.keys.contains(*key))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    // A key that was let go meanwhile is not among them any more: its messages are called.
    let there = if keys.is_empty() {
        HashSet::new()
    } else {
        store.share_keys(&mut tx, group.name(), &keys).await?
    };
    let behind = |item: &Item| item.key().is_some_and(|key| there.contains(key));
    let queue: Vec<usize> = (0..items.len()).filter(|index| behind(&items[*index])).collect();
    put_behind(group, &mut tx, items, &queue).await?;
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut requests: Vec<(usize, EffectRequest<'_>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if !behind(item) && !held.ids.contains(item.id()) && first.insert(item.id(), index).is_none() {
            requests.push((
                index,
                EffectRequest {
                    id: item.id(),
                    cursor: item.cursor,
                },
            ));
        }
    }
    requests.sort_unstable_by_key(|(_, request)| request.id);
    let asked: Vec<EffectRequest<'_>> = requests.iter().map(|(_, request)| *request).collect();
    let claims = if asked.is_empty() {
        Vec::new()
    } else {
        store.claim_effects(&mut tx, group.name(), &asked, group.now()).await?
    };
    let held_elsewhere = held_elsewhere(group, &mut tx, &requests, &claims).await?;
    for ((index, request), claim) in requests.iter().zip(claims) {
        stands[*index] = match claim {
            _ if held_elsewhere.contains(request.id) => Stand::Done,
            EffectClaim::Call { again } => Stand::Call { again },
            EffectClaim::Handled => Stand::Done,
            EffectClaim::InProgress => Stand::Elsewhere,
        };
    }
    let cursor = items[0].cursor;
    match mark {
        Some(mark) => store.mark(&mut tx, group.name(), &[(cursor, mark)]).await?,
        None => store.fence(&mut tx, group.name(), &[cursor]).await?,
    }
    tx.commit().await?;
    faults::point("effect.after_claim");
    Ok(stands)
}

/// Which of these claims are of messages that another lane holds: only its owner calls them. Only what was claimed before
/// can be held after a call, and it is looked for in a statement after the claim.
async fn held_elsewhere<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    requests: &[(usize, EffectRequest<'_>)],
    claims: &[EffectClaim],
) -> Result<HashSet<String>, Trouble> {
    let known = |claim: &EffectClaim| matches!(claim, EffectClaim::InProgress | EffectClaim::Call { again: true });
    let asked = requests.iter().zip(claims).filter(|(_, claim)| known(claim));
    let ids: Vec<&str> = asked.map(|((_, request), _)| request.id).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let held = group.store().ask(tx, group.name(), &[], &ids).await?.ids;
    let taken = requests
        .iter()
        .zip(claims)
        .filter(|((_, request), claim)| matches!(claim, EffectClaim::Call { .. }) && held.contains(request.id));
    let taken: Vec<EffectRequest<'_>> = taken.map(|((_, request), _)| *request).collect();
    if !taken.is_empty() {
        group.store().give_up_effects(tx, group.name(), &taken).await?;
    }
    Ok(held)
}

async fn put_behind<S: Backend>(
    group: &Group<S>,
    tx: &mut Tx<S>,
    items: &[Item],
    behind: &[usize],
) -> Result<(), Trouble> {
    if !behind.is_empty() {
        hold::queue(group, tx, items, behind).await?;
        count(&group.meter.counters.held, behind.len());
    }
    Ok(())
}

/// A call that has come back, and its place until its result is stored.
struct Back<'g> {
    chain: usize,
    index: usize,
    /// `None`: not begun, since the lane was halted before its turn came.
    called: Option<Answer>,
    place: Place<'g>,
}

/// What a call gave: its result and what it published, or nothing where no handler was to be called.
type Answer = Result<Option<(String, Vec<NewEvent>)>, Failed>;

/// Makes one call, within its deadline and the consumer's number of calls in flight.
async fn start<'g, S: Backend>(
    group: &'g Group<S>,
    gate: &Gate,
    chain: usize,
    index: usize,
    item: &Item,
    again: bool,
) -> Back<'g> {
    let mut place = group.calls.begin().await;
    let called = if gate.pass().await {
        Some(call(group, item, again).await)
    } else {
        None
    };
    // One that failed keeps it until it is known what that means for the others.
    if !matches!(called, Some(Err(_))) {
        place.has_returned();
    }
    Back {
        chain,
        index,
        called,
        place,
    }
}

async fn call<S: Backend>(group: &Group<S>, item: &Item, again: bool) -> Answer {
    let envelope = &item.row.envelope;
    let Handlers::Effect(handlers) = &group.handlers else {
        return Ok(None);
    };
    let Some(handler) = handlers.get(envelope.event_type.as_str()) else {
        return group.unhandled(item).map(|()| None);
    };
    let run = handler.run(envelope.payload.as_ref(), group.delivery(item), again);
    let called: Called = group.within_deadline(item, run).await;
    faults::point("effect.after_call");
    called.map(Some)
}

/// A call that was made, or a message that no handler was to be called for.
struct Made {
    index: usize,
    result: Option<String>,
    published: Vec<NewEvent>,
}

impl Made {
    fn of(index: usize, answer: Option<(String, Vec<NewEvent>)>) -> Self {
        let (result, published) = answer.unzip();
        Made {
            index,
            result,
            published: published.unwrap_or_default(),
        }
    }
}

/// Stores what calls came to, each by itself when the store refuses them together. Returns those that it refuses: else they
/// would be made again for ever, and their lane would go no further.
async fn settle_each<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    items: &[Item],
    lane: &mut Progress,
    made: &[Made],
) -> Result<Vec<(usize, Failed)>, Trouble> {
    match settle(group, standing, items, lane, made, false).await {
        Ok(()) => return Ok(Vec::new()),
        Err(Trouble::Somebody(error)) if made.len() == 1 => return Ok(vec![(made[0].index, refused(&error))]),
        Err(Trouble::Somebody(_)) => {}
        Err(trouble) => return Err(trouble),
    }
    let mut failures = Vec::new();
    for one in made {
        match settle(group, standing, items, lane, std::slice::from_ref(one), false).await {
            Ok(()) => {}
            Err(Trouble::Somebody(error)) => failures.push((one.index, refused(&error))),
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(failures)
}

/// The failure of a call that was made.
fn refused(error: &StoreError) -> Failed {
    Failed::transient(format!(
        "the call was made, and then the store refused its result: {error}"
    ))
}

/// Stores results and what was published, and moves the cursor over the prefix that is done. `suspect`: attempts were
/// counted before the call, and are forgotten with its result.
async fn settle<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    items: &[Item],
    lane: &mut Progress,
    made: &[Made],
    suspect: bool,
) -> Result<(), Trouble> {
    made.iter().for_each(|made| lane.done[made.index] = true);
    let advance = lane.step(standing, items);
    let stored = made.iter().map(|made| {
        let result = made.result.as_deref().unwrap_or("null");
        (items[made.index].id().to_owned(), result.to_owned())
    });
    let counted = items.iter().filter(|_| suspect).map(|item| item.id().to_owned());
    let step = Step {
        cursor: items[0].cursor,
        advance,
        results: stored.collect(),
        outgoing: made.iter().flat_map(|made| made.published.iter().cloned()).collect(),
        counted: counted.collect(),
    };
    if let Err(trouble) = group.results.store(step).await {
        made.iter().for_each(|made| lane.done[made.index] = false);
        return Err(trouble);
    }
    moved(group, standing, advance);
    for made in made {
        succeeded(group, &items[made.index], made.result.is_some());
    }
    Ok(())
}

/// After the commit. A message that no handler was called for says nothing of whether calls succeed.
fn succeeded<S: Backend>(group: &Group<S>, item: &Item, called: bool) {
    if !called {
        count(&group.meter.counters.unhandled, 1);
        return;
    }
    count(&group.meter.counters.handled, 1);
    group.meter.consumed([item.topic()], Ended::Well);
    if group.outage().succeeded(item.key_or_id()) {
        tracing::info!(consumer = %group.name(), "the outage is over");
    }
}

fn moved<S: Backend>(group: &Group<S>, standing: &mut Standing, advance: Option<Move>) {
    standing.moved(advance.as_slice());
    group.lanes().moved(advance.as_slice());
}

/// Sets a failed call's message aside, and what follows it in its key behind it. `false`: it was a duplicate of a held one,
/// and its key flows on.
async fn set_aside<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    items: &[Item],
    lane: &mut Progress,
    index: usize,
    behind: &[usize],
    failed: &Failed,
) -> Result<bool, Trouble> {
    let item = &items[index];
    tracing::warn!(consumer = %group.name(), id = item.id(), error = %failed.failure.error, "a call failed; its message is set aside");
    let store = group.store();
    let (state, due_in) = hold::follows(group, failed, item.attempt);
    let mut tx = store.begin(group.scope()).await?;
    let held = hold::put(group, &mut tx, item, failed, state, due_in).await?;
    let behind = if held { behind } else { &[] };
    put_behind(group, &mut tx, items, behind).await?;
    for done in behind.iter().chain([&index]) {
        lane.done[*done] = true;
    }
    let advance = lane.step(standing, items);
    match advance {
        Some(step) => store.advance(&mut tx, group.name(), &[step]).await?,
        None => store.fence(&mut tx, group.name(), &[item.cursor]).await?,
    }
    faults::point("hold.before_commit");
    tx.commit().await?;
    faults::point("hold.after_commit");
    moved(group, standing, advance);
    hold::committed(group, standing, item, held.then_some(state));
    Ok(held)
}

/// One message of the log by itself: a suspect. Returns its failure.
pub(crate) async fn alone<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    item: &Item,
    suspect: bool,
) -> Result<Option<Failed>, Stopped> {
    let items = std::slice::from_ref(item);
    let mut lane = Progress { done: vec![true] };
    match prepare(group, standing, items, None).await.map_err(stopped)?[0] {
        Stand::Done => settle(group, standing, items, &mut lane, &[], suspect)
            .await
            .map_err(stopped)?,
        Stand::Elsewhere => {
            pace(IN_PROGRESS_PACE).await;
            return Err(Stopped::Later);
        }
        Stand::Call { again } => {
            let _place = group.calls.begin().await;
            match call(group, item, again).await {
                Ok(answer) => match settle(group, standing, items, &mut lane, &[Made::of(0, answer)], suspect).await {
                    Err(Trouble::Somebody(error)) => return Ok(Some(refused(&error))),
                    settled => settled.map_err(stopped)?,
                },
                Err(failed) => return Ok(Some(failed)),
            }
        }
    }
    Ok(None)
}
