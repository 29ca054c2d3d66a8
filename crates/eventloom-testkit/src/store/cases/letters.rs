//! Held messages can be listed and looked at, with the history of their failures.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, behind, dead, failure, full_message, message, waiting},
};
use eventloom_core::{
    Recorded,
    ports::{Attempted, Backend, DeadLetter, DeadLetters as _, Held as _, HeldState, LetterFilter, NewHeld},
};
use std::time::Duration;

pub(super) async fn letters<S: Backend>(store: &S, filter: LetterFilter) -> Result<Vec<String>, Failed> {
    let letters = store.letters(&filter).await?;
    Ok(letters
        .into_iter()
        .map(|letter| format!("{} {}", letter.consumer, letter.message.envelope.id))
        .collect())
}

pub(super) fn of_key<const N: usize>(key: &str, positions: [i64; N]) -> [Recorded; N] {
    positions.map(|position| message(Some(key), position))
}

async fn letter<S: Backend>(of: &Instance<S>, id: &str) -> Result<DeadLetter, Failed> {
    let found = of.store.letter(&of.reader, id).await?;
    found.ok_or_else(|| Failed::new(format!("letter() does not find {id}")))
}

pub(super) async fn a_letter_tells_all<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (full, why) = (full_message(1), failure("no tax row for 'DE'\ncaused by: timeout"));
    billing.hold(&[dead(&full, &why)]).await?;
    let id = full.envelope.id.as_str();
    let found = letter(&billing, id).await?;
    same("message", &found.message, &full)?;
    let facts = (
        found.consumer.as_str(),
        found.state,
        found.queued,
        found.attempts,
        found.redrives,
        found.due_at,
    );
    same(
        "what is known of it",
        facts,
        ("billing", HeldState::Dead, true, 5, 0, None),
    )?;
    same("error", found.error.as_deref(), Some(why.error.as_str()))?;
    same(
        "fingerprint",
        found.fingerprint.as_deref(),
        Some(why.fingerprint.as_str()),
    )?;
    same(
        "first and last failure",
        (found.first_failed_at, found.last_failed_at),
        (at(0), at(0)),
    )?;
    same(
        "held at, held by",
        (Some(found.held_at), found.held_by.as_str()),
        (at(0), billing.owner.as_str()),
    )?;
    let listed = store.letters(&LetterFilter::default()).await?;
    same("letters", listed.len(), 1)?;
    same("the listed one", format!("{:?}", listed[0]), format!("{found:?}"))?;
    holds(
        "another id",
        store.letter(&billing.reader, "m-9").await?.is_none(),
        "a letter",
    )
}

pub(super) async fn failures_have_a_history<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let [one, two] = of_key("a", [1, 2]);
    billing
        .hold(&[
            NewHeld {
                failure: Some(&failure("first")),
                ..waiting(&one, 10)
            },
            behind(&two),
        ])
        .await?;
    let found = letter(&billing, "m-2").await?;
    let facts = (
        found.error,
        found.fingerprint,
        found.first_failed_at,
        found.last_failed_at,
        found.due_at,
    );
    same("one that only queues", facts, (None, None, None, None, None))?;
    let found = letter(&billing, "m-1").await?;
    same(
        "due, first, last",
        (found.due_at, found.first_failed_at, found.last_failed_at),
        (at(10), at(0), at(0)),
    )?;
    for (id, second, then) in [
        ("m-1", 10, Attempted::Again(Duration::from_secs(50))),
        ("m-2", 20, Attempted::Dead),
    ] {
        let why = failure(&format!("at {second}"));
        billing
            .commit(async |connection| {
                store
                    .fail(connection, &billing.reader, id, &why, 2, then, at(second))
                    .await
            })
            .await?;
    }
    let found = letter(&billing, "m-1").await?;
    same(
        "due, first, last",
        (found.due_at, found.first_failed_at, found.last_failed_at),
        (at(60), at(0), at(10)),
    )?;
    same("its last error", found.error.as_deref(), Some("at 10"))?;
    let found = letter(&billing, "m-2").await?;
    same(
        "due, first, last",
        (found.due_at, found.first_failed_at, found.last_failed_at),
        (None, at(20), at(20)),
    )?;
    same(
        "its fingerprint",
        found.fingerprint.as_deref(),
        Some("fingerprint of at 20"),
    )
}

pub(super) async fn letters_are_filtered<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (billing, mailer) = (Instance::new(&store, "billing")?, Instance::new(&store, "mailer")?);
    let why = failure("no");
    let [a1, a2, b3, alone] = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3), (None, 4)].map(|(k, p)| message(k, p));
    billing
        .hold(&[dead(&a1, &why), behind(&a2), waiting(&b3, 9), dead(&alone, &why)])
        .await?;
    mailer.hold(&[dead(&a1, &why)]).await?;
    let all = ["billing m-1", "billing m-2", "billing m-3", "billing m-4", "mailer m-1"];
    same(
        "all, by consumer and id",
        letters(&store, LetterFilter::default()).await?,
        all,
    )?;
    let of = |consumer: &Instance<F::Store>| LetterFilter::default().consumer(consumer.reader.clone());
    same("of one consumer", letters(&store, of(&billing)).await?, &all[..4])?;
    let state = |state| LetterFilter::default().state(state);
    same(
        "dead ones",
        letters(&store, state(HeldState::Dead)).await?,
        [all[0], all[3], all[4]],
    )?;
    same(
        "waiting ones",
        letters(&store, state(HeldState::Waiting)).await?,
        [all[1], all[2]],
    )?;
    let key = LetterFilter::default().key("a");
    same(
        "of a key",
        letters(&store, key.clone()).await?,
        [all[0], all[1], all[4]],
    )?;
    let narrow = key.state(HeldState::Dead).consumer(billing.reader.clone());
    same("all of it", letters(&store, narrow).await?, &all[..1])?;
    let limit = LetterFilter::default().limit(2);
    same("at most two", letters(&store, limit).await?, &all[..2])?;
    let page = LetterFilter::default().after("billing", "m-2").limit(2);
    same("two after one", letters(&store, page).await?, &all[2..4])?;
    let page = LetterFilter::default().after("billing", "m-4");
    same("into the next consumer", letters(&store, page).await?, &all[4..])
}

pub(super) async fn a_hundred_letters_are_a_page<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let many: Vec<Recorded> = (1_000..1_150).map(|position| message(None, position)).collect();
    billing
        .hold(&many.iter().map(|message| waiting(message, 9)).collect::<Vec<_>>())
        .await?;
    let first = letters(&store, LetterFilter::default()).await?;
    same("without a limit", first.len(), 100)?;
    let rest = LetterFilter::default().after("billing", "m-1099");
    same("the rest", letters(&store, rest).await?.len(), 50)
}
