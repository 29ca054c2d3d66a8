//! A log is pruned behind its slowest reader, and nobody reads over the gap without being told.

use crate::store::{
    check::{Failed, Outcome, holds, refused, same},
    fixture::Fixture,
    instance::Instance,
    sample::{events, in_hours, positions, read_all, read_from},
};
use eventloom_core::{
    Lane, Position,
    ports::{Backend, Log as _, Pruned, ReadError, ReadLimits, Readers as _},
};
use futures::future::join_all;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

/// A reader that owns all lanes, and a log of six rows.
async fn six_rows<F: Fixture>(fixture: &F) -> Result<(Instance<F::Store>, Vec<i64>), Failed> {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    billing.append(&events(&["a", "b", "c", "d", "e", "f"])).await?;
    let rows = positions(&read_all(&store).await?);
    Ok((billing, rows))
}

/// Prunes what is older than an hour, in two hours.
async fn prune<S: Backend>(store: &S, rows_max: u32) -> Result<Pruned, Failed> {
    Ok(store.prune(HOUR, rows_max, in_hours(2)).await?)
}

/// What is left is rows from number `first` on, and the log says so.
async fn left<S: Backend>(store: &S, rows: &[i64], first: usize) -> Outcome {
    let pruned_to = store.log_status().await?.pruned_to;
    let last_gone = first.checked_sub(1).map_or(0, |gone| rows[gone]);
    let in_the_gap = last_gone <= pruned_to.0 && rows.get(first).is_none_or(|row| pruned_to.0 < *row);
    holds(
        "pruned to where the gap is",
        in_the_gap,
        (pruned_to, &rows[..first], &rows[first..]),
    )?;
    same(
        "rows that are left",
        positions(&read_from(store, pruned_to).await?),
        &rows[first..],
    )
}

pub(super) async fn nothing_goes_without_a_reader<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?.append(&events(&["a", "b"])).await?;
    let pruned = prune(&store, 100).await?;
    same(
        "pruned",
        (pruned.rows, pruned.pruned_to, pruned.more),
        (0, Position::START, false),
    )?;
    same("rows that are left", read_all(&store).await?.len(), 2)
}

pub(super) async fn nothing_goes_above_the_slowest_lane<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let store = &billing.store;
    let slow = billing.cursor(Lane(17))?;
    let fast: Vec<_> = billing.held.iter().copied().filter(|cursor| *cursor != slow).collect();
    billing.advance_to(&fast, Position(rows[5])).await?;
    same("while one lane has not begun", prune(store, 100).await?.rows, 0)?;
    left(store, &rows, 0).await?;
    billing.advance_to(&[slow], Position(rows[2])).await?;
    let pruned = prune(store, 100).await?;
    same("up to the slowest lane", (pruned.rows, pruned.more), (3, false))?;
    left(store, &rows, 3).await?;
    billing.advance_to(&[slow], Position(rows[5])).await?;
    same("all the rest", prune(store, 100).await?.rows, 3)?;
    left(store, &rows, 6).await
}

pub(super) async fn nothing_goes_above_the_slowest_reader<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let store = &billing.store;
    let mailer = Instance::alone(store, "mailer").await?;
    billing.advance_to(&billing.held, Position(rows[5])).await?;
    mailer.advance_to(&mailer.held, Position(rows[1])).await?;
    store.pause(&mailer.reader, true).await?;
    same("up to the slowest, paused or not", prune(store, 100).await?.rows, 2)?;
    left(store, &rows, 2).await?;
    same("it is dropped", store.drop_reader(&mailer.reader).await?, true)?;
    same("all the rest", prune(store, 100).await?.rows, 4)?;
    left(store, &rows, 6).await
}

pub(super) async fn young_rows_are_kept<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let store = &billing.store;
    billing.advance_to(&billing.held, Position(rows[5])).await?;
    let pruned = store.prune(HOUR * 3, 100, in_hours(2)).await?;
    same(
        "rows of two hours, kept for three",
        (pruned.rows, pruned.more),
        (0, false),
    )?;
    let pruned = store.prune(HOUR, 100, None).await?;
    same(
        "rows of a moment, kept for an hour, by the database's clock",
        (pruned.rows, pruned.more),
        (0, false),
    )?;
    left(store, &rows, 0).await?;
    same("rows of two hours, kept for one", prune(store, 100).await?.rows, 6)?;
    left(store, &rows, 6).await
}

