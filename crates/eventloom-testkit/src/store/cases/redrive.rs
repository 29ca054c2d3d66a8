//! Dead letters are sent again in order, or given up; what queues behind them flows on.

use super::letters::{letters, of_key};
use crate::store::{
    check::{Failed, Outcome, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, behind, dead, failure, message, waiting},
};
use eventloom_core::{
    Epoch,
    ports::{Backend, Held as _, HeldState, LetGo, LetterFilter, Redrive},
};

const NONE: [&str; 0] = [];

async fn redrive<S: Backend>(of: &Instance<S>, which: Redrive, second: i64) -> Result<u64, Failed> {
    Ok(of.store.redrive(&of.reader, &which, at(second)).await?)
}

async fn delete<S: Backend>(of: &Instance<S>, ids: &[&str], second: i64) -> Result<u64, Failed> {
    Ok(of.store.delete_letters(&of.reader, ids, at(second)).await?)
}

/// Handles what is due at the head of a key, as the lane's owner does, and lets the key go.
async fn handle<S: Backend>(of: &Instance<S>, key: &str, id: &str, second: i64) -> Result<LetGo, Failed> {
    same(&format!("due at {second} s"), of.due(at(second)).await?, [id])?;
    same("it is there", of.remove(&[id]).await?, 1)?;
    of.let_go(key, at(second)).await
}

pub(super) async fn one_is_sent_again<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [one, two] = of_key("a", [1, 2]);
    let alone = message(None, 3);
    billing
        .hold(&[dead(&one, &why), behind(&two), dead(&alone, &why)])
        .await?;
    billing
        .commit(async |connection| store.mark_taken(connection, &billing.reader, &["m-1"], Epoch(1)).await)
        .await?;
    same(
        "a head",
        redrive(&billing, Redrive::One("m-1".to_owned()), 50).await?,
        1,
    )?;
    let found = billing.held("m-1").await?;
    let facts = (found.state, found.attempts, found.redrives, found.taken_epoch);
    same(
        "state, attempts, redriven, mark",
        facts,
        (HeldState::Waiting, 0, 1, None),
    )?;
    same("due before", billing.due(at(49)).await?, NONE)?;
    same("due at once", billing.due(at(50)).await?, ["m-1"])?;
    for (what, id) in [
        ("again", "m-1"),
        ("a waiting one", "m-2"),
        ("one that is not there", "m-9"),
    ] {
        same(what, redrive(&billing, Redrive::One(id.to_owned()), 60).await?, 0)?;
    }
    same(
        "one that stands alone",
        redrive(&billing, Redrive::One("m-3".to_owned()), 60).await?,
        1,
    )?;
    same("both are due", billing.due(at(60)).await?, ["m-1", "m-3"])?;
    same(
        "of another consumer",
        redrive(&Instance::new(&store, "mailer")?, Redrive::All, 60).await?,
        0,
    )
}

/// It stands in the queue: its turn comes when it heads it.
pub(super) async fn one_in_the_middle_keeps_its_place<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [one, two, three] = of_key("a", [1, 2, 3]);
    billing
        .hold(&[waiting(&one, 100), dead(&two, &why), behind(&three)])
        .await?;
    same(
        "the second",
        redrive(&billing, Redrive::One("m-2".to_owned()), 50).await?,
        1,
    )?;
    same("due before the head is", billing.due(at(99)).await?, NONE)?;
    same("the head", handle(&billing, "a", "m-1", 100).await?, LetGo::StillHeld)?;
    same("the second", handle(&billing, "a", "m-2", 100).await?, LetGo::StillHeld)?;
    same("the third", handle(&billing, "a", "m-3", 100).await?, LetGo::Free)
}

pub(super) async fn a_key_is_sent_again_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [one, two, three] = of_key("a", [1, 2, 3]);
    let [other] = of_key("b", [4]);
    billing
        .hold(&[
            dead(&three, &why),
            dead(&one, &why),
            dead(&two, &why),
            dead(&other, &why),
        ])
        .await?;
    same(
        "three of the key",
        redrive(&billing, Redrive::Key("a".to_owned()), 50).await?,
        3,
    )?;
    same("another key", billing.held("m-4").await?.state, HeldState::Dead)?;
    for id in ["m-1", "m-2", "m-3"] {
        let found = billing.held(id).await?;
        same(
            &format!("state, attempts, redriven of {id}"),
            (found.state, found.attempts, found.redrives),
            (HeldState::Waiting, 0, 1),
        )?;
    }
    same("the first", handle(&billing, "a", "m-1", 50).await?, LetGo::StillHeld)?;
    same("the second", handle(&billing, "a", "m-2", 51).await?, LetGo::StillHeld)?;
    same("the third", handle(&billing, "a", "m-3", 52).await?, LetGo::Free)?;
    same(
        "a key without letters",
        redrive(&billing, Redrive::Key("a".to_owned()), 60).await?,
        0,
    )
}

