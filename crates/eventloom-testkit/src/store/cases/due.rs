//! A held message is tried at its time: the head of its key, or one that stands alone.

use crate::store::{
    check::{Failed, Outcome, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, behind, dead, failure, message, waiting},
};
use eventloom_core::{
    Epoch, Lane,
    ports::{Attempted, Backend, Due, Held as _, HeldState, Store as _},
};
use std::time::Duration;

const NONE: [&str; 0] = [];

async fn fail<S: Backend>(
    of: &Instance<S>,
    id: &str,
    attempts: u32,
    then: Attempted,
    second: i64,
) -> Result<bool, Failed> {
    let why = failure("no tax row");
    of.commit(async |connection| {
        of.store
            .fail(connection, &of.reader, id, &why, attempts, then, at(second))
            .await
    })
    .await
}

async fn mark_taken<S: Backend>(of: &Instance<S>, ids: &[&str]) -> Outcome {
    of.commit(async |connection| of.store.mark_taken(connection, &of.reader, ids, Epoch(1)).await)
        .await
}

/// How long until the next one is due, of all lanes.
async fn next_due<S: Backend>(of: &Instance<S>, second: i64) -> Result<Option<Duration>, Failed> {
    let lanes: Vec<Lane> = of.store.lanes().all().collect();
    let (due, next) = of.store.due(&of.reader, &lanes, 10, at(second)).await?;
    same("nothing is due", due, [])?;
    Ok(next)
}

pub(super) async fn heads_and_loners_are_due<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [a1, a2, alone, given_up] = [(Some("a"), 1), (Some("a"), 2), (None, 3), (None, 4)].map(|(k, p)| message(k, p));
    billing
        .hold(&[
            waiting(&a1, 20),
            behind(&a2),
            waiting(&alone, 10),
            dead(&given_up, &why),
        ])
        .await?;
    same("before their time", billing.due(at(9)).await?, NONE)?;
    same("at the time of one", billing.due(at(10)).await?, ["m-3"])?;
    same("oldest due first", billing.due(at(30)).await?, ["m-3", "m-1"])?;
    let lanes: Vec<Lane> = store.lanes().all().collect();
    let (due, _) = store.due(&billing.reader, &lanes, 10, at(30)).await?;
    let wanted = [
        Due {
            id: "m-3".to_owned(),
            lane: alone.lane,
            queue: None,
        },
        Due {
            id: "m-1".to_owned(),
            lane: a1.lane,
            queue: Some("a".to_owned()),
        },
    ];
    same("what is told of them", due, wanted)?;
    let (due, _) = store.due(&billing.reader, &lanes, 1, at(30)).await?;
    same(
        "at most one",
        due.into_iter().map(|due| due.id).collect::<Vec<_>>(),
        ["m-3"],
    )?;
    same(
        "of another consumer",
        Instance::new(&store, "mailer")?.due(at(30)).await?,
        NONE,
    )
}

/// A keyed message that is set aside alone does not make its key wait, and is told as one that heads no queue.
pub(super) async fn a_keyed_loner_heads_no_queue<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing
        .hold(&[eventloom_core::ports::NewHeld {
            queued: false,
            ..waiting(&one, 0)
        }])
        .await?;
    let (due, _) = store.due(&billing.reader, &[one.lane], 10, at(1)).await?;
    same(
        "due",
        due,
        [Due {
            id: "m-1".to_owned(),
            lane: one.lane,
            queue: None,
        }],
    )?;
    same("the queue of its key", billing.queue("a").await?, NONE)?;
    same("the row of its key", billing.holds_key("a").await?, false)
}

pub(super) async fn only_lanes_that_are_asked_for_are_due<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing.hold(&[waiting(&one, 0)]).await?;
    let others: Vec<Lane> = store.lanes().all().filter(|lane| *lane != one.lane).collect();
    same(
        "other lanes",
        store.due(&billing.reader, &others, 10, at(60)).await?,
        (vec![], None),
    )?;
    same(
        "no lane",
        store.due(&billing.reader, &[], 10, at(60)).await?,
        (vec![], None),
    )?;
    same(
        "its lane",
        store.due(&billing.reader, &[one.lane], 10, at(60)).await?.0.len(),
        1,
    )
}

