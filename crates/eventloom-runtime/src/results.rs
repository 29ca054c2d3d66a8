//! Stores what calls to the outside came to: whatever has come back in all lanes of a consumer while the previous commit was
//! in flight shares the next one.
//!
//! What may interleave, and why it is safe:
//!
//! - steps come while a commit is in flight: they wait for the next one. A lane waits for the answer to its step before it
//!   has another, so the steps of a lane do not overtake each other;
//! - a lane is lost while its step waits: whoever has sent it is dropped, and a step that nobody waits for is left out. One
//!   that is being stored is fenced by its epoch;
//! - the store refuses one of several steps (fenced, a conflict, what was published): nothing was committed, and each is
//!   stored by itself;
//! - the store cannot be reached before COMMIT is sent: nothing was committed, and the steps wait for it to come back, each
//!   for as long as its lane has its lease;
//! - a commit is not answered, or this task is dropped: the lanes of all its steps are in doubt.

use crate::{
    batch::Trouble,
    clock::pace,
    group::{Group, count},
    time_limit::{Tx, ports::*},
};
use eventloom_core::{
    NewEvent, StoreError, StoreErrorKind, chain, faults,
    ports::{Backend, Cursor, Move, Transaction},
};
use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

/// Results and events that share one commit at most, unless those of a single lane are more.
const ROWS_MAX: usize = 512;
const PAYLOAD_BYTES_MAX: usize = 4 << 20;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(5);

/// What one lane has to store.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) cursor: Cursor,
    /// `None`: nothing is complete yet, and the lane is only fenced.
    pub(crate) advance: Option<Move>,
    /// Logical ids and results as JSON.
    pub(crate) results: Vec<(String, String)>,
    pub(crate) outgoing: Vec<NewEvent>,
    /// Logical ids whose attempts were counted before the call, and are forgotten with its result.
    pub(crate) counted: Vec<String>,
}

struct Waiting {
    step: Step,
    answer: oneshot::Sender<Result<(), Trouble>>,
}

/// Steps that wait for the next commit.
#[derive(Default)]
pub(crate) struct Results {
    waiting: Mutex<Vec<Waiting>>,
    came: Notify,
}

impl Results {
    /// Stores a step with whatever else waits.
    ///
    /// # Cancel safety
    /// A dropped future may have stored it.
    pub(crate) async fn store(&self, step: Step) -> Result<(), Trouble> {
        let (answer, answered) = oneshot::channel();
        self.waiting().push(Waiting { step, answer });
        self.came.notify_one();
        answered.await.unwrap_or(Err(Trouble::InDoubt))
    }

    /// What shares the next commit; the rest stays.
    fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting();
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let (mut rows, mut payload_bytes) = (0, 0);
        let end = waiting.iter().position(|waiting| {
            let step = &waiting.step;
            rows += step.results.len() + step.outgoing.len();
            let payloads = step.outgoing.iter().filter_map(NewEvent::payload);
            payload_bytes += payloads.map(|payload| payload.bytes().len()).sum::<usize>();
            rows > ROWS_MAX || payload_bytes > PAYLOAD_BYTES_MAX
        });
        let end = end.unwrap_or(waiting.len()).max(1).min(waiting.len());
        waiting.drain(..end).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until `ended`: whoever has steps to store ends before.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>, ended: impl Future<Output = ()>) {
    let mut ended = pin!(ended);
    let mut retry = RETRY_FIRST;
    loop {
        let waiting = group.results.take();
        if waiting.is_empty() {
            tokio::select! {
                biased;
                () = group.results.came.notified() => {}
                () = &mut ended => return,
            }
            continue;
        }
        let unstored = store_all(&group, waiting).await;
        if unstored.is_empty() {
            retry = RETRY_FIRST;
            continue;
        }
        group.results.waiting().extend(unstored);
        tokio::select! {
            () = pace(retry) => {}
            () = &mut ended => return,
        }
        retry = (retry * 2).min(RETRY_MOST);
    }
}

/// Returns those that are to be stored when the store is there again.
async fn store_all<S: Backend>(group: &Group<S>, waiting: Vec<Waiting>) -> Vec<Waiting> {
    let steps: Vec<&Step> = waiting.iter().map(|waiting| &waiting.step).collect();
    let result = match commit(group, &steps).await {
        Ok(()) => Ok(()),
        Err(Unstored::Nothing(Trouble::Store(error))) if is_away(&error) => {
            group.note_trouble("results of calls cannot be stored", &error);
            return waiting;
        }
        Err(Unstored::Nothing(_)) if waiting.len() > 1 => return store_singly(group, waiting).await,
        Err(unstored) => Err(unstored.trouble()),
    };
    for waiting in waiting {
        // Whoever has gone does not want to know.
        let _ = waiting
            .answer
            .send(result.as_ref().map_or_else(|trouble| Err(same(trouble)), |()| Ok(())));
    }
    Vec::new()
}

