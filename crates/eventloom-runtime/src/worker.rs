//! Picks lanes and sees their messages through: in batches, and around those that fail.
//!
//! When a message of a batch fails, the prefix before it is run again as a batch, it alone, then the rest as a batch.
//! Rolling back and running everything singly would drop to the singles' rate at one poison in a hundred.

use crate::{
    batch::{self, Item, Standing, Trouble},
    calls,
    clock::pace,
    consumer::{Mode, Poison},
    failure::Failed,
    group::{Group, count, place},
    hold,
    lanes::{Slice, Work},
    losing::{AfterLoss, Losses},
    relay, suspect,
    time_limit::ports::*,
};
use eventloom_core::{
    RetryClass, StoreError, faults,
    ports::{Backend, Cursor},
};
use std::{collections::HashSet, ops::Range, sync::Arc, time::Duration};

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// How long a lane rests whose held messages have reached their limit.
const HELD_LIMIT_REST: Duration = Duration::from_secs(2);
/// How long an idle worker rests when nobody tells it of work.
const IDLE_REST: Duration = Duration::from_secs(1);
/// The same while suspects wait for their turn.
const SUSPECT_PACE: Duration = Duration::from_millis(20);

/// Runs until the process stops, and what was taken by then is finished.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>) {
    let mut retry = RETRY_FIRST;
    loop {
        let stopping = group.is_stopping();
        // Registered before the lanes are looked at, so that rows that come in between are not slept through.
        let changed = group.changed.notified();
        let now = group.process.clock.now();
        let probe_in = group.probe_in();
        let rested_at = {
            let mut lanes = group.lanes();
            lanes.stopping |= stopping;
            lanes.end_rests(now)
        };
        // Asked for only where there is a suspect: it is one for the whole process.
        let suspects = group.lanes().has_suspects();
        let permit = suspects
            .then(|| group.process.suspects.clone().try_acquire_owned().ok())
            .flatten();
        let work = match probe_in {
            Some(wait) if !wait.is_zero() => None,
            Some(_) => group.lanes().pick(1, usize::MAX, permit.is_some()),
            None => match group.settings.mode {
                Mode::Transaction => {
                    group
                        .lanes()
                        .pick(group.batch.get(), group.settings.workers as usize, permit.is_some())
                }
                // One lane for each: its keys run in parallel.
                Mode::Effect => group.lanes().pick(group.batch.get(), usize::MAX, permit.is_some()),
            },
        };
        let Some(work) = work else {
            drop(permit);
            if stopping {
                return;
            }
            let probe_in = probe_in.filter(|wait| !wait.is_zero());
            let rest = probe_in.unwrap_or(IDLE_REST);
            let rest = rested_at.map_or(rest, |at| rest.min(at - now));
            tokio::select! {
                () = changed => {}
                // The turn of suspects depends on other consumers, which tell nobody.
                () = pace(SUSPECT_PACE), if suspects && probe_in.is_none() => {}
                () = group.process.clock.sleep_until(now + rest) => {}
                () = group.process.stopping.cancelled() => {}
            }
            continue;
        };
        let (cursors, result) = match work {
            Work::Batch(slices) => {
                drop(permit);
                let cursors: Vec<Cursor> = slices.iter().map(Slice::cursor).collect();
                let result = group
                    .within_lease(&cursors, Box::pin(see_through(&group, &slices)))
                    .await;
                (cursors, result)
            }
            Work::Suspects(slice) => {
                let cursors = vec![slice.cursor()];
                let result = group
                    .within_lease(&cursors, Box::pin(suspect::run(&group, &slice)))
                    .await;
                drop(permit);
                (cursors, result)
            }
        };
        match result {
            Some(Ok(())) => {
                retry = RETRY_FIRST;
                group.done(cursors);
            }
            Some(Err(Stopped::HeldLimit)) => {
                for cursor in &cursors {
                    held_limit(&group, *cursor);
                }
                group.done(cursors);
            }
            Some(Err(Stopped::Outage | Stopped::Broker | Stopped::Later)) => group.done(cursors),
            Some(Err(Stopped::InDoubt)) => {
                count(&group.meter.counters.fenced, 1);
                group.forget(cursors);
            }
            None => {
                count(&group.meter.counters.fenced, 1);
                // It may have been too much for one lease.
                group.batch.lost_a_conflict();
                group.forget(cursors);
            }
            Some(Err(Stopped::Store(error))) => {
                group.note_trouble("the store is in trouble", &error);
                // Forgotten, not retried: the tables say where the work stands, and the messages are suspects.
                group.forget(cursors);
                tokio::select! {
                    () = pace(retry) => {}
                    () = group.process.stopping.cancelled() => {}
                }
                retry = (retry * 2).min(RETRY_MOST);
            }
        }
    }
}

