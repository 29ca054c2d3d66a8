//! A held key has a row, which whoever queues behind it shares; how much is held can be told.

use super::held::set;
use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{behind, dead, failure, message, waiting},
};
use eventloom_core::{
    Lane,
    ports::{Backend, Held as _},
};
use std::collections::HashSet;

async fn share<S: Backend>(of: &Instance<S>, keys: &[&str]) -> Result<HashSet<String>, Failed> {
    of.commit(async |connection| of.store.share_keys(connection, &of.reader, keys).await)
        .await
}

pub(super) async fn locking_a_key_again_finds_it<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    for _ in 0..2 {
        billing
            .commit(async |connection| store.lock_key(connection, &billing.reader, "a", Lane(5)).await)
            .await?;
    }
    same(
        "keys of its lane",
        store.keys_of_lane(&billing.reader, Lane(5), "", 10).await?,
        ["a"],
    )
}

pub(super) async fn only_keys_that_are_there_are_shared<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two) = (message(Some("b"), 1), message(Some("d"), 2));
    billing.hold(&[waiting(&one, 60), waiting(&two, 60)]).await?;
    same(
        "of four",
        share(&billing, &["a", "b", "c", "d"]).await?,
        set(&["b", "d"]),
    )?;
    same(
        "in any order",
        share(&billing, &["d", "a", "b"]).await?,
        set(&["b", "d"]),
    )?;
    same("of nothing", share(&billing, &[]).await?, set(&[]))?;
    same(
        "of another consumer",
        share(&Instance::new(&store, "mailer")?, &["b"]).await?,
        set(&[]),
    )
}

async fn at_least<S: Backend>(of: &Instance<S>, key: Option<&str>, messages: u32) -> Result<bool, Failed> {
    of.commit(async |connection| of.store.holds_at_least(connection, &of.reader, key, messages).await)
        .await
}

pub(super) async fn how_much_is_held_is_told<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [a1, a2, b1, alone] = [(Some("a"), 1), (Some("a"), 2), (Some("b"), 3), (None, 4)].map(|(k, p)| message(k, p));
    billing
        .hold(&[dead(&a1, &why), behind(&a2), waiting(&b1, 60), waiting(&alone, 60)])
        .await?;
    let cases = [
        (Some("a"), 1, true),
        (Some("a"), 2, true),
        (Some("a"), 3, false),
        (Some("c"), 1, false),
        (None, 4, true),
        (None, 5, false),
    ];
    for (key, messages, wanted) in cases {
        same(
            &format!("at least {messages} of {key:?}"),
            at_least(&billing, key, messages).await?,
            wanted,
        )?;
    }
    same(
        "of another consumer",
        at_least(&Instance::new(&store, "mailer")?, None, 1).await?,
        false,
    )
}

pub(super) async fn a_lane_tells_whether_it_holds<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, why) = (message(Some("a"), 1), failure("no"));
    same("before", store.lane_holds(&billing.reader, one.lane).await?, false)?;
    billing.hold(&[dead(&one, &why)]).await?;
    same(
        "its lane, with a dead one",
        store.lane_holds(&billing.reader, one.lane).await?,
        true,
    )?;
    same(
        "another lane",
        store.lane_holds(&billing.reader, Lane((one.lane.0 + 1) % 64)).await?,
        false,
    )?;
    same(
        "of another consumer",
        store
            .lane_holds(&Instance::new(&store, "mailer")?.reader, one.lane)
            .await?,
        false,
    )?;
    billing.remove(&["m-1"]).await?;
    same("after", store.lane_holds(&billing.reader, one.lane).await?, false)
}

pub(super) async fn keys_of_a_lane_come_in_pages<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let keys = ["k-3", "K-1", "k-1", "k-2", "k-10"];
    billing
        .commit(async |connection| {
            for key in keys {
                store.lock_key(connection, &billing.reader, key, Lane(7)).await?;
            }
            store.lock_key(connection, &billing.reader, "other", Lane(8)).await
        })
        .await?;
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = store.keys_of_lane(&billing.reader, Lane(7), &after, 2).await?;
        holds("at most two", page.len() <= 2, &page)?;
        let Some(last) = page.last() else { break };
        after.clone_from(last);
        found.extend(page);
        holds("pages end", found.len() <= keys.len(), &found)?;
    }
    found.sort();
    let mut wanted = keys.to_vec();
    wanted.sort_unstable();
    same("keys, each once", found, wanted)?;
    same(
        "of another lane",
        store.keys_of_lane(&billing.reader, Lane(8), "", 10).await?,
        ["other"],
    )
}