/// A row that says a time to come would otherwise stop it for ever.
pub(super) async fn with_nothing_to_keep_no_time_counts<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    billing.advance_to(&billing.held, Position(rows[5])).await?;
    let pruned = billing.store.prune(Duration::ZERO, 100, in_hours(-2)).await?;
    same("rows", (pruned.rows, pruned.more), (6, false))?;
    left(&billing.store, &rows, 6).await
}

pub(super) async fn it_goes_in_bounded_steps<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let store = &billing.store;
    billing.advance_to(&billing.held, Position(rows[4])).await?;
    for (first, wanted) in [(2, (2, true)), (4, (2, true)), (5, (1, false)), (5, (0, false))] {
        let pruned = prune(store, 2).await?;
        same("rows, more", (pruned.rows, pruned.more), wanted)?;
        same(
            "what is told is what is",
            store.log_status().await?.pruned_to,
            pruned.pruned_to,
        )?;
        left(store, &rows, first).await?;
    }
    Ok(())
}

pub(super) async fn a_full_step_that_ends_it_is_the_last<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    billing.advance_to(&billing.held, Position(rows[2])).await?;
    let pruned = prune(&billing.store, 3).await?;
    same("rows", pruned.rows, 3)?;
    let next = prune(&billing.store, 3).await?;
    same("rows of the next, more", (next.rows, next.more), (0, false))
}

/// It has returned, so it is no longer the one instance that prunes.
pub(super) async fn who_found_nothing_is_out_of_the_way<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    for round in 0..20 {
        billing.append(&events(&["a"])).await?;
        let row = read_from(&store, store.log_status().await?.pruned_to)
            .await?
            .remove(0)
            .position;
        billing.advance_to(&billing.held, row).await?;
        let nothing = store.prune(HOUR * 3, 100, in_hours(2)).await?;
        same(&format!("rows that are too young, in round {round}"), nothing.rows, 0)?;
        same(
            &format!("rows that are old, in round {round}"),
            prune(&store, 100).await?.rows,
            1,
        )?;
    }
    Ok(())
}

pub(super) async fn reading_over_the_gap_is_refused<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let store = &billing.store;
    billing.advance_to(&billing.held, Position(rows[3])).await?;
    let pruned_to = prune(store, 100).await?.pruned_to;
    let horizon = store.horizon().await?.position;
    let told = |error: &ReadError, place: Position| matches!(error, ReadError::Pruned { after, pruned_to: to } if (*after, *to) == (place, pruned_to));
    for place in [Position::START, Position(rows[0]), Position(pruned_to.0 - 1)] {
        let read = store.read_after(place, ReadLimits::default()).await;
        refused(&format!("reading after {place}"), read, |error| told(error, place))?;
        let read = store.read_lane(Lane(1), place, horizon, ReadLimits::default()).await;
        refused(&format!("reading a lane after {place}"), read, |error| {
            told(error, place)
        })?;
    }
    left(store, &rows, 4).await?;
    let page = store
        .read_lane(Lane(1), pruned_to, horizon, ReadLimits::default())
        .await?;
    same("reading a lane from where it was pruned to", page.scanned_to, horizon)
}

/// Each row once, by whoever comes first; the others do not wait for it in vain.
pub(super) async fn many_pruners_are_one<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = six_rows(fixture).await?;
    let other = fixture.again(&billing.store).await;
    billing.advance_to(&billing.held, Position(rows[4])).await?;
    let stores = [&billing.store, &other, &billing.store, &other];
    let pruned = join_all(stores.map(|store| prune(store, 100)))
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let sum: u64 = pruned.iter().map(|pruned| pruned.rows).sum();
    same("rows pruned by all of them", sum, 5)?;
    left(&other, &rows, 5).await
}