/// A lane whose messages would be held and have no room: it alone waits.
pub(crate) fn held_limit<S: Backend>(group: &Group<S>, cursor: Cursor) {
    group.note_trouble(
        "a limit of what may be held is reached",
        &format!("lane {} waits until messages are redriven or deleted", cursor.lane),
    );
    let until = group.process.clock.now() + HELD_LIMIT_REST;
    group.lanes().rest(cursor, until);
}

/// Why work on lanes ended before its messages were done.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Drop it: somebody else owns the lanes, or it is not known what was committed.
    InDoubt,
    /// Most keys fail: only probes run for now.
    Outage,
    /// The broker takes nothing for now.
    Broker,
    /// No more may be held.
    HeldLimit,
    /// Somebody else has to be done first.
    Later,
    /// The store is in trouble.
    Store(StoreError),
}

/// Sees to it that every message of the slices is handled, held or queued, and the cursors moved.
async fn see_through<S: Backend>(group: &Group<S>, slices: &[Slice]) -> Result<(), Stopped> {
    if group.settings.mode == Mode::Effect {
        for slice in slices {
            calls::see_through(group, slice).await?;
        }
        return Ok(());
    }
    if let Some(relay) = &group.relay {
        return relay::see_through(group, relay, slices).await;
    }
    mark(group, slices).await?;
    let mut standing = Standing::of(slices);
    let items: Vec<Item> = slices
        .iter()
        .flat_map(|slice| {
            slice.rows.iter().map(|row| Item {
                cursor: slice.cursor(),
                row: row.clone(),
                attempt: 1,
                redrives: 0,
            })
        })
        .collect();
    see_items_through(group, &mut standing, &items).await
}

/// Records what is about to be taken, so that a successor knows which messages may have killed this process. Committed
/// before the first handler runs; under load it has ridden on the previous commit.
async fn mark<S: Backend>(group: &Group<S>, slices: &[Slice]) -> Result<(), Stopped> {
    let marks: Vec<_> = slices
        .iter()
        .filter_map(|slice| slice.mark.map(|to| (slice.cursor(), to)))
        .collect();
    if marks.is_empty() || faults::defect("attempts_lost_at_restart") {
        return Ok(());
    }
    faults::point("take.before_mark");
    // What a crash of the server may take back must not be the first mark of a lane: or messages that crash the server would
    // be taken together again and again.
    let flushed = !marks.iter().all(|(cursor, _)| group.lanes().has_committed(*cursor));
    let marked = group.store().mark_alone(group.name(), &marks, flushed).await;
    marked.map_err(|error| stopped(error.into()))?;
    faults::point("take.after_mark");
    group.lanes().marked(&marks);
    Ok(())
}

/// A part of a batch that is still to be done.
#[derive(Debug)]
enum Step {
    Together(Range<usize>),
    Alone(usize),
    Hold(usize, Failed),
}

impl Step {
    /// The step without messages of these lanes. Messages of a lane stand together, in order, and only later ones of a lane
    /// that stopped are left: they are the beginning of a step.
    fn without(self, lanes: &HashSet<Cursor>, items: &[Item]) -> Self {
        let passed_over = |at: &usize| lanes.contains(&items[*at].cursor);
        match self {
            Step::Together(range) => {
                let begin = range.clone().find(|at| !passed_over(at)).unwrap_or(range.end);
                Step::Together(begin..range.end)
            }
            Step::Alone(at) | Step::Hold(at, _) if passed_over(&at) => Step::Together(at..at),
            step => step,
        }
    }
}

