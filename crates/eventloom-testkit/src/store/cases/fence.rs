//! Whoever does not own a lane any more moves nothing: epochs fence, positions are compared.

use crate::store::{
    check::{Failed, Outcome, refused, same},
    fixture::Fixture,
    instance::{Instance, LEASE},
    sample::at,
};
use eventloom_core::{
    Epoch, Lane, Position,
    ports::{Cursor, FenceError, Leases as _, Move, Transaction as _},
};
use futures::future::join;

/// After a lease of second 0.
pub(super) const LATER: i64 = LEASE.as_secs() as i64 + 1;

pub(super) fn step(cursor: Cursor, from: i64, to: i64) -> Move {
    Move {
        cursor,
        from: Position(from),
        to: Position(to),
        batch_end: None,
        confirmed: None,
    }
}

pub(super) fn fenced(error: &FenceError) -> bool {
    matches!(error, FenceError::Fenced)
}

/// Moves in a transaction that ends with them.
pub(super) async fn advance<F: Fixture>(of: &Instance<F::Store>, moves: &[Move]) -> Result<(), FenceError> {
    let mut open = of.begin().await?;
    match of.store.advance(&mut open, &of.reader, moves).await {
        Ok(()) => Ok(open.commit().await?),
        Err(error) => {
            open.rollback().await?;
            Err(error)
        }
    }
}

pub(super) async fn mark<F: Fixture>(of: &Instance<F::Store>, marks: &[(Cursor, Position)]) -> Result<(), FenceError> {
    let mut open = of.begin().await?;
    match of.store.mark(&mut open, &of.reader, marks).await {
        Ok(()) => Ok(open.commit().await?),
        Err(error) => {
            open.rollback().await?;
            Err(error)
        }
    }
}

async fn fence<F: Fixture>(of: &Instance<F::Store>, cursors: &[Cursor]) -> Result<(), FenceError> {
    let mut open = of.begin().await?;
    let answer = of.store.fence(&mut open, &of.reader, cursors).await;
    open.rollback().await?;
    answer
}

pub(super) async fn stands<F: Fixture>(of: &Instance<F::Store>, lane: i16) -> Result<Position, Failed> {
    Ok(of.stand().await?[&Lane(lane)])
}

pub(super) async fn an_owner_moves_its_lanes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let (one, two) = (billing.cursor(Lane(1))?, billing.cursor(Lane(2))?);
    advance::<F>(&billing, &[step(one, 0, 10), step(two, 0, 20)]).await?;
    advance::<F>(&billing, &[step(one, 10, 11)]).await?;
    advance::<F>(&billing, &[step(two, 20, 20)]).await?;
    let stand = billing.stand().await?;
    let wanted = |lane: Lane| Position([0, 11, 20].get(lane.0 as usize).copied().unwrap_or(0));
    for (lane, position) in stand {
        same(&format!("lane {lane}"), position, wanted(lane))?;
    }
    Ok(())
}

pub(super) async fn lanes_are_given_in_any_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let mut moves: Vec<Move> = billing
        .held
        .iter()
        .map(|cursor| step(*cursor, 0, 100 + i64::from(cursor.lane.0)))
        .collect();
    moves.reverse();
    advance::<F>(&billing, &moves).await?;
    for (lane, position) in billing.stand().await? {
        same(&format!("lane {lane}"), position, Position(100 + i64::from(lane.0)))?;
    }
    Ok(())
}

/// The answer to a commit was lost: repeating it must not go on from a place where it does not stand.
pub(super) async fn a_step_is_taken_once<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let one = billing.cursor(Lane(1))?;
    advance::<F>(&billing, &[step(one, 0, 10)]).await?;
    refused(
        "the same step again",
        advance::<F>(&billing, &[step(one, 0, 10)]).await,
        fenced,
    )?;
    refused(
        "a step from below",
        advance::<F>(&billing, &[step(one, 5, 15)]).await,
        fenced,
    )?;
    refused(
        "a step from above",
        advance::<F>(&billing, &[step(one, 12, 15)]).await,
        fenced,
    )?;
    same("where it stands", stands::<F>(&billing, 1).await?, Position(10))
}

pub(super) async fn another_epoch_is_fenced<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let one = billing.cursor(Lane(1))?;
    for epoch in [Epoch(one.epoch.0 - 1), Epoch(one.epoch.0 + 1)] {
        let stale = Cursor { epoch, ..one };
        refused("advance", advance::<F>(&billing, &[step(stale, 0, 10)]).await, fenced)?;
        refused("mark", mark::<F>(&billing, &[(stale, Position(10))]).await, fenced)?;
        for flushed in [true, false] {
            let alone = store
                .mark_alone(&billing.reader, &[(stale, Position(10))], flushed)
                .await;
            refused("mark alone", alone, fenced)?;
        }
        refused("fence", fence::<F>(&billing, &[stale]).await, fenced)?;
    }
    same("where it stands", stands::<F>(&billing, 1).await?, Position(0))?;
    fence::<F>(&billing, &[one]).await?;
    Ok(())
}

