//! What a consumer has handled is claimed once, whatever is delivered again.

use crate::store::{
    check::{Failed, Outcome, same},
    fixture::Fixture,
    instance::Instance,
    sample::at,
    wait::meets,
};
use eventloom_core::{
    OffsetDateTime,
    ports::{Backend, Claim, Claim::Handled, Claim::New, Inbox as _, Transaction as _},
};
use futures::future::join;
use std::time::Duration;

async fn claim<S: Backend>(of: &Instance<S>, ids: &[&str], now: Option<OffsetDateTime>) -> Result<Vec<Claim>, Failed> {
    of.commit(async |connection| of.store.claim(connection, &of.reader, ids, now).await)
        .await
}

async fn forget<S: Backend>(of: &Instance<S>, hours: u64, rows_max: u32, second: i64) -> Result<u64, Failed> {
    Ok(of
        .store
        .forget_handled(&of.reader, Duration::from_secs(3_600 * hours), rows_max, at(second))
        .await?)
}

pub(super) async fn a_second_delivery_is_known<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    same("first", claim(&billing, &["a", "c"], at(0)).await?, [New, New])?;
    same(
        "again, among others",
        claim(&billing, &["a", "b", "c", "d"], at(1)).await?,
        [Handled, New, Handled, New],
    )?;
    let other = Instance::new(&fixture.again(&store).await, "billing")?;
    same(
        "in another process",
        claim(&other, &["a", "b", "e"], at(2)).await?,
        [Handled, Handled, New],
    )?;
    same("of nothing", claim(&billing, &[], at(2)).await?, [])
}

pub(super) async fn consumers_claim_apart<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    same(
        "one",
        claim(&Instance::new(&store, "billing")?, &["a"], at(0)).await?,
        [New],
    )?;
    same(
        "another",
        claim(&Instance::new(&store, "mailer")?, &["a"], at(0)).await?,
        [New],
    )
}

pub(super) async fn ids_are_any_text<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let long = "x".repeat(1_000);
    let mut ids = ["", " ", "A", "a", "a'b\"c\\", "ü", "{a,b}", "\u{1F511}", long.as_str()];
    ids.sort_unstable();
    same("first", claim(&billing, &ids, at(0)).await?, [New; 9])?;
    same("again", claim(&billing, &ids, at(0)).await?, [Handled; 9])
}

pub(super) async fn a_thousand_are_one_statement<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let ids: Vec<String> = (0..10_000).map(|number| format!("id-{number:05}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let odd: Vec<&str> = ids.iter().skip(1).step_by(2).copied().collect();
    claim(&billing, &odd, at(0)).await?;
    let claims = claim(&billing, &ids, at(0)).await?;
    let wrong: Vec<usize> = (0..ids.len())
        .filter(|number| claims.get(*number) != Some(&[New, Handled][number % 2]))
        .collect();
    same("answers that do not belong to their id", wrong, Vec::<usize>::new())
}

pub(super) async fn rolling_back_undoes_a_claim<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let mut undone = billing.begin().await?;
    same(
        "first",
        store.claim(&mut undone, &billing.reader, &["a", "b"], at(0)).await?,
        [New, New],
    )?;
    undone.rollback().await?;
    same(
        "after a rollback",
        store.result_of(&billing.reader, "a").await?,
        None::<String>,
    )?;
    let mut open = billing.begin().await?;
    same(
        "again",
        store.claim(&mut open, &billing.reader, &["a"], at(0)).await?,
        [New],
    )?;
    open.savepoint().await?;
    same(
        "after the savepoint",
        store.claim(&mut open, &billing.reader, &["b"], at(0)).await?,
        [New],
    )?;
    open.rollback_to_savepoint().await?;
    open.commit().await?;
    same("both", claim(&billing, &["a", "b"], at(1)).await?, [Handled, New])
}

