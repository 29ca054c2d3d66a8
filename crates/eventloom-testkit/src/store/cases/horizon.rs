//! Readers go up to the horizon: what is in flight below it is neither passed nor read.

use super::read::honest;
use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{event, events, ids, ids_of, read_all, read_from},
};
use eventloom_core::{
    Lane, Position,
    ports::{Held as _, Log, Outbox as _, ReadLimits, Store as _, Transaction as _},
};
use futures::future::{join, join_all};

pub(super) async fn only_what_is_committed_is_read<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let given = events(&["a"]);
    let mut open = writer.begin().await?;
    F::Store::append(store.tables(), &mut open, &given).await?;
    let page = store.read_after(Position::START, ReadLimits::default()).await?;
    honest(&page, Position::START, ReadLimits::default())?;
    same("rows before the commit", ids(&page.rows), ids_of(&[]))?;
    open.commit().await?;
    same(
        "rows after it",
        ids(&read_from(&store, page.scanned_to).await?),
        ids_of(&given),
    )
}

pub(super) async fn an_open_writer_holds_back_what_follows<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let store = fixture.fresh().await;
        let writer = Instance::new(&store, "writer")?;
        let (before, early, late) = (event("before"), event("early"), event("late"));
        store.publish_alone(before.clone()).await?;
        let mut open = writer.begin().await?;
        F::Store::append(store.tables(), &mut open, std::slice::from_ref(&early)).await?;
        store.publish_alone(late.clone()).await?;
        let page = store.read_after(Position::START, ReadLimits::default()).await?;
        honest(&page, Position::START, ReadLimits::default())?;
        same(
            "rows while an earlier writer is open",
            ids(&page.rows),
            ids_of(std::slice::from_ref(&before)),
        )?;
        let horizon = store.horizon().await?;
        holds(
            "the horizon is held back",
            horizon.position < horizon.handed_out,
            horizon,
        )?;
        let wanted = if commits {
            open.commit().await?;
            vec![early, late]
        } else {
            open.rollback().await?;
            vec![late]
        };
        let rest = read_from(&store, page.scanned_to).await?;
        same("rows after it ended", ids(&rest), ids_of(&wanted))?;
        let horizon = store.horizon().await?;
        same("the horizon is free", horizon.position, horizon.handed_out)?;
    }
    Ok(())
}

/// A transaction that is open for long, but has not written to the log.
pub(super) async fn an_open_transaction_without_rows_holds_nothing_back<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let idle = Instance::new(&store, "idle")?;
    let mut open = idle.begin().await?;
    store.lock_key(&mut open, &idle.reader, "key", Lane(0)).await?;
    store.publish_alone(event("a")).await?;
    same("rows while it is open", read_all(&store).await?.len(), 1)?;
    open.rollback().await?;
    Ok(())
}

/// Writers that roll back some of their work, beside a reader that never stands still.
pub(super) async fn a_reader_beside_writers_misses_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    let writers = join_all((0..6).map(async |number| {
        let writer = Instance::new(if number % 2 == 0 { &store } else { &other }, "writer")?;
        let mut committed = Vec::new();
        for round in 0..12 {
            let given = events(&["a", "b", "c"][..1 + round % 3]);
            let mut open = writer.begin().await?;
            F::Store::append(store.tables(), &mut open, &given).await?;
            tokio::task::yield_now().await;
            if (round + number) % 3 == 0 {
                open.rollback().await?;
            } else {
                F::Store::append(store.tables(), &mut open, &[event("d")]).await?;
                open.commit().await?;
                committed.extend(ids_of(&given));
            }
        }
        Ok::<_, Failed>(committed)
    }));
    let done = std::cell::Cell::new(false);
    let reading = async {
        let (mut rows, mut after) = (Vec::new(), Position::START);
        loop {
            let last_round = done.get();
            let limits = ReadLimits::default().rows_max(3);
            let page = store.read_after(after, limits).await?;
            honest(&page, after, limits)?;
            let caught_up = page.scanned_to >= page.horizon;
            after = page.scanned_to;
            rows.extend(page.rows);
            if last_round && caught_up {
                return Ok::<_, Failed>(rows);
            }
            tokio::task::yield_now().await;
        }
    };
    let (written, read) = join(
        async {
            let written = writers.await;
            done.set(true);
            written
        },
        reading,
    )
    .await;
    let committed = written.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    let read = read?;
    same(
        "what was delivered is what is there",
        ids(&read),
        ids(&read_all(&store).await?),
    )?;
    let delivered = ids(&read);
    let missing: Vec<&String> = committed.iter().filter(|id| !delivered.contains(id)).collect();
    same("committed, not delivered", missing, Vec::<&String>::new())
}
