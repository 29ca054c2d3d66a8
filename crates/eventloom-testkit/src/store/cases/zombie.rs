//! A former owner, frozen or merely late, leaves nothing behind.

use super::fence::{LATER, advance, fenced, mark, stands, step};
use crate::store::{
    check::{Outcome, holds, refused, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, events, ids, ids_of, read_all},
};
use eventloom_core::{
    Lane, Position,
    ports::{Cursor, FenceError, Leases as _, Outbox as _, Start, Store as _, Transaction as _},
};

pub(super) async fn who_released_a_lane_is_fenced_by_the_next<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut first = Instance::alone(&store, "billing").await?;
    let mut second = Instance::new(&fixture.again(&store).await, "billing")?;
    let one = first.cursor(Lane(1))?;
    second.keep(at(1)).await?;
    first.release(&[one], false).await?;
    second.keep(at(1)).await?;
    refused(
        "advance by who released it",
        advance::<F>(&first, &[step(one, 0, 10)]).await,
        fenced,
    )?;
    let new = second.cursor(Lane(1))?;
    advance::<F>(&second, &[step(new, 0, 10)]).await?;
    same("where it stands", stands::<F>(&first, 1).await?, Position(10))
}

/// Its transaction was open when the lanes went to somebody else: it cannot end, and nothing of it stays.
pub(super) async fn a_zombie_commits_nothing<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let zombie = Instance::alone(&store, "billing").await?;
    let mut successor = Instance::new(&fixture.again(&store).await, "billing")?;
    let one = zombie.cursor(Lane(1))?;
    let mut open = zombie.begin().await?;
    F::Store::append(store.tables(), &mut open, &events(&["effect"])).await?;
    let tenure = successor.keep(at(LATER)).await?;
    same("lanes of the successor", tenure.owned.len(), 64)?;
    let ended = fixture.capabilities().terminates_former_owners;
    let advanced = store.advance(&mut open, &zombie.reader, &[step(one, 0, 10)]).await;
    refused("the zombie's last statement", advanced, |error| {
        fenced(error) || (ended && matches!(error, FenceError::Store(_)))
    })?;
    let rolled_back = open.rollback().await;
    holds("it rolls back, or was ended", rolled_back.is_ok() || ended, rolled_back)?;
    same("rows that it left behind", ids(&read_all(&store).await?), ids_of(&[]))?;
    let new = successor.cursor(Lane(1))?;
    advance::<F>(&successor, &[step(new, 0, 20)]).await?;
    same("where the lane stands", stands::<F>(&successor, 1).await?, Position(20))
}

/// It goes on with short transactions, as a process that was frozen and thawed does.
pub(super) async fn a_thawed_owner_does_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let zombie = Instance::alone(&store, "billing").await?;
    let mut successor = Instance::new(&fixture.again(&store).await, "billing")?;
    let one = zombie.cursor(Lane(1))?;
    successor.keep(at(LATER)).await?;
    for round in 0..3 {
        let mut open = zombie.begin().await?;
        F::Store::append(store.tables(), &mut open, &events(&["effect"])).await?;
        let advanced = store.advance(&mut open, &zombie.reader, &[step(one, 0, 10)]).await;
        refused("its last statement", advanced, fenced)?;
        open.rollback().await?;
        refused("its marks", mark::<F>(&zombie, &[(one, Position(99))]).await, fenced)?;
        let new = successor.cursor(Lane(1))?;
        advance::<F>(&successor, &[step(new, round, round + 1)]).await?;
    }
    same("rows that it left behind", ids(&read_all(&store).await?), ids_of(&[]))?;
    same("where the lane stands", stands::<F>(&successor, 1).await?, Position(3))
}

/// The owner's last statement came first: then it holds the lane until it ends, and whoever comes does not wait for it.
pub(super) async fn a_lane_that_is_locked_is_passed_over<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let first = Instance::alone(&store, "billing").await?;
    let mut second = Instance::new(&fixture.again(&store).await, "billing")?;
    let one = first.cursor(Lane(1))?;
    let mut open = first.begin().await?;
    store.advance(&mut open, &first.reader, &[step(one, 0, 10)]).await?;
    let tenure = second.keep(at(LATER)).await?;
    let owned: Vec<Lane> = tenure.owned.iter().map(|cursor| cursor.lane).collect();
    let others: Vec<Lane> = store.lanes().all().filter(|lane| *lane != one.lane).collect();
    let ended = fixture.capabilities().terminates_former_owners;
    holds(
        "all lanes but the locked one",
        owned == others || (ended && owned.len() == 64),
        owned.len(),
    )?;
    let committed = open.commit().await;
    holds("it commits, or was ended", committed.is_ok() || ended, &committed)?;
    let tenure = second.keep(at(LATER)).await?;
    same("lanes of the successor at the next look", tenure.owned.len(), 64)?;
    let wanted = if committed.is_ok() { Position(10) } else { Position(0) };
    same("where the lane stands", stands::<F>(&first, 1).await?, wanted)?;
    refused(
        "a further step of the first",
        advance::<F>(&first, &[step(one, wanted.0, 30)]).await,
        fenced,
    )
}

pub(super) async fn a_fence_holds_until_its_transaction_ends<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let one = billing.cursor(Lane(1))?;
    store.register(&billing.reader, Start::Earliest, at(0)).await?;
    let mut open = billing.begin().await?;
    store.fence(&mut open, &billing.reader, &[one]).await?;
    let tenure = Instance::new(&store, "billing")?.keep(at(LATER)).await?;
    let taken = tenure.owned.iter().any(|cursor| cursor.lane == one.lane);
    let committed = open.commit().await;
    // One that was ended before it committed is fenced too.
    let ended = fixture.capabilities().terminates_former_owners && committed.is_err();
    holds(
        "it commits and keeps its lane, or does neither",
        committed.is_ok() != taken || ended,
        (taken, committed),
    )
}

/// Its own transaction still holds a lane when its lease has lapsed: that lane is not its own under the old epoch.
pub(super) async fn a_lapsed_lane_in_use_is_lost<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let mut billing = Instance::alone(&store, "billing").await?;
    let old = billing.held.clone();
    let one = billing.cursor(Lane(1))?;
    let mut open = billing.begin().await?;
    store.fence(&mut open, &billing.reader, &[one]).await?;
    let tenure = billing.keep(at(LATER)).await?;
    let revived: Vec<&Cursor> = tenure.owned.iter().filter(|cursor| old.contains(cursor)).collect();
    same(
        "lanes that it owns under an epoch from before",
        revived,
        Vec::<&Cursor>::new(),
    )?;
    open.rollback().await?;
    let tenure = billing.keep(at(LATER)).await?;
    same("lanes at the next look", tenure.owned.len(), 64)?;
    refused(
        "a step under the old epoch",
        advance::<F>(&billing, &[step(one, 0, 10)]).await,
        fenced,
    )
}
