//! Who sleeps on a log is woken by a commit, and sleeps through none.

use crate::store::{
    check::{Failed, Outcome, holds},
    fixture::Fixture,
    instance::Instance,
    sample::{event, events},
};
use eventloom_core::{
    Position,
    ports::{Log, Outbox as _, Transaction as _},
};
use futures::future::{join, join_all};
use std::time::{Duration, Instant};

/// Longer than any wake-up takes, so that returning at this time means that nothing woke it.
const AT_MOST: Duration = Duration::from_secs(40);

/// Dozes until it is woken, and says how long that was.
async fn doze<S: Log>(store: &S, seen: Position) -> Result<Duration, Failed> {
    let begun = Instant::now();
    store.doze(seen, AT_MOST).await?;
    Ok(begun.elapsed())
}

async fn seen<S: Log>(store: &S) -> Result<Position, Failed> {
    Ok(store.horizon().await?.position)
}

pub(super) async fn a_row_that_is_there_is_not_slept_through<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let before = seen(&store).await?;
    store.publish_alone(event("a")).await?;
    let slept = doze(&store, before).await?;
    holds("it returns at once", slept < AT_MOST / 2, slept)
}

pub(super) async fn it_ends_by_itself<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let seen = seen(&store).await?;
    let begun = Instant::now();
    store.doze(seen, Duration::from_millis(100)).await?;
    holds("it ends without a row", begun.elapsed() < AT_MOST, begun.elapsed())
}

/// The commit comes at any moment of falling asleep: nothing here waits for a certain one.
pub(super) async fn a_commit_wakes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    for round in 0..20 {
        let seen = seen(&store).await?;
        let publishing = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            other.publish_alone(event("a")).await
        };
        let (slept, published) = join(doze(&store, seen), publishing).await;
        published?;
        let slept = slept?;
        holds(
            "a commit of another process wakes it",
            slept < AT_MOST / 2,
            (round, slept),
        )?;
    }
    Ok(())
}

pub(super) async fn a_commit_wakes_all<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    let seen = seen(&store).await?;
    let sleeping = join_all([doze(&store, seen), doze(&store, seen), doze(&other, seen)]);
    let (slept, published) = join(sleeping, store.publish_alone(event("a"))).await;
    published?;
    for slept in slept {
        let slept = slept?;
        holds("each of them wakes", slept < AT_MOST / 2, slept)?;
    }
    Ok(())
}

/// A writer in flight at the moment of falling asleep has looked for sleepers before there were any.
pub(super) async fn a_writer_in_flight_is_not_slept_through<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&fixture.again(&store).await, "writer")?;
    let seen = seen(&store).await?;
    let mut open = writer.begin().await?;
    F::Store::append(eventloom_core::ports::Store::tables(&store), &mut open, &events(&["a"])).await?;
    let committing = async {
        tokio::task::yield_now().await;
        open.commit().await
    };
    let (slept, committed) = join(doze(&store, seen), committing).await;
    committed?;
    let slept = slept?;
    holds("its commit wakes", slept < AT_MOST / 2, slept)
}