pub(super) async fn a_claim_is_taken_back<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    billing
        .commit(async |connection| {
            store
                .claim(connection, &billing.reader, &["a", "b", "c"], at(0))
                .await?;
            store.unclaim(connection, &billing.reader, &["a", "c"]).await?;
            store.unclaim(connection, &billing.reader, &[]).await
        })
        .await?;
    same(
        "the next delivery",
        claim(&billing, &["a", "b", "c"], at(1)).await?,
        [New, Handled, New],
    )
}

pub(super) async fn results_are_kept<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let result = r#"{"receipt": "Grüße",  "n": 10000000000000000000000.10 }"#;
    billing
        .commit(async |connection| {
            store
                .claim(connection, &billing.reader, &["a", "b", "c"], at(0))
                .await?;
            store
                .record(connection, &billing.reader, &[("a", result), ("c", "[]")])
                .await?;
            store.record(connection, &billing.reader, &[]).await
        })
        .await?;
    let cases = [("a", Some(result)), ("b", Some("null")), ("c", Some("[]")), ("d", None)];
    for (id, wanted) in cases {
        let found = store.result_of(&billing.reader, id).await?;
        same(&format!("result of {id}"), found.as_deref(), wanted)?;
    }
    let mailer = Instance::new(&store, "mailer")?;
    same(
        "result of another consumer",
        store.result_of(&mailer.reader, "a").await?,
        None::<String>,
    )
}

pub(super) async fn of_two_at_once_one_waits<F: Fixture>(fixture: &F) -> Outcome {
    for commits in [true, false] {
        let store = fixture.fresh().await;
        let first = Instance::new(&store, "billing")?;
        let second = Instance::new(&fixture.again(&store).await, "billing")?;
        let mut open = first.begin().await?;
        same(
            "the first",
            store.claim(&mut open, &first.reader, &["b"], at(0)).await?,
            [New],
        )?;
        let ends = async {
            match commits {
                true => open.commit().await?,
                false => open.rollback().await?,
            }
            Ok(())
        };
        let claims = meets(
            "the claim of what is being claimed",
            claim(&second, &["a", "b"], at(0)),
            ends,
        )
        .await?;
        let wanted = if commits { [New, Handled] } else { [New, New] };
        same(
            &format!("the second, when the first commits: {commits}"),
            claims,
            wanted,
        )?;
        same("the next", claim(&first, &["a", "b"], at(0)).await?, [Handled, Handled])?;
    }
    Ok(())
}

pub(super) async fn claims_are_forgotten_after_their_window<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let mailer = Instance::new(&store, "mailer")?;
    claim(&billing, &["a", "b", "c"], at(0)).await?;
    claim(&billing, &["d"], at(1_800)).await?;
    claim(&mailer, &["a"], at(0)).await?;
    same("within the window", forget(&billing, 1, 100, 3_599).await?, 0)?;
    same("at most two at a time", forget(&billing, 1, 2, 3_601).await?, 2)?;
    same("the rest", forget(&billing, 1, 2, 3_601).await?, 1)?;
    same("nothing more", forget(&billing, 1, 2, 3_601).await?, 0)?;
    same(
        "of the consumer",
        claim(&billing, &["a", "b", "c", "d"], at(3_602)).await?,
        [New, New, New, Handled],
    )?;
    same("of another", claim(&mailer, &["a"], at(3_602)).await?, [Handled])
}

/// Sorted claims are taken in their order, so that two batches wait for each other and never both.
pub(super) async fn batches_that_overlap_do_not_deadlock<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let first = Instance::new(&store, "billing")?;
    let second = Instance::new(&fixture.again(&store).await, "billing")?;
    for round in 0..10 {
        let ids: Vec<String> = (0..200).map(|number| format!("{round}-{number:03}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let both = join(claim(&first, &ids, at(0)), claim(&second, &ids[..150], at(0))).await;
        let (mut claims, others) = (both.0?, both.1?);
        claims.extend(others);
        let new = claims.into_iter().filter(|claim| *claim == New).count();
        same(&format!("new ones of both, in round {round}"), new, 200)?;
    }
    Ok(())
}