pub(super) async fn several_lanes_move_or_none<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let (one, two) = (billing.cursor(Lane(1))?, billing.cursor(Lane(2))?);
    let stale = Cursor {
        epoch: Epoch(two.epoch.0 - 1),
        ..two
    };
    let moves = [step(one, 0, 10), step(stale, 0, 10)];
    refused(
        "one of two epochs is stale",
        advance::<F>(&billing, &moves).await,
        fenced,
    )?;
    refused(
        "one of two stands elsewhere",
        advance::<F>(&billing, &[step(one, 0, 10), step(two, 3, 10)]).await,
        fenced,
    )?;
    let marks = [(one, Position(10)), (stale, Position(10))];
    refused("one of two marks", mark::<F>(&billing, &marks).await, fenced)?;
    let alone = store.mark_alone(&billing.reader, &marks, false).await;
    refused("one of two marks alone", alone, fenced)?;
    refused("one of two fences", fence::<F>(&billing, &[one, stale]).await, fenced)?;
    same("where the others stand", stands::<F>(&billing, 1).await?, Position(0))?;
    fence::<F>(&billing, &billing.held).await?;
    Ok(())
}

pub(super) async fn nothing_to_move_is_nothing_to_fence<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    advance::<F>(&billing, &[]).await?;
    mark::<F>(&billing, &[]).await?;
    store.mark_alone(&billing.reader, &[], true).await?;
    fence::<F>(&billing, &[]).await?;
    Ok(())
}

/// What a successor sees of lane 1's batch end, when the owner did these things.
async fn batch_end_after<F: Fixture>(
    fixture: &F,
    marks: &[i64],
    moves: &[(i64, i64, Option<i64>)],
) -> Result<Position, Failed> {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let one = billing.cursor(Lane(1))?;
    for (nth, to) in marks.iter().enumerate() {
        let marks = [(one, Position(*to))];
        match nth % 2 {
            0 => mark::<F>(&billing, &marks).await?,
            _ => store.mark_alone(&billing.reader, &marks, nth % 3 == 0).await?,
        }
    }
    for (from, to, batch_end) in moves {
        let step = Move {
            batch_end: batch_end.map(Position),
            confirmed: None,
            ..step(one, *from, *to)
        };
        advance::<F>(&billing, &[step]).await?;
    }
    let tenure = Instance::new(&store, "billing")?.keep(at(LATER)).await?;
    let found = tenure.taken.iter().find(|taken| taken.cursor.lane == Lane(1));
    found
        .map(|taken| taken.batch_end.max(taken.position))
        .ok_or_else(|| Failed::new("lane 1 was not taken"))
}

pub(super) async fn the_end_of_a_batch_only_rises<F: Fixture>(fixture: &F) -> Outcome {
    same("marked", batch_end_after(fixture, &[50], &[]).await?, Position(50))?;
    same(
        "marked twice, then lower",
        batch_end_after(fixture, &[50, 70, 60, 65], &[]).await?,
        Position(70),
    )?;
    same(
        "with the step before",
        batch_end_after(fixture, &[], &[(0, 10, Some(40))]).await?,
        Position(40),
    )?;
    same(
        "lower with a step",
        batch_end_after(fixture, &[50], &[(0, 10, Some(40))]).await?,
        Position(50),
    )?;
    same(
        "a step alone keeps it",
        batch_end_after(fixture, &[50], &[(0, 10, None)]).await?,
        Position(50),
    )?;
    same(
        "a step past it",
        batch_end_after(fixture, &[50], &[(0, 60, None)]).await?,
        Position(60),
    )
}

/// Whoever locks several lanes locks them in their order, whatever order they were given in.
pub(super) async fn lanes_are_locked_in_their_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let first = Instance::alone(&store, "billing").await?;
    let mut second = Instance::new(&fixture.again(&store).await, "billing")?;
    second.held.clone_from(&first.held);
    for round in 0..10 {
        let moves: Vec<Move> = first
            .held
            .iter()
            .map(|cursor| step(*cursor, round, round + 1))
            .collect();
        let marks: Vec<(Cursor, Position)> = second
            .held
            .iter()
            .rev()
            .map(|cursor| (*cursor, Position(100)))
            .collect();
        let mut fences = second.held.clone();
        fences.sort_by_key(|cursor| (cursor.lane.0 * 37) % 64);
        let rest = async {
            mark::<F>(&second, &marks).await?;
            fence::<F>(&second, &fences).await
        };
        let (advanced, rest) = join(advance::<F>(&first, &moves), rest).await;
        advanced?;
        rest?;
    }
    same("where a lane stands", stands::<F>(&first, 1).await?, Position(10))
}