pub(super) async fn all_are_sent_again_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (billing, mailer) = (Instance::new(&store, "billing")?, Instance::new(&store, "mailer")?);
    let why = failure("no");
    let ([a1, a2], [b3, b4], alone) = (of_key("a", [1, 2]), of_key("b", [3, 4]), message(None, 5));
    billing
        .hold(&[
            dead(&a1, &why),
            dead(&a2, &why),
            waiting(&b3, 100),
            dead(&b4, &why),
            dead(&alone, &why),
        ])
        .await?;
    mailer.hold(&[dead(&a1, &why)]).await?;
    same("four are dead", redrive(&billing, Redrive::All, 50).await?, 4)?;
    let mut due = billing.due(at(50)).await?;
    due.sort();
    same("a head, and the one alone", due, ["m-1", "m-5"])?;
    let mut due = billing.due(at(100)).await?;
    due.sort();
    same("and the head that had its own time", due, ["m-1", "m-3", "m-5"])?;
    same("of another consumer", mailer.held("m-1").await?.state, HeldState::Dead)
}

pub(super) async fn a_head_that_came_later_is_due_too<F: Fixture>(fixture: &F) -> Outcome {
    let why = failure("no");
    for which in [
        Redrive::One("m-2".to_owned()),
        Redrive::Key("a".to_owned()),
        Redrive::All,
    ] {
        let store = fixture.fresh().await;
        let billing = Instance::new(&store, "billing")?;
        let [one, two, three] = of_key("a", [1, 2, 3]);
        billing.hold(&[dead(&two, &why), behind(&three)]).await?;
        // The reader was reset, and what was handled long ago queues before the dead one.
        billing.hold(&[behind(&one)]).await?;
        same("sent again", redrive(&billing, which, 50).await?, 1)?;
        for (id, then) in [
            ("m-1", LetGo::StillHeld),
            ("m-2", LetGo::StillHeld),
            ("m-3", LetGo::Free),
        ] {
            same(id, handle(&billing, "a", id, 50).await?, then)?;
        }
    }
    Ok(())
}

pub(super) async fn a_deleted_head_lets_its_queue_flow<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [one, two, three] = of_key("a", [1, 2, 3]);
    billing.hold(&[dead(&one, &why), behind(&two), behind(&three)]).await?;
    same(
        "the head, and one that is not there",
        delete(&billing, &["m-1", "m-9"], 50).await?,
        1,
    )?;
    same("before it", billing.due(at(49)).await?, NONE)?;
    same("the second", handle(&billing, "a", "m-2", 50).await?, LetGo::StillHeld)?;
    same("the third", handle(&billing, "a", "m-3", 50).await?, LetGo::Free)?;
    same("the key flows", billing.holds_key("a").await?, false)
}

pub(super) async fn deleting_the_last_lets_the_key_go<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let why = failure("no");
    let [one, two] = of_key("a", [1, 2]);
    let alone = message(None, 3);
    billing
        .hold(&[dead(&one, &why), dead(&two, &why), dead(&alone, &why)])
        .await?;
    same("all three", delete(&billing, &["m-1", "m-2", "m-3"], 50).await?, 3)?;
    same("the key flows", billing.holds_key("a").await?, false)?;
    same("letters", letters(&store, LetterFilter::default()).await?, NONE)?;
    same("again", delete(&billing, &["m-1"], 50).await?, 0)
}

pub(super) async fn waiting_ones_are_not_deleted<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let (billing, mailer) = (Instance::new(&store, "billing")?, Instance::new(&store, "mailer")?);
    let why = failure("no");
    let [one, two, three] = of_key("a", [1, 2, 3]);
    billing
        .hold(&[waiting(&one, 100), dead(&two, &why), behind(&three)])
        .await?;
    same(
        "a waiting head, a dead one, a waiting one",
        delete(&billing, &["m-1", "m-2", "m-3"], 50).await?,
        1,
    )?;
    same("the queue", billing.queue("a").await?, ["m-1", "m-3"])?;
    same("the head keeps its time", billing.due(at(99)).await?, NONE)?;
    same(
        "of another consumer",
        delete(&mailer, &["m-1", "m-2", "m-3"], 50).await?,
        0,
    )?;
    same("nothing", delete(&billing, &[], 50).await?, 0)?;
    same("the head", handle(&billing, "a", "m-1", 100).await?, LetGo::StillHeld)?;
    same("the last", handle(&billing, "a", "m-3", 100).await?, LetGo::Free)
}
