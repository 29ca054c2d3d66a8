//! Operators see where readers stand, what waits, and where the log stands.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::{Instance, LEASE},
    sample::{at, behind, consumer, dead, event, events, failure, in_hours, message, read_all, waiting},
};
use eventloom_core::{
    Lane, Position,
    ports::{
        Cursor, Held as _, Leases as _, Log as _, NewHeld, Outbox as _, Readers as _, Start, Store as _,
        Transaction as _,
    },
};
use std::time::Duration;

const LATER: i64 = LEASE.as_secs() as i64 + 1;

pub(super) async fn readers_are_listed_by_name<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    same("none", store.readers(at(0)).await?.len(), 0)?;
    for name in ["mailer", "billing", "totals"] {
        store.register(&consumer(name)?, Start::Earliest, at(0)).await?;
    }
    let names: Vec<String> = store
        .readers(at(0))
        .await?
        .into_iter()
        .map(|status| status.name)
        .collect();
    same("names", names, ["billing", "mailer", "totals"])
}

pub(super) async fn a_new_reader_has_nothing_to_tell<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    store.register(&consumer("billing")?, Start::Earliest, at(0)).await?;
    let found = Instance::new(&store, "billing")?.status(at(0)).await?;
    same("paused", found.paused, false)?;
    same("lag and oldest", (found.lag_messages, found.oldest), (0, None))?;
    same(
        "held keys, waiting, dead",
        (found.held_keys, found.waiting, found.dead),
        (0, 0, 0),
    )?;
    same(
        "first dead, last error",
        (found.first_dead_at, found.last_error),
        (None, None),
    )?;
    let lanes: Vec<Lane> = found.lanes.iter().map(|lane| lane.lane).collect();
    same("lanes, in order", lanes, store.lanes().all().collect::<Vec<_>>())?;
    let owners: Vec<&String> = found.lanes.iter().filter_map(|lane| lane.owner.as_ref()).collect();
    same("owners", owners, Vec::<&String>::new())
}

pub(super) async fn lag_is_what_lies_above_the_cursors<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    billing.append(&events(&["a", "b", "a", "c"])).await?;
    let rows = read_all(&store).await?;
    let lag = async || billing.status(in_hours(1)).await.map(|status| status.lag_messages);
    same("in the beginning", lag().await?, 4)?;
    billing
        .advance_to(&[billing.cursor(rows[0].lane)?], rows[0].position)
        .await?;
    same("after one", lag().await?, 3)?;
    let status = billing.status(in_hours(1)).await?;
    let hour = Duration::from_secs(3_600);
    let age = status.oldest.unwrap_or_default();
    holds(
        "the oldest is an hour old in an hour",
        age.abs_diff(hour) < Duration::from_secs(600),
        status.oldest,
    )?;
    // The other lanes hold nothing: that they stand lower is no lag.
    for row in &rows {
        billing
            .advance_to(&[billing.cursor(row.lane)?], rows[3].position)
            .await?;
    }
    let status = billing.status(in_hours(1)).await?;
    same("at the end", (status.lag_messages, status.oldest), (0, None))?;
    store.publish_alone(event("a")).await?;
    same("one more", lag().await?, 1)
}

pub(super) async fn what_is_held_is_counted<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let mailer = Instance::alone(&store, "mailer").await?;
    let (old, new) = (failure("the older"), failure("the newer"));
    let [a1, a2, b3, alone] = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3), (None, 4)].map(|(k, p)| message(k, p));
    billing.hold(&[dead(&a1, &old), behind(&a2), waiting(&b3, 9)]).await?;
    let late = [dead(&alone, &new)];
    billing
        .commit(async |connection| {
            store
                .put(connection, &billing.reader, &billing.owner, &late, at(100))
                .await
        })
        .await?;
    let found = billing.status(at(200)).await?;
    same(
        "held keys, waiting, dead",
        (found.held_keys, found.waiting, found.dead),
        (2, 2, 2),
    )?;
    same("first failure among the dead", found.first_dead_at, at(0))?;
    same(
        "error of the one that failed last",
        found.last_error.as_deref(),
        Some("the newer"),
    )?;
    let found = mailer.status(at(200)).await?;
    same(
        "of another reader",
        (found.held_keys, found.waiting, found.dead),
        (0, 0, 0),
    )
}

