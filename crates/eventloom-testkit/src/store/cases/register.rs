//! A reader is registered once, begins where it was told to, and is told what is gone.

use crate::store::{
    check::{Failed, Outcome, holds, refused, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, consumer, event, events, ids, in_hours, read_all, read_from},
};
use eventloom_core::{
    Lane, OffsetDateTime, Position,
    ports::{Leases as _, Log as _, Outbox as _, Readers as _, RegisterError, Start, Store as _, Transaction as _},
};
use std::{collections::BTreeSet, time::Duration};

/// Where each of its lanes stands: one place for all of 64.
async fn stands<F: Fixture>(store: &F::Store, reader: &str) -> Result<Position, Failed> {
    let stand = Instance::new(store, reader)?.stand().await?;
    same("lanes with a cursor", stand.len(), 64)?;
    let places: BTreeSet<Position> = stand.into_values().collect();
    holds("every lane stands at the same place", places.len() == 1, &places)?;
    places.into_iter().next().ok_or_else(|| Failed::new("no lane"))
}

pub(super) async fn earliest_begins_before_the_first_row<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?.append(&events(&["a", "b"])).await?;
    let registered = store.register(&consumer("billing")?, Start::Earliest, at(0)).await?;
    same("created", registered.created, true)?;
    same("pruned to", registered.pruned_to, Position::START)?;
    same(
        "rows to come",
        ids(&read_from(&store, registered.begins_after).await?),
        ids(&read_all(&store).await?),
    )?;
    same(
        "its lanes",
        stands::<F>(&store, "billing").await?,
        registered.begins_after,
    )
}

pub(super) async fn latest_begins_after_what_was_handed_out<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    writer.append(&events(&["a", "b"])).await?;
    let handed_out = store.horizon().await?.handed_out;
    let registered = store.register(&consumer("billing")?, Start::Latest, at(0)).await?;
    same("begins after", registered.begins_after, handed_out)?;
    same(
        "its lanes",
        stands::<F>(&store, "billing").await?,
        registered.begins_after,
    )?;
    store.publish_alone(event("c")).await?;
    same(
        "rows to come",
        read_from(&store, registered.begins_after).await?.len(),
        1,
    )
}

/// A writer in flight took its position before: its row is not latest.
pub(super) async fn latest_is_not_held_back_by_a_writer<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let mut open = writer.begin().await?;
    F::Store::append(store.tables(), &mut open, &events(&["a"])).await?;
    let registered = store.register(&consumer("billing")?, Start::Latest, at(0)).await?;
    open.commit().await?;
    let row = read_all(&store).await?[0].position;
    holds(
        "it begins after the row in flight",
        registered.begins_after >= row,
        (registered, row),
    )
}

pub(super) async fn a_position_is_where_it_begins<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?
        .append(&events(&["a", "b", "c"]))
        .await?;
    let second = read_all(&store).await?[1].position;
    let registered = store
        .register(&consumer("billing")?, Start::After(second), at(0))
        .await?;
    same("begins after", registered.begins_after, second)?;
    same("its lanes", stands::<F>(&store, "billing").await?, second)
}

pub(super) async fn a_time_is_where_it_begins<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?.append(&events(&["a", "b"])).await?;
    let rows = read_all(&store).await?;
    let now = OffsetDateTime::now_utc();
    let cases = [
        ("an-hour-ago", now - time::Duration::hours(1), 2),
        ("in-an-hour", now + time::Duration::hours(1), 0),
    ];
    for (name, time, wanted) in cases {
        let registered = store.register(&consumer(name)?, Start::Since(time), None).await?;
        let to_come = read_from(&store, registered.begins_after).await?;
        same(
            &format!("rows to come since {name}"),
            ids(&to_come),
            ids(&rows[..wanted]),
        )?;
        same("its lanes", stands::<F>(&store, name).await?, registered.begins_after)?;
    }
    Ok(())
}

