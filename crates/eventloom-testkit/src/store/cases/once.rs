//! Work under an idempotency key is done once, with one answer.

use crate::store::{
    check::{Failed, Outcome, same},
    fixture::Fixture,
    instance::Instance,
};
use eventloom_core::{
    OffsetDateTime,
    ports::{
        Backend, Claim, Inbox as _, Leases as _,
        OnceClaim::{self, InProgress, Mismatch, New, Stored},
        Readers as _, Start, Store as _, Transaction as _,
    },
};
use std::time::Duration;

/// Asks, and when the work is new records `result`.
async fn once<S: Backend>(of: &Instance<S>, key: &str, request: &[u8], result: &str) -> Result<OnceClaim, Failed> {
    of.commit(async |connection| {
        let claim = S::once_claim(of.store.tables(), connection, &of.reader, key, request).await?;
        if claim == New {
            S::once_record(of.store.tables(), connection, &of.reader, key, result).await?;
        }
        Ok::<_, Failed>(claim)
    })
    .await
}

fn stored(result: &str) -> OnceClaim {
    Stored(result.to_owned())
}

pub(super) async fn work_is_done_once<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let http = Instance::new(&store, "http")?;
    let other = Instance::new(&fixture.again(&store).await, "http")?;
    let result = r#"{"order":  "ö-17", "total": 12.50 }"#;
    same("first", once(&http, "k-1", b"digest", result).await?, New)?;
    same("again", once(&http, "k-1", b"digest", "2").await?, stored(result))?;
    same(
        "in another process",
        once(&other, "k-1", b"digest", "3").await?,
        stored(result),
    )?;
    same("another key", once(&http, "k-2", b"digest", "4").await?, New)?;
    same(
        "the first still",
        once(&http, "k-1", b"digest", "5").await?,
        stored(result),
    )
}

/// A consumer that is called like a scope has ids of its own, also when it comes and goes.
pub(super) async fn keys_are_no_ids_of_a_consumer<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let orders = Instance::new(&store, "orders")?;
    same("a key", once(&orders, "k-1", b"digest", "1").await?, New)?;
    store.register(&orders.reader, Start::Earliest, None).await?;
    let claims = orders
        .commit(async |connection| store.claim(connection, &orders.reader, &["k-1"], None).await)
        .await?;
    same("an id", claims, vec![Claim::New])?;
    store.forget_handled(&orders.reader, Duration::ZERO, 10, None).await?;
    store.drop_reader(&orders.reader).await?;
    same(
        "the key still",
        once(&orders, "k-1", b"digest", "2").await?,
        stored("1"),
    )
}

pub(super) async fn another_request_under_the_key_is_a_mismatch<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let http = Instance::new(&store, "http")?;
    let all_bytes: Vec<u8> = (0..=255).collect();
    same("first", once(&http, "k-1", &all_bytes, "1").await?, New)?;
    same(
        "another request",
        once(&http, "k-1", &all_bytes[1..], "2").await?,
        Mismatch,
    )?;
    same("an empty request", once(&http, "k-1", &[], "2").await?, Mismatch)?;
    same(
        "the same request",
        once(&http, "k-1", &all_bytes, "3").await?,
        stored("1"),
    )
}

pub(super) async fn scopes_are_apart<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (orders, refunds) = (Instance::new(&store, "orders")?, Instance::new(&store, "refunds")?);
    same("one scope", once(&orders, "k-1", b"digest", "1").await?, New)?;
    same("another scope", once(&refunds, "k-1", b"other", "2").await?, New)?;
    same(
        "one scope again",
        once(&orders, "k-1", b"digest", "3").await?,
        stored("1"),
    )
}

