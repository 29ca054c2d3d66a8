//! What is held is kept raw, once, in the queue of its key.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{behind, dead, failure, full_message, message, waiting},
};
use eventloom_core::{
    Lane, Payload, Position, Recorded,
    ports::{Backend, Held as _, HeldNow, HeldState, NewHeld, Transaction as _},
};
use std::collections::HashSet;

pub(super) fn set(names: &[&str]) -> HashSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn ask<S: Backend>(of: &Instance<S>, keys: &[&str], ids: &[&str]) -> Result<HeldNow, Failed> {
    of.commit(async |connection| of.store.ask(connection, &of.reader, keys, ids).await)
        .await
}

pub(super) async fn a_message_is_kept_byte_for_byte<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let full = full_message(1);
    let plain = message(None, 2);
    let none = Recorded {
        envelope: eventloom_core::Envelope {
            payload: None,
            ..message(None, 3).envelope
        },
        ..message(None, 3)
    };
    let texts = ["not json {", "{\"a\": 1 }", "", "\n \u{1F511}"].map(|text| Payload::Json(text.to_owned()));
    let bytes = [Payload::Binary((0..=255).collect()), Payload::Binary(Vec::new())];
    let odd = texts.into_iter().chain(bytes).zip(10..).map(|(payload, position)| {
        let mut odd = message(Some("odd"), position);
        odd.envelope.payload = Some(payload);
        odd
    });
    let all: Vec<Recorded> = [full, plain, none].into_iter().chain(odd).collect();
    let held: Vec<NewHeld<'_>> = all.iter().map(|message| waiting(message, 60)).collect();
    billing.hold(&held).await?;
    for wanted in &all {
        let found = billing.held(&wanted.envelope.id).await?;
        same("message", &found.message, wanted)?;
        let facts = (
            found.queued,
            found.state,
            found.attempts,
            found.taken_epoch,
            found.redrives,
        );
        let queued = wanted.envelope.key.is_some();
        same(
            &format!("what is known of {}", wanted.envelope.id),
            facts,
            (queued, HeldState::Waiting, 1, None, 0),
        )?;
    }
    let queue = store.queue_of(&billing.reader, "odd", 100).await?;
    let queue: Vec<Recorded> = queue.into_iter().map(|held| held.message).collect();
    same("messages of a queue", &queue[..], &all[3..])
}

pub(super) async fn a_message_is_held_once<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (first, why) = (message(Some("a"), 1), failure("no tax row"));
    billing
        .hold(&[NewHeld {
            attempts: 3,
            ..waiting(&first, 60)
        }])
        .await?;
    let mut again = first.clone();
    again.envelope.payload = Some(Payload::Json("2".to_owned()));
    again.position = eventloom_core::Position(9);
    let next = message(Some("a"), 2);
    billing.hold(&[dead(&again, &why), behind(&next)]).await?;
    let found = billing.held("m-1").await?;
    same("the message", &found.message, &first)?;
    same(
        "its state and attempts",
        (found.state, found.attempts),
        (HeldState::Waiting, 3),
    )?;
    same("the queue", billing.queue("a").await?, ["m-1", "m-2"])?;
    let mailer = Instance::new(&store, "mailer")?;
    mailer.hold(&[waiting(&again, 60)]).await?;
    same("of another consumer", mailer.held("m-1").await?.message, again)?;
    billing.hold(&[]).await
}

pub(super) async fn the_first_row_of_an_id_is_held<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    // Everything of a key was published twice, and queues in one go.
    let once: Vec<Recorded> = (1..=40).map(|position| message(Some("a"), position)).collect();
    let again = once.iter().map(|first| Recorded {
        position: Position(first.position.0 + 40),
        ..first.clone()
    });
    let all: Vec<Recorded> = once.iter().cloned().chain(again).collect();
    let held: Vec<NewHeld<'_>> = all.iter().map(behind).collect();
    billing.hold(&held).await?;
    for first in &once {
        let found = billing.held(&first.envelope.id).await?;
        same(&first.envelope.id, found.message.position, first.position)?;
    }
    let queue: Vec<&str> = once.iter().map(|first| first.envelope.id.as_str()).collect();
    same("the queue", billing.queue("a").await?, queue)
}

pub(super) async fn a_batch_is_told_what_is_held<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (keyed, alone) = (message(Some("ä"), 1), message(None, 2));
    billing.hold(&[waiting(&keyed, 60), waiting(&alone, 60)]).await?;
    let now = ask(&billing, &["b", "ä", "c"], &["m-1", "m-2", "m-3"]).await?;
    same("held keys", now.keys, set(&["ä"]))?;
    same("held ids", now.ids, set(&["m-1", "m-2"]))?;
    let now = ask(&billing, &[], &[]).await?;
    same("of nothing", (now.keys, now.ids), (set(&[]), set(&[])))?;
    let now = ask(&Instance::new(&store, "mailer")?, &["ä"], &["m-1"]).await?;
    same("of another consumer", (now.keys, now.ids), (set(&[]), set(&[])))
}

pub(super) async fn asking_sees_the_own_transaction<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let mut open = billing.begin().await?;
    store.lock_key(&mut open, &billing.reader, "a", Lane(0)).await?;
    let now = store.ask(&mut open, &billing.reader, &["a", "b"], &[]).await?;
    same("keys held in this transaction", now.keys, set(&["a"]))?;
    open.rollback().await?;
    same("after a rollback", ask(&billing, &["a"], &[]).await?.keys, set(&[]))
}

pub(super) async fn a_queue_is_in_the_order_of_the_log<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let [head, second, third] = [9, 10, 100].map(|position| message(Some("a"), position));
    let other = message(Some("b"), 50);
    let aside = message(Some("a"), 20);
    billing.hold(&[waiting(&head, 60), waiting(&other, 60)]).await?;
    billing
        .hold(&[
            behind(&third),
            NewHeld {
                queued: false,
                ..waiting(&aside, 60)
            },
        ])
        .await?;
    billing.hold(&[behind(&second)]).await?;
    same(
        "the queue, without what is set aside",
        billing.queue("a").await?,
        ["m-9", "m-10", "m-100"],
    )?;
    let first = store.queue_of(&billing.reader, "a", 2).await?;
    let first: Vec<&str> = first.iter().map(|held| held.message.envelope.id.as_str()).collect();
    same("its first two", first, ["m-9", "m-10"])?;
    same(
        "a key that holds nothing",
        billing.queue("c").await?,
        Vec::<String>::new(),
    )?;
    same(
        "of another consumer",
        Instance::new(&store, "mailer")?.queue("a").await?,
        Vec::<String>::new(),
    )
}

pub(super) async fn what_is_not_held_is_not_found<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let one = message(Some("a"), 1);
    billing.hold(&[waiting(&one, 60)]).await?;
    holds(
        "another id",
        store.held_message(&billing.reader, "m-2").await?.is_none(),
        "a message",
    )?;
    let mailer = Instance::new(&store, "mailer")?;
    holds(
        "another consumer",
        store.held_message(&mailer.reader, "m-1").await?.is_none(),
        "a message",
    )
}