pub(super) async fn the_next_due_time_is_told<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [a1, a2, b1, given_up] =
        [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3), (None, 4)].map(|(k, p)| message(k, p));
    same("when nothing is held", next_due(&billing, 0).await?, None)?;
    billing.hold(&[dead(&given_up, &why)]).await?;
    same("when only dead ones are", next_due(&billing, 0).await?, None)?;
    billing.hold(&[waiting(&a1, 60), behind(&a2), waiting(&b1, 30)]).await?;
    same(
        "from the beginning",
        next_due(&billing, 0).await?,
        Some(Duration::from_secs(30)),
    )?;
    same("later", next_due(&billing, 29).await?, Some(Duration::from_secs(1)))
}

pub(super) async fn a_failed_one_is_tried_again<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing.hold(&[waiting(&one, 0)]).await?;
    mark_taken(&billing, &["m-1"]).await?;
    let there = fail(&billing, "m-1", 2, Attempted::Again(Duration::from_secs(40)), 100).await?;
    same("it was there", there, true)?;
    same("before its time", billing.due(at(139)).await?, NONE)?;
    same("at its time", billing.due(at(140)).await?, ["m-1"])?;
    let found = billing.held("m-1").await?;
    same(
        "state, attempts, mark",
        (found.state, found.attempts, found.taken_epoch),
        (HeldState::Waiting, 2, None),
    )?;
    same(
        "one that is not held",
        fail(&billing, "m-2", 2, Attempted::Dead, 100).await?,
        false,
    )?;
    let mailer = Instance::new(&store, "mailer")?;
    same(
        "of another consumer",
        fail(&mailer, "m-1", 2, Attempted::Dead, 100).await?,
        false,
    )
}

pub(super) async fn a_dead_one_waits_for_a_human<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two) = (message(Some("a"), 1), message(Some("a"), 2));
    billing.hold(&[waiting(&one, 0), behind(&two)]).await?;
    mark_taken(&billing, &["m-1"]).await?;
    same(
        "it was there",
        fail(&billing, "m-1", 5, Attempted::Dead, 100).await?,
        true,
    )?;
    let found = billing.held("m-1").await?;
    same(
        "state, attempts, mark",
        (found.state, found.attempts, found.taken_epoch),
        (HeldState::Dead, 5, None),
    )?;
    same("due, ever", billing.due(at(1_000_000)).await?, NONE)?;
    same("its queue still waits", billing.queue("a").await?, ["m-1", "m-2"])?;
    same("its key is still held", billing.holds_key("a").await?, true)
}

pub(super) async fn putting_off_burns_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let all = [1, 2, 3].map(|position| message(None, position));
    billing.hold(&all.each_ref().map(|message| waiting(message, 0))).await?;
    mark_taken(&billing, &["m-1", "m-2"]).await?;
    let off = ["m-1", "m-2"];
    billing
        .commit(async |connection| {
            store
                .put_off(connection, &billing.reader, &off, Duration::from_secs(30), at(100))
                .await?;
            store
                .put_off(connection, &billing.reader, &[], Duration::from_secs(30), at(100))
                .await
        })
        .await?;
    same("before their time", billing.due(at(129)).await?, ["m-3"])?;
    let mut due = billing.due(at(130)).await?;
    due.sort();
    same("at their time", due, ["m-1", "m-2", "m-3"])?;
    for id in off {
        let found = billing.held(id).await?;
        same(
            "state, attempts, mark",
            (found.state, found.attempts, found.taken_epoch),
            (HeldState::Waiting, 1, None),
        )?;
    }
    Ok(())
}

/// Only a head has a time: the rest of its queue waits for it, and not for the clock.
pub(super) async fn putting_off_a_queue_puts_off_its_head<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two) = (message(Some("a"), 1), message(Some("a"), 2));
    billing.hold(&[waiting(&one, 0), behind(&two)]).await?;
    mark_taken(&billing, &["m-1", "m-2"]).await?;
    let off = ["m-1", "m-2"];
    let half_a_minute = Duration::from_secs(30);
    billing
        .commit(async |connection| {
            store
                .put_off(connection, &billing.reader, &off, half_a_minute, at(100))
                .await
        })
        .await?;
    same("before its time", billing.due(at(129)).await?, NONE)?;
    same("at its time", billing.due(at(130)).await?, ["m-1"])?;
    same("mark of the second", billing.held("m-2").await?.taken_epoch, None)
}
