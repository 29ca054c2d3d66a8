//! What a drain takes is marked, what it handled is removed, and attempts are counted before they are made.

use crate::store::{
    check::{Outcome, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, behind, message, waiting},
};
use eventloom_core::ports::{Held as _, HeldState, NewHeld, Transaction as _};

pub(super) async fn a_drain_marks_what_it_takes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    let (one, two) = (message(Some("a"), 1), message(Some("a"), 2));
    billing.hold(&[waiting(&one, 0), behind(&two)]).await?;
    let epoch = billing.cursor(one.lane)?.epoch;
    let taken = ["m-1"];
    billing
        .commit(async |connection| store.mark_taken(connection, &billing.reader, &taken, epoch).await)
        .await?;
    same("the taken one", billing.held("m-1").await?.taken_epoch, Some(epoch))?;
    same("the next one", billing.held("m-2").await?.taken_epoch, None)?;
    let next = eventloom_core::Epoch(epoch.0 + 1);
    billing
        .commit(async |connection| {
            store
                .mark_taken(connection, &billing.reader, &["m-1", "m-2"], next)
                .await
        })
        .await?;
    same(
        "taken by a successor",
        billing.held("m-1").await?.taken_epoch,
        Some(next),
    )?;
    same(
        "in the queue",
        store.queue_of(&billing.reader, "a", 10).await?[1].taken_epoch,
        Some(next),
    )
}

pub(super) async fn removing_counts<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let all = [1, 2, 3, 4].map(|position| message(None, position));
    billing.hold(&all.each_ref().map(|message| waiting(message, 0))).await?;
    same("two that are there", billing.remove(&["m-1", "m-2"]).await?, 2)?;
    same("one of them is gone", billing.remove(&["m-2", "m-3"]).await?, 1)?;
    same("none", billing.remove(&[]).await?, 0)?;
    same(
        "of another consumer",
        Instance::new(&store, "mailer")?.remove(&["m-4"]).await?,
        0,
    )?;
    let mut undone = billing.begin().await?;
    same(
        "in a transaction",
        store.remove(&mut undone, &billing.reader, &["m-4"]).await?,
        1,
    )?;
    undone.rollback().await?;
    same("after its rollback", billing.remove(&["m-4"]).await?, 1)
}

pub(super) async fn attempts_survive_a_rollback<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let count = async |id: &str| {
        billing
            .commit(async |connection| store.count_attempt(connection, &billing.reader, id).await)
            .await
    };
    same("the first", count("a").await?, 1)?;
    // The suspect runs, and takes its transaction with it.
    let mut later = billing.begin().await?;
    same(
        "a count in what is rolled back",
        store.count_attempt(&mut later, &billing.reader, "a").await?,
        2,
    )?;
    drop(later);
    same("the next", count("a").await?, 2)?;
    same("of another message", count("b").await?, 1)?;
    same("the third", count("a").await?, 3)?;
    let clear = async |ids: &[&str]| {
        billing
            .commit(async |connection| store.clear_attempts(connection, &billing.reader, ids).await)
            .await
    };
    clear(&["a", "never counted"]).await?;
    clear(&[]).await?;
    same("after they were forgotten", count("a").await?, 1)?;
    same("of another message", count("b").await?, 2)?;
    let mailer = Instance::new(&store, "mailer")?;
    let other = mailer
        .commit(async |connection| store.count_attempt(connection, &mailer.reader, "a").await)
        .await?;
    same("of another consumer", other, 1)
}

pub(super) async fn an_attempt_is_taken_back<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing.hold(&[waiting(&one, 0)]).await?;
    let held = one.envelope.id.clone();
    let taken_back = async |id: &str| {
        billing
            .commit(async |connection| {
                store.uncount_attempt(connection, &billing.reader, id).await?;
                store.uncount_held_attempt(connection, &billing.reader, id).await
            })
            .await
    };
    let counted = async |id: &str| {
        billing
            .commit(async |connection| store.count_attempt(connection, &billing.reader, id).await)
            .await
    };
    let counted_held = async || {
        billing
            .commit(async |connection| store.count_held_attempt(connection, &billing.reader, &held).await)
            .await
    };
    counted("b").await?;
    counted("b").await?;
    taken_back("b").await?;
    same("one of two", counted("b").await?, 2)?;
    taken_back("never counted").await?;
    same("none", counted("never counted").await?, 1)?;
    let before = counted_held().await?;
    taken_back(&held).await?;
    same("of a held one", counted_held().await?, before)?;
    for _ in 0..=before + 1 {
        taken_back(&held).await?;
    }
    same("never below none", counted_held().await?, 1)
}

pub(super) async fn attempts_of_held_ones_survive_too<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing
        .hold(&[NewHeld {
            attempts: 2,
            ..waiting(&one, 0)
        }])
        .await?;
    let count = async || {
        billing
            .commit(async |connection| store.count_held_attempt(connection, &billing.reader, "m-1").await)
            .await
    };
    same("the next", count().await?, 3)?;
    let mut later = billing.begin().await?;
    same(
        "the handled one is removed",
        store.remove(&mut later, &billing.reader, &["m-1"]).await?,
        1,
    )?;
    later.rollback().await?;
    same("after that was rolled back", count().await?, 4)?;
    let found = billing.held("m-1").await?;
    same(
        "attempts and state",
        (found.attempts, found.state),
        (4, HeldState::Waiting),
    )?;
    same("counting moves no due time", billing.due(at(0)).await?, ["m-1"])
}
