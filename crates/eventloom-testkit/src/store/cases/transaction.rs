//! A transaction is all or nothing, has one savepoint, and is undone by dropping it.

use crate::store::{
    check::{Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{events, ids, ids_of, read_all, read_quiet},
};
use eventloom_core::{
    LaneCount, StoreError, StoreErrorKind,
    ports::{Held as _, LetGo, Outbox as _, Store, Transaction as _},
};
use std::{error::Error, fmt};

pub(super) async fn a_store_tells_what_it_is<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    store.ping().await?;
    same("lanes", store.lanes(), LaneCount::default())?;
    holds("it has a name", !F::Store::NAME.is_empty(), F::Store::NAME)?;
    holds("it has a place", !store.place().is_empty(), store.place())?;
    let capacity = store.capacity();
    holds("it has a connection", capacity.connections_max >= 1, capacity)?;
    let several = fixture.capabilities().concurrent_writers;
    same(
        "several writers make progress at once",
        capacity.writers_max > 1,
        several && capacity.connections_max > 1,
    )
}

pub(super) async fn a_savepoint_undoes_what_came_after_it<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let given = events(&["before", "after", "instead"]);
    let mut open = writer.begin().await?;
    F::Store::append(store.tables(), &mut open, &given[..1]).await?;
    open.savepoint().await?;
    F::Store::append(store.tables(), &mut open, &given[1..2]).await?;
    open.rollback_to_savepoint().await?;
    F::Store::append(store.tables(), &mut open, &given[2..]).await?;
    open.commit().await?;
    same(
        "rows",
        ids(&read_all(&store).await?),
        [given[0].id().to_string(), given[2].id().to_string()],
    )
}

pub(super) async fn setting_the_savepoint_again_moves_it<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let given = events(&["one", "two", "three", "four"]);
    let mut open = writer.begin().await?;
    for event in &given[..3] {
        F::Store::append(store.tables(), &mut open, std::slice::from_ref(event)).await?;
        if event != &given[2] {
            open.savepoint().await?;
        }
    }
    open.rollback_to_savepoint().await?;
    // It is still set: undoing again undoes what came since.
    F::Store::append(store.tables(), &mut open, &given[3..]).await?;
    open.rollback_to_savepoint().await?;
    open.commit().await?;
    same("rows", ids(&read_all(&store).await?), ids_of(&given[..2]))
}

pub(super) async fn a_savepoint_goes_with_its_transaction<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let given = events(&["one", "two"]);
    let mut undone = writer.begin().await?;
    undone.savepoint().await?;
    F::Store::append(store.tables(), &mut undone, &given).await?;
    undone.rollback().await?;
    let mut open = writer.begin().await?;
    open.savepoint().await?;
    F::Store::append(store.tables(), &mut open, &given).await?;
    open.commit().await?;
    same("rows", ids(&read_all(&store).await?), ids_of(&given))
}

pub(super) async fn a_savepoint_gives_locks_back<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    billing
        .commit(async |connection| {
            store
                .lock_key(connection, &billing.reader, "a", eventloom_core::Lane(0))
                .await
        })
        .await?;
    let mut open = billing.begin().await?;
    open.savepoint().await?;
    let shared = store.share_keys(&mut open, &billing.reader, &["a"]).await?;
    same("keys that are there", shared.len(), 1)?;
    open.rollback_to_savepoint().await?;
    same(
        "letting go does not wait for a lock that was given back",
        billing.let_go("a", None).await?,
        LetGo::Free,
    )?;
    open.rollback().await?;
    Ok(())
}

/// Whoever drops transactions leaves the store as it found it, with all of its connections.
pub(super) async fn dropping_rolls_back<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    for _ in 0..store.capacity().connections_max + 2 {
        let mut dropped = writer.begin().await?;
        F::Store::append(store.tables(), &mut dropped, &events(&["x"])).await?;
        drop(dropped);
    }
    let kept = events(&["a"]);
    writer.append(&kept).await?;
    same("rows", ids(&read_quiet(&store).await?), ids_of(&kept))
}

#[derive(Debug)]
struct Wrapped(Option<StoreError>);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a handler failed")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|error| error as _)
    }
}

pub(super) async fn trouble_is_found_behind_an_error<F: Fixture>(_: &F) -> Outcome {
    let kinds = [
        StoreErrorKind::Conflict,
        StoreErrorKind::Aborted,
        StoreErrorKind::Unreachable,
        StoreErrorKind::Full,
    ];
    for kind in kinds {
        let error = || StoreError::new(kind, "testing", "trouble");
        same("the error itself", F::Store::kind_of(&error()), Some(kind))?;
        same("a source of it", F::Store::kind_of(&Wrapped(Some(error()))), Some(kind))?;
    }
    same("another error", F::Store::kind_of(&Wrapped(None)), None)
}