/// Of two that failed the later one, however much waits beside them without having failed.
pub(super) async fn the_error_of_what_waits_is_told<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let messages: Vec<_> = (1..=100).map(|position| message(Some("a"), position)).collect();
    let unfailed: Vec<_> = messages.iter().map(behind).collect();
    billing.hold(&unfailed).await?;
    for (key, error, failed_at) in [("b", "the older", 1), ("c", "the newest", 9), ("d", "the newer", 5)] {
        let (failed, failure) = (message(Some(key), 100 + failed_at), failure(error));
        let failed = [NewHeld {
            failure: Some(&failure),
            ..waiting(&failed, 60)
        }];
        billing
            .commit(async |connection| {
                store
                    .put(connection, &billing.reader, &billing.owner, &failed, at(failed_at))
                    .await
            })
            .await?;
    }
    let found = billing.status(at(200)).await?;
    same(
        "error of the one that failed last",
        found.last_error.as_deref(),
        Some("the newest"),
    )
}

pub(super) async fn owners_are_told_while_they_live<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut first = Instance::alone(&store, "billing").await?;
    let mut second = Instance::new(&store, "billing")?;
    second.keep(at(1)).await?;
    let given: Vec<Cursor> = first.held[32..].to_vec();
    first.release(&given[1..], false).await?;
    second.keep(at(1)).await?;
    first.release(&given[..1], false).await?;
    let found = first.status(at(2)).await?;
    for lane in found.lanes {
        let wanted = match lane.lane.0 {
            0..32 => Some(first.owner.as_str()),
            32 => None,
            _ => Some(second.owner.as_str()),
        };
        same(&format!("owner of lane {}", lane.lane), lane.owner.as_deref(), wanted)?;
    }
    // Long after both leases.
    let found = first.status(at(LATER + LATER)).await?;
    let owners: Vec<String> = found.lanes.into_iter().filter_map(|lane| lane.owner).collect();
    same("owners whose lease is over", owners, Vec::<String>::new())
}

pub(super) async fn a_log_tells_where_it_stands<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let empty = store.log_status().await?;
    store.publish_alone(event("a")).await?;
    let status = store.log_status().await?;
    let row = read_all(&store).await?[0].position;
    same("head and horizon", (status.head, status.horizon), (row, row))?;
    holds(
        "the head of an empty log is below its first row",
        empty.head < row,
        (empty.head, row),
    )?;
    same("pruned to", status.pruned_to, Position::START)?;
    same("who holds it back", status.held_by, None)?;
    let other = fixture.again(&store).await.log_status().await?;
    same("identity in another process", other.identity, status.identity)?;
    let elsewhere = fixture.fresh().await.log_status().await?;
    holds(
        "another log has another identity",
        elsewhere.identity != status.identity,
        status.identity,
    )
}

pub(super) async fn who_holds_the_horizon_back_is_told<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let mut open = writer.begin().await?;
    F::Store::append(store.tables(), &mut open, &events(&["a"])).await?;
    let status = store.log_status().await?;
    holds("the horizon is held back", status.horizon < status.head, &status)?;
    let Some(blocker) = status.held_by else {
        return Err(Failed::new("nobody is told"));
    };
    holds("it has a backend", blocker.pid.is_some(), &blocker)?;
    holds("its query is bounded", blocker.query.chars().count() <= 200, &blocker)?;
    open.rollback().await?;
    same("when it has ended", store.log_status().await?.held_by, None)
}
