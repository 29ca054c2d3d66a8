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
//! - a commit is not answered, or this task is dropped: the lanes of all its steps are in doubt.

use crate::{
    batch::Trouble,
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
};
use tokio::sync::{Notify, oneshot};

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

    fn take(&self) -> Vec<Waiting> {
        let mut waiting = std::mem::take(&mut *self.waiting());
        waiting.retain(|waiting| !waiting.answer.is_closed());
        waiting
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until `ended`: whoever has steps to store ends before.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>, ended: impl Future<Output = ()>) {
    let mut ended = pin!(ended);
    loop {
        let waiting = group.results.take();
        if !waiting.is_empty() {
            store_all(&group, waiting).await;
            continue;
        }
        tokio::select! {
            biased;
            () = group.results.came.notified() => {}
            () = &mut ended => return,
        }
    }
}

async fn store_all<S: Backend>(group: &Group<S>, waiting: Vec<Waiting>) {
    let steps: Vec<&Step> = waiting.iter().map(|waiting| &waiting.step).collect();
    let result = match commit(group, &steps).await {
        Ok(()) => Ok(()),
        Err(Unstored { may_be_one, .. }) if may_be_one && waiting.len() > 1 => {
            return store_singly(group, waiting).await;
        }
        Err(unstored) => Err(unstored.trouble),
    };
    for waiting in waiting {
        // Whoever has gone does not want to know.
        let _ = waiting
            .answer
            .send(result.as_ref().map_or_else(|trouble| Err(same(trouble)), |()| Ok(())));
    }
}

async fn store_singly<S: Backend>(group: &Group<S>, waiting: Vec<Waiting>) {
    for Waiting { step, answer } in waiting {
        if !answer.is_closed() {
            let stored = commit(group, &[&step]).await;
            let _ = answer.send(stored.map_err(|unstored| unstored.trouble));
        }
    }
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

/// Steps were not stored together.
struct Unstored {
    trouble: Trouble,
    /// Nothing was committed, and one of them alone may be the reason.
    may_be_one: bool,
}

async fn commit<S: Backend>(group: &Group<S>, steps: &[&Step]) -> Result<(), Unstored> {
    let refused = |trouble: Trouble| Unstored {
        may_be_one: !matches!(trouble, Trouble::Store(_)),
        trouble,
    };
    let mut tx = group
        .store()
        .begin(group.scope())
        .await
        .map_err(|error| refused(error.into()))?;
    write(group, &mut tx, steps).await.map_err(refused)?;
    faults::point("effect.before_commit");
    tx.commit().await.map_err(|error| {
        let trouble = Trouble::from(error);
        Unstored {
            may_be_one: matches!(trouble, Trouble::Conflict(_) | Trouble::Somebody(_)),
            trouble,
        }
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
    let (mut moves, mut stay) = (Vec::new(), Vec::new());
    for step in steps {
        match step.advance {
            Some(advance) => moves.push(advance),
            None => stay.push(step.cursor),
        }
    }
    if !stay.is_empty() {
        store.fence(tx, group.name(), &stay).await?;
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
