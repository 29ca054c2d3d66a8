//! A call to the outside is claimed by a lane and its epoch, and whoever comes next knows that it may have happened.

use crate::store::{
    check::{Failed, Outcome, same},
    fixture::Fixture,
    instance::{Instance, LEASE},
    sample::at,
};
use eventloom_core::{
    Lane,
    ports::{
        Backend, Claim, Cursor,
        EffectClaim::{self, Call, Handled, InProgress},
        EffectRequest, Inbox as _, Transaction as _,
    },
};
use std::time::Duration;

const FIRST: EffectClaim = Call { again: false };
const AGAIN: EffectClaim = Call { again: true };

/// Claims as an owner does: committed, with a fence.
async fn claim<S: Backend>(of: &Instance<S>, lane: i16, ids: &[&str]) -> Result<Vec<EffectClaim>, Failed> {
    let cursor = of.cursor(Lane(lane))?;
    let requests: Vec<EffectRequest<'_>> = ids.iter().map(|id| EffectRequest { id, cursor }).collect();
    fenced(of, cursor, &requests).await
}

async fn fenced<S: Backend>(
    of: &Instance<S>,
    cursor: Cursor,
    requests: &[EffectRequest<'_>],
) -> Result<Vec<EffectClaim>, Failed> {
    of.commit(async |connection| {
        let claims = of.store.claim_effects(connection, &of.reader, requests, at(0)).await?;
        of.store.fence(connection, &of.reader, &[cursor]).await?;
        Ok::<_, Failed>(claims)
    })
    .await
}

async fn finish<S: Backend>(of: &Instance<S>, results: &[(&str, &str)], second: i64) -> Outcome {
    of.commit(async |connection| {
        of.store
            .finish_effects(connection, &of.reader, results, at(second))
            .await
    })
    .await
}

pub(super) async fn a_call_is_made_once<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    same("first", claim(&mailer, 1, &["a", "b"]).await?, [FIRST, FIRST])?;
    same(
        "result before the call returned",
        store.result_of(&mailer.reader, "a").await?,
        None::<String>,
    )?;
    finish(&mailer, &[("a", r#"{"sent": true }"#), ("b", "null")], 1).await?;
    same(
        "result",
        store.result_of(&mailer.reader, "a").await?.as_deref(),
        Some(r#"{"sent": true }"#),
    )?;
    same(
        "after it returned",
        claim(&mailer, 1, &["a", "b", "c"]).await?,
        [Handled, Handled, FIRST],
    )?;
    same("on another lane", claim(&mailer, 2, &["a"]).await?, [Handled])?;
    same("of nothing", claim(&mailer, 2, &[]).await?, [])?;
    finish(&mailer, &[], 1).await
}

pub(super) async fn the_same_lane_asks_again<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    claim(&mailer, 1, &["a"]).await?;
    same("its own claim", claim(&mailer, 1, &["a", "b"]).await?, [AGAIN, FIRST])?;
    same("once more", claim(&mailer, 1, &["a"]).await?, [AGAIN])
}

pub(super) async fn another_lane_is_told_that_it_is_in_progress<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    claim(&mailer, 1, &["b"]).await?;
    same(
        "another lane",
        claim(&mailer, 2, &["a", "b", "c"]).await?,
        [FIRST, InProgress, FIRST],
    )?;
    same("the lane itself", claim(&mailer, 1, &["b"]).await?, [AGAIN])?;
    same("the other's claim", claim(&mailer, 1, &["a"]).await?, [InProgress])?;
    finish(&mailer, &[("b", "null")], 1).await?;
    same(
        "another lane, when it is done",
        claim(&mailer, 2, &["b"]).await?,
        [Handled],
    )
}

pub(super) async fn a_claim_ends_with_its_epoch<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let first = Instance::alone(&store, "mailer").await?;
    claim(&first, 1, &["a", "b"]).await?;
    let mut second = Instance::new(&fixture.again(&store).await, "mailer")?;
    second.keep(at(LEASE.as_secs() as i64 + 1)).await?;
    same(
        "another lane of the successor",
        claim(&second, 2, &["a"]).await?,
        [AGAIN],
    )?;
    same("the lane itself", claim(&second, 1, &["b"]).await?, [AGAIN])?;
    same("the claim has moved", claim(&second, 1, &["a"]).await?, [InProgress])?;
    finish(&second, &[("a", "1")], 1).await?;
    same(
        "when it is done",
        claim(&second, 1, &["a", "b"]).await?,
        [Handled, AGAIN],
    )
}

/// Its owner may be calling still: only the epoch says that it is over.
pub(super) async fn a_claim_outlives_its_lease_until_the_lane_is_taken<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut mailer = Instance::alone(&store, "mailer").await?;
    claim(&mailer, 1, &["a"]).await?;
    let (one, two) = (mailer.cursor(Lane(1))?, mailer.cursor(Lane(2))?);
    let late = at(LEASE.as_secs() as i64 + 1);
    let ask = async |of: &Instance<F::Store>| {
        let mut open = of.begin().await?;
        let request = [EffectRequest { id: "a", cursor: two }];
        let claims = store.claim_effects(&mut open, &of.reader, &request, late).await?;
        open.rollback().await?;
        Ok::<_, Failed>(claims)
    };
    same(
        "another lane, when the lease is over",
        ask(&mailer).await?,
        [InProgress],
    )?;
    mailer.release(&[one], false).await?;
    same("when the lane was handed over", ask(&mailer).await?, [AGAIN])
}