pub(super) async fn rolled_back_work_is_done_again<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let http = Instance::new(&store, "http")?;
    let mut undone = http.begin().await?;
    same(
        "first",
        F::Store::once_claim(store.tables(), &mut undone, &http.reader, "k-1", b"digest").await?,
        New,
    )?;
    F::Store::once_record(store.tables(), &mut undone, &http.reader, "k-1", "1").await?;
    undone.rollback().await?;
    same(
        "after a rollback, with another request",
        once(&http, "k-1", b"other", "2").await?,
        New,
    )?;
    same("again", once(&http, "k-1", b"other", "3").await?, stored("2"))
}

/// Does not wait: a client that sends twice gets an answer at once.
pub(super) async fn what_is_being_worked_on_is_told<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let store = fixture.fresh().await;
        let http = Instance::new(&store, "http")?;
        let other = Instance::new(&fixture.again(&store).await, "http")?;
        let mut open = http.begin().await?;
        same(
            "first",
            F::Store::once_claim(store.tables(), &mut open, &http.reader, "k-1", b"digest").await?,
            New,
        )?;
        F::Store::once_record(store.tables(), &mut open, &http.reader, "k-1", "1").await?;
        same(
            "at the same time",
            once(&other, "k-1", b"digest", "2").await?,
            InProgress,
        )?;
        same(
            "with another request",
            once(&other, "k-1", b"other", "2").await?,
            InProgress,
        )?;
        same(
            "another key at the same time",
            once(&other, "k-2", b"digest", "2").await?,
            New,
        )?;
        let wanted = if commits {
            open.commit().await?;
            stored("1")
        } else {
            open.rollback().await?;
            New
        };
        same(
            &format!("when the first was committed: {commits}"),
            once(&other, "k-1", b"digest", "3").await?,
            wanted,
        )?;
    }
    Ok(())
}

/// Losing once does not leave the transaction aborted: the caller answers, and can still write.
pub(super) async fn being_told_leaves_the_transaction_usable<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let store = fixture.fresh().await;
    let http = Instance::new(&store, "http")?;
    let claim = async |connection: &mut <F::Store as eventloom_core::ports::Store>::Connection, key: &str| {
        F::Store::once_claim(store.tables(), connection, &http.reader, key, b"digest").await
    };
    let mut open = http.begin().await?;
    same("first", claim(&mut open, "k-1").await?, New)?;
    let mut late = http.begin().await?;
    same("at the same time", claim(&mut late, "k-1").await?, InProgress)?;
    same(
        "another key, in the same transaction",
        claim(&mut late, "k-2").await?,
        New,
    )?;
    late.commit().await?;
    open.rollback().await?;
    Ok(())
}

pub(super) async fn keys_are_forgotten_after_their_window<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let http = Instance::new(&store, "http")?;
    let other = Instance::new(&store, "http-other")?;
    for (of, key) in [(&http, "k-1"), (&http, "k-2"), (&other, "k-1")] {
        same("first", once(of, key, b"digest", "1").await?, New)?;
    }
    let consumer = Instance::new(&store, "billing")?;
    let handled = async || {
        let claim = async |connection: &mut <F::Store as eventloom_core::ports::Store>::Connection| {
            consumer.store.claim(connection, &consumer.reader, &["k-1"], None).await
        };
        consumer.commit(claim).await
    };
    same("a message", handled().await?, [Claim::New])?;

    let hours = |hours: u64| Duration::from_secs(3_600 * hours);
    let forget = async |rows_max| {
        let now = OffsetDateTime::now_utc() + hours(2);
        store.forget_once(hours(1), rows_max, Some(now)).await
    };
    same("within the window", store.forget_once(hours(1), 100, None).await?, 0)?;
    same("still known", once(&http, "k-1", b"digest", "2").await?, stored("1"))?;
    same("at most two at a time", forget(2).await?, 2)?;
    same("the rest, of every scope", forget(2).await?, 1)?;
    same("nothing more", forget(2).await?, 0)?;
    same("new again", once(&http, "k-1", b"other", "2").await?, New)?;
    same("a message is left alone", handled().await?, [Claim::Handled])
}