pub(super) async fn once_is_enough<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut billing = Instance::alone(&store, "billing").await?;
    billing.append(&events(&["a", "b"])).await?;
    let rows = read_all(&store).await?;
    let moved = billing.cursor(rows[0].lane)?;
    billing.advance_to(&[moved], rows[0].position).await?;
    let before = billing.stand().await?;
    for start in [Start::Earliest, Start::Latest, Start::After(rows[1].position)] {
        let registered = store.register(&billing.reader, start, at(1)).await?;
        same("created", registered.created, false)?;
    }
    same("where its lanes stand", billing.stand().await?, before)?;
    let tenure = billing.keep(at(1)).await?;
    same(
        "lanes that its owner lost or took anew",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 0),
    )
}

/// Many instances of a new service start at once.
pub(super) async fn many_at_once_make_one<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (other, billing) = (fixture.again(&store).await, consumer("billing")?);
    let registering = (0..8).map(|number| {
        let store = if number % 2 == 0 { &store } else { &other };
        store.register(&billing, Start::Earliest, at(0))
    });
    let mut created = 0;
    for registered in futures::future::join_all(registering).await {
        created += usize::from(registered?.created);
    }
    same("registrations that created it", created, 1)?;
    stands::<F>(&store, "billing").await?;
    Ok(())
}

pub(super) async fn missing_lanes_are_added<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    fixture
        .execute(&store, "DELETE FROM {cursors} WHERE lane IN (3, 60)")
        .await;
    let registered = store.register(&billing.reader, Start::Earliest, at(1)).await?;
    same("created", registered.created, false)?;
    let lanes: Vec<Lane> = billing.stand().await?.into_keys().collect();
    same("lanes", lanes, store.lanes().all().collect::<Vec<_>>())
}

/// A log of six rows of which the first three were pruned, and its rows before that.
async fn pruned<F: Fixture>(store: &F::Store) -> Result<(Vec<Position>, Position), Failed> {
    let past = Instance::alone(store, "past").await?;
    past.append(&events(&["a", "b", "c", "d", "e", "f"])).await?;
    let rows: Vec<Position> = read_all(store).await?.into_iter().map(|row| row.position).collect();
    past.advance_to(&past.held, rows[2]).await?;
    let pruned = store.prune(Duration::ZERO, 100, in_hours(1)).await?;
    same("rows pruned", pruned.rows, 3)?;
    Ok((rows, pruned.pruned_to))
}

pub(super) async fn earliest_begins_where_the_log_was_pruned_to<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (_, pruned_to) = pruned::<F>(&store).await?;
    let registered = store.register(&consumer("late")?, Start::Earliest, at(0)).await?;
    same(
        "begins after, pruned to",
        (registered.begins_after, registered.pruned_to),
        (pruned_to, pruned_to),
    )?;
    same(
        "rows to come",
        read_from(&store, registered.begins_after).await?.len(),
        3,
    )
}

pub(super) async fn a_time_before_the_pruned_begins_there<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (_, pruned_to) = pruned::<F>(&store).await?;
    let long_ago = OffsetDateTime::now_utc() - time::Duration::days(400);
    let registered = store.register(&consumer("late")?, Start::Since(long_ago), None).await?;
    same("pruned to", registered.pruned_to, pruned_to)?;
    holds(
        "it does not begin below",
        registered.begins_after >= pruned_to,
        registered,
    )?;
    same(
        "rows to come",
        read_from(&store, registered.begins_after).await?.len(),
        3,
    )
}

pub(super) async fn a_position_below_the_pruned_is_refused<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (rows, pruned_to) = pruned::<F>(&store).await?;
    for asked in [Position::START, rows[0], Position(pruned_to.0 - 1)] {
        let registered = store.register(&consumer("late")?, Start::After(asked), at(0)).await;
        refused(
            "a position below the pruned",
            registered,
            |error| matches!(error, RegisterError::Pruned { asked: told, pruned_to: to } if (*told, *to) == (asked, pruned_to)),
        )?;
    }
    let readers: Vec<String> = store
        .readers(at(0))
        .await?
        .into_iter()
        .map(|status| status.name)
        .collect();
    same("readers", readers, ["past"])?;
    let registered = store
        .register(&consumer("late")?, Start::After(pruned_to), at(0))
        .await?;
    same("begins after", registered.begins_after, pruned_to)
}