async fn see_items_through<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    items: &[Item],
) -> Result<(), Stopped> {
    let mut steps = vec![Step::Together(0..items.len())];
    // Lanes that can go no further in this batch; their other messages are passed over.
    let mut stopped_lanes: HashSet<Cursor> = HashSet::new();
    while let Some(step) = steps.pop() {
        let step = step.without(&stopped_lanes, items);
        match step {
            Step::Together(range) if range.is_empty() => {}
            Step::Together(range) if range.len() == 1 => steps.push(Step::Alone(range.start)),
            Step::Together(range) => match batch::run(group, standing, &items[range.clone()], false).await {
                Ok(done) => {
                    group.batch.committed();
                    steps.push(Step::Together(range.start + done..range.end));
                }
                Err(Trouble::Message { index, failed }) => {
                    count(&group.meter.counters.failures, 1);
                    let at = range.start + index;
                    steps.push(Step::Together(at + 1..range.end));
                    // A permanent failure is not tried again; a transient one alone, where nobody else's is near.
                    steps.push(match failed.class {
                        RetryClass::Permanent => Step::Hold(at, failed),
                        RetryClass::Transient => Step::Alone(at),
                    });
                    steps.push(Step::Together(range.start..at));
                }
                Err(Trouble::Conflict(_)) => {
                    count(&group.meter.counters.conflicts, 1);
                    group.batch.lost_a_conflict();
                    steps.extend(range.rev().map(Step::Alone));
                }
                Err(Trouble::Somebody(error)) => {
                    tracing::debug!(consumer = %group.name(), %error, "a batch was refused; it is halved until it is known whose fault it is");
                    let middle = range.start + range.len() / 2;
                    steps.push(Step::Together(middle..range.end));
                    steps.push(Step::Together(range.start..middle));
                }
                Err(Trouble::HeldLimit) => steps.extend(range.rev().map(Step::Alone)),
                Err(trouble) => return Err(stopped(trouble)),
            },
            Step::Alone(at) => {
                let outcome = match alone(group, standing, &items[at], false).await {
                    Err(Stopped::HeldLimit) => {
                        held_limit(group, items[at].cursor);
                        stopped_lanes.insert(items[at].cursor);
                        continue;
                    }
                    outcome => outcome?,
                };
                if let Some(failed) = outcome {
                    steps.push(Step::Hold(at, failed));
                }
            }
            Step::Hold(at, failed) => {
                match hold_or_stop(group, standing, &items[at], failed).await {
                    Err(Stopped::HeldLimit) => {
                        held_limit(group, items[at].cursor);
                        stopped_lanes.insert(items[at].cursor);
                        continue;
                    }
                    held => held?,
                }
                if group.settings.poison == Poison::Block {
                    // The lane waits, and with it what of it is left here; the other lanes come round again.
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Handles one message in a transaction of its own, again when it loses against others: that burns no attempt until it has
/// lost too often. Returns its failure, rolled back.
pub(crate) async fn alone<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    item: &Item,
    suspect: bool,
) -> Result<Option<Failed>, Stopped> {
    if group.settings.mode == Mode::Effect {
        return calls::alone(group, standing, item, suspect).await;
    }
    let mut losses = Losses::new(group.settings.lease);
    loop {
        match batch::run(group, standing, std::slice::from_ref(item), suspect).await {
            Ok(_) => {
                group.batch.committed();
                return Ok(None);
            }
            Err(Trouble::Message { failed, .. }) => {
                count(&group.meter.counters.failures, 1);
                return Ok(Some(failed));
            }
            Err(Trouble::Somebody(error)) => {
                count(&group.meter.counters.failures, 1);
                let what = "the handler returned, and then the store refused its transaction";
                return Ok(Some(Failed::transient(format!("{what}: {error}"))));
            }
            Err(Trouble::Conflict(by_handler)) => {
                count(&group.meter.counters.conflicts, 1);
                match losses.lost(by_handler) {
                    AfterLoss::Again(pause) => pace(pause).await,
                    AfterLoss::Fails(failed) => {
                        count(&group.meter.counters.failures, 1);
                        return Ok(Some(failed));
                    }
                    AfterLoss::Later => return Err(Stopped::Later),
                }
            }
            Err(trouble) => return Err(stopped(trouble)),
        }
    }
}

/// Sets a failed message aside, unless most keys fail: then it is not the message's fault, and it stays where it is.
pub(crate) async fn hold_or_stop<S: Backend>(
    group: &Group<S>,
    standing: &mut Standing,
    item: &Item,
    failed: Failed,
) -> Result<(), Stopped> {
    if group.blames_an_outage(item.key_or_id(), &failed) {
        return Err(Stopped::Outage);
    }
    tracing::warn!(consumer = %group.name(), id = item.id(), at = %place(item.row.lane, item.row.position),
        error = %failed.failure.error, attempt = item.attempt, "a message failed and is set aside");
    hold::hold(group, standing, item, &failed).await.map_err(stopped)
}

pub(crate) fn stopped(trouble: Trouble) -> Stopped {
    match trouble {
        Trouble::InDoubt => Stopped::InDoubt,
        Trouble::HeldLimit => Stopped::HeldLimit,
        Trouble::Store(error) | Trouble::Somebody(error) => Stopped::Store(error),
        // A conflict where nothing but our own rows is touched: the work is dropped and begun anew.
        Trouble::Conflict(_) | Trouble::Message { .. } => Stopped::InDoubt,
    }
}