pub(super) async fn a_claim_that_was_given_up_is_open<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    let give_up = async |lane: i16, ids: &[&str]| {
        let cursor = mailer.cursor(Lane(lane))?;
        let requests: Vec<EffectRequest<'_>> = ids.iter().map(|id| EffectRequest { id, cursor }).collect();
        mailer
            .commit(async |connection| store.give_up_effects(connection, &mailer.reader, &requests).await)
            .await
    };
    claim(&mailer, 1, &["a", "b", "c"]).await?;
    finish(&mailer, &[("c", "1")], 1).await?;
    give_up(1, &["a", "c", "never claimed"]).await?;
    give_up(1, &[]).await?;
    // Not its own.
    give_up(2, &["b"]).await?;
    same(
        "another lane",
        claim(&mailer, 2, &["a", "b", "c"]).await?,
        [AGAIN, InProgress, Handled],
    )?;
    same("and is another's then", claim(&mailer, 1, &["a"]).await?, [InProgress])
}

pub(super) async fn a_claim_that_was_rolled_back_was_never_made<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    let cursor = mailer.cursor(Lane(1))?;
    let mut undone = mailer.begin().await?;
    let requests = [EffectRequest { id: "a", cursor }];
    same(
        "first",
        store
            .claim_effects(&mut undone, &mailer.reader, &requests, at(0))
            .await?,
        [FIRST],
    )?;
    undone.rollback().await?;
    same("after a rollback", claim(&mailer, 2, &["a"]).await?, [FIRST])
}

pub(super) async fn lanes_ask_together<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    claim(&mailer, 1, &["a", "b"]).await?;
    finish(&mailer, &[("b", "null")], 1).await?;
    let (one, two) = (mailer.cursor(Lane(1))?, mailer.cursor(Lane(2))?);
    let requests = [("a", one), ("b", two), ("c", two), ("d", one)].map(|(id, cursor)| EffectRequest { id, cursor });
    same(
        "answers, in their order",
        fenced(&mailer, one, &requests).await?,
        [AGAIN, Handled, FIRST, FIRST],
    )?;
    same(
        "whose claim it is",
        claim(&mailer, 1, &["c", "d"]).await?,
        [InProgress, AGAIN],
    )
}

pub(super) async fn consumers_call_apart<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (mailer, caller) = (
        Instance::alone(&store, "mailer").await?,
        Instance::alone(&store, "caller").await?,
    );
    same("one", claim(&mailer, 1, &["a"]).await?, [FIRST])?;
    same("another", claim(&caller, 1, &["a"]).await?, [FIRST])?;
    finish(&mailer, &[("a", "1")], 1).await?;
    same("one, done", claim(&mailer, 1, &["a"]).await?, [Handled])?;
    same("another, not done", claim(&caller, 1, &["a"]).await?, [AGAIN])
}

/// A finished call is a handled message for whoever asks; one in progress is never forgotten.
pub(super) async fn only_finished_calls_are_forgotten<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mailer = Instance::alone(&store, "mailer").await?;
    claim(&mailer, 1, &["a", "b"]).await?;
    finish(&mailer, &[("a", "1")], 10).await?;
    let claims = mailer
        .commit(async |connection| store.claim(connection, &mailer.reader, &["a"], at(0)).await)
        .await?;
    same("a plain claim of a finished call", claims, [Claim::Handled])?;
    let forget = async |second| {
        store
            .forget_handled(&mailer.reader, Duration::from_secs(60), 10, at(second))
            .await
    };
    same("within the window, from when it was finished", forget(69).await?, 0)?;
    same("after the window", forget(1_000).await?, 1)?;
    same(
        "the forgotten one, the one in progress",
        claim(&mailer, 1, &["a", "b"]).await?,
        [FIRST, AGAIN],
    )
}