/// The store refused them together, and one alone may be the reason.
async fn store_singly<S: Backend>(group: &Group<S>, waiting: Vec<Waiting>) -> Vec<Waiting> {
    let mut waiting = waiting.into_iter();
    while let Some(one) = waiting.next() {
        if one.answer.is_closed() {
            continue;
        }
        match commit(group, &[&one.step]).await {
            Err(Unstored::Nothing(Trouble::Store(error))) if is_away(&error) => {
                return [one].into_iter().chain(waiting).collect();
            }
            stored => drop(one.answer.send(stored.map_err(Unstored::trouble))),
        }
    }
    Vec::new()
}

/// Whether the store is in a trouble that has nothing to do with what is stored, and nothing was.
fn is_away(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::Unreachable | StoreErrorKind::Full)
}

fn same(trouble: &Trouble) -> Trouble {
    let copy = |error: &StoreError| StoreError::new(error.kind(), "storing results of calls", chain(error).to_string());
    match trouble {
        Trouble::Store(error) => Trouble::Store(copy(error)),
        Trouble::Somebody(error) => Trouble::Somebody(copy(error)),
        Trouble::Conflict(_) => Trouble::Conflict(None),
        Trouble::HeldLimit => Trouble::HeldLimit,
        Trouble::InDoubt | Trouble::Message { .. } => Trouble::InDoubt,
    }
}

/// Why steps were not stored. [`Trouble::InDoubt`] says too little: before COMMIT it is a fence, and nothing happened.
enum Unstored {
    Nothing(Trouble),
    Perhaps,
}

impl Unstored {
    fn trouble(self) -> Trouble {
        match self {
            Unstored::Nothing(trouble) => trouble,
            Unstored::Perhaps => Trouble::InDoubt,
        }
    }
}

async fn commit<S: Backend>(group: &Group<S>, steps: &[&Step]) -> Result<(), Unstored> {
    let nothing = |error: StoreError| Unstored::Nothing(error.into());
    let mut tx = group.store().begin(group.scope()).await.map_err(nothing)?;
    if let Err(trouble) = write(group, &mut tx, steps).await {
        // The next one may want the same rows.
        tx.rollback().await.map_err(nothing)?;
        return Err(Unstored::Nothing(trouble));
    }
    faults::point("effect.before_commit");
    tx.commit().await.map_err(|error| match Trouble::from(error) {
        Trouble::InDoubt => Unstored::Perhaps,
        trouble => Unstored::Nothing(trouble),
    })?;
    faults::point("effect.after_commit");
    count(&group.meter.counters.commits, 1);
    Ok(())
}

async fn write<S: Backend>(group: &Group<S>, tx: &mut Tx<S>, steps: &[&Step]) -> Result<(), Trouble> {
    let store = group.store();
    let results = steps.iter().flat_map(|step| &step.results);
    let mut results: Vec<(&str, &str)> = results.map(|(id, result)| (id.as_str(), result.as_str())).collect();
    // In one order everywhere, or two owners of the same ids would wait for each other.
    results.sort_unstable();
    if !results.is_empty() && !faults::defect("effect_result_not_stored") {
        store.finish_effects(tx, group.name(), &results, group.now()).await?;
    }
    let counted: Vec<&str> = steps
        .iter()
        .flat_map(|step| &step.counted)
        .map(String::as_str)
        .collect();
    if !counted.is_empty() {
        store.clear_attempts(tx, group.name(), &counted).await?;
    }
    let outgoing: Vec<NewEvent> = steps.iter().flat_map(|step| &step.outgoing).cloned().collect();
    if !outgoing.is_empty() {
        append(group, tx, &outgoing).await?;
    }
    let moves: Vec<Move> = steps.iter().filter_map(|step| step.advance).collect();
    if moves.len() < steps.len() {
        // All of them, also those that move: rows are locked in the order of lanes.
        let cursors: Vec<Cursor> = steps.iter().map(|step| step.cursor).collect();
        store.fence(tx, group.name(), &cursors).await?;
    }
    if !moves.is_empty() {
        store.advance(tx, group.name(), &moves).await?;
    }
    Ok(())
}

/// Inserts what calls published. Whoever may write results and not these events has published something that a rule of the
/// table's owner refuses.
pub(crate) async fn append<S: Backend>(group: &Group<S>, tx: &mut Tx<S>, outgoing: &[NewEvent]) -> Result<(), Trouble> {
    group.append(tx, outgoing).await.map_err(|error| match error.kind() {
        StoreErrorKind::Refused => Trouble::Somebody(error),
        _ => error.into(),
    })
}
