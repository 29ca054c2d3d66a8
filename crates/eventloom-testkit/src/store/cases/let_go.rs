//! A key flows again when nothing of it is queued, and no message is ever queued behind a key that was let go.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, behind, dead, failure, message, waiting},
    wait::meets,
};
use eventloom_core::{
    Recorded,
    ports::{Backend, Held as _, LetGo, NewHeld, Transaction as _},
};
use std::collections::HashSet;

/// What is queued has its key's row, and a key without a queue has none.
async fn no_orphan<S: Backend>(of: &Instance<S>, key: &str, queued: &[&str]) -> Outcome {
    same("the queue", of.queue(key).await?, queued)?;
    same("the key's row is there", of.holds_key(key).await?, !queued.is_empty())
}

async fn put<S: Backend>(of: &Instance<S>, open: &mut S::Transaction, held: NewHeld<'_>) -> Outcome {
    of.store.put(open, &of.reader, &of.owner, &[held], at(1)).await?;
    Ok(())
}

pub(super) async fn an_empty_key_is_free<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two) = (message(Some("a"), 1), message(Some("b"), 2));
    billing.hold(&[waiting(&one, 0), waiting(&two, 0)]).await?;
    billing.remove(&["m-1"]).await?;
    same("the row waits to be let go", billing.holds_key("a").await?, true)?;
    same("letting go", billing.let_go("a", at(1)).await?, LetGo::Free)?;
    no_orphan(&billing, "a", &[]).await?;
    no_orphan(&billing, "b", &["m-2"]).await?;
    same("again", billing.let_go("a", at(1)).await?, LetGo::Free)?;
    same(
        "a key that never was held",
        billing.let_go("c", at(1)).await?,
        LetGo::Free,
    )
}

/// Messages that stand alone are no queue, though they have the key.
pub(super) async fn loners_do_not_hold_their_key<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, alone) = (message(Some("a"), 1), message(Some("a"), 2));
    billing
        .hold(&[
            waiting(&one, 0),
            NewHeld {
                queued: false,
                ..waiting(&alone, 60)
            },
        ])
        .await?;
    billing.remove(&["m-1"]).await?;
    same("letting go", billing.let_go("a", at(1)).await?, LetGo::Free)?;
    no_orphan(&billing, "a", &[]).await?;
    same("the one that stands alone", billing.held("m-2").await?.message, alone)
}

pub(super) async fn the_next_head_wakes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let all = [1, 2, 3].map(|position| message(Some("a"), position));
    billing
        .hold(&[waiting(&all[0], 0), behind(&all[1]), behind(&all[2])])
        .await?;
    billing.remove(&["m-1"]).await?;
    same(
        "removing wakes nobody",
        billing.due(at(1_000)).await?,
        Vec::<String>::new(),
    )?;
    same("letting go", billing.let_go("a", at(50)).await?, LetGo::StillHeld)?;
    same("before it", billing.due(at(49)).await?, Vec::<String>::new())?;
    same("the new head alone is due", billing.due(at(50)).await?, ["m-2"])?;
    no_orphan(&billing, "a", &["m-2", "m-3"]).await
}

pub(super) async fn a_head_with_a_time_keeps_it<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two) = (message(Some("a"), 1), message(Some("a"), 2));
    billing.hold(&[waiting(&one, 100), behind(&two)]).await?;
    same("letting go", billing.let_go("a", at(1)).await?, LetGo::StillHeld)?;
    same("before its time", billing.due(at(99)).await?, Vec::<String>::new())?;
    same("at its time", billing.due(at(100)).await?, ["m-1"])
}

pub(super) async fn a_dead_head_stays_dead<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::new(&store, "billing")?;
    let (one, two, why) = (message(Some("a"), 1), message(Some("a"), 2), failure("no"));
    billing.hold(&[dead(&one, &why), behind(&two)]).await?;
    same("letting go", billing.let_go("a", at(1)).await?, LetGo::StillHeld)?;
    same("due", billing.due(at(1_000)).await?, Vec::<String>::new())?;
    no_orphan(&billing, "a", &["m-1", "m-2"]).await
}

/// A key whose head was handled, in two processes: one lets it go, the other one does something else at the same moment.
async fn scene<F: Fixture>(fixture: &F) -> Result<(Instance<F::Store>, Instance<F::Store>, Recorded), Failed> {
    let store = fixture.fresh().await;
    let drains = Instance::new(&store, "billing")?;
    let queues = Instance::new(&fixture.again(&store).await, "billing")?;
    let head = message(Some("a"), 1);
    drains.hold(&[waiting(&head, 0)]).await?;
    drains.remove(&["m-1"]).await?;
    Ok((drains, queues, message(Some("a"), 2)))
}

async fn end<S: Backend>(open: S::Transaction, commits: bool) -> Outcome {
    match commits {
        true => open.commit().await?,
        false => open.rollback().await?,
    }
    Ok(())
}

/// Queueing came first: letting go waits for it, and looks at what is there after it.
pub(super) async fn letting_go_waits_for_who_queues<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let (drains, queues, next) = scene(fixture).await?;
        let mut open = queues.begin().await?;
        let there = queues.store.share_keys(&mut open, &queues.reader, &["a"]).await?;
        same("the key is there", there.len(), 1)?;
        put(&queues, &mut open, behind(&next)).await?;
        let ends = end::<F::Store>(open, commits);
        let let_go = meets("letting go a key that is queued to", drains.let_go("a", at(2)), ends).await?;
        let (wanted, queued): (_, &[&str]) = if commits {
            (LetGo::StillHeld, &["m-2"])
        } else {
            (LetGo::Free, &[])
        };
        same(
            &format!("letting go, when who queues commits: {commits}"),
            let_go,
            wanted,
        )?;
        no_orphan(&drains, "a", queued).await?;
        same("due", drains.due(at(2)).await?, queued)?;
    }
    Ok(())
}

/// Letting go came first: who queues waits for it, and is told that the key is gone.
pub(super) async fn queueing_waits_for_who_lets_go<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let (drains, queues, next) = scene(fixture).await?;
        let mut open = drains.begin().await?;
        same(
            "letting go",
            drains.store.let_go(&mut open, &drains.reader, "a", at(2)).await?,
            LetGo::Free,
        )?;
        let queueing = async {
            let mut open = queues.begin().await?;
            let there = queues.store.share_keys(&mut open, &queues.reader, &["a"]).await?;
            if there.contains("a") {
                put(&queues, &mut open, behind(&next)).await?;
            }
            open.commit().await?;
            Ok::<_, Failed>(there)
        };
        let there = meets(
            "queueing to a key that is let go",
            queueing,
            end::<F::Store>(open, commits),
        )
        .await?;
        let (wanted, queued): (HashSet<String>, &[&str]) = if commits {
            (HashSet::new(), &[])
        } else {
            (HashSet::from(["a".to_owned()]), &["m-2"])
        };
        same(
            &format!("keys that are there, when letting go commits: {commits}"),
            there,
            wanted,
        )?;
        no_orphan(&drains, "a", queued).await?;
    }
    Ok(())
}

/// Holding came first: letting go waits, and finds the message.
pub(super) async fn letting_go_waits_for_who_holds<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let (drains, holds_it, next) = scene(fixture).await?;
        let mut open = holds_it.begin().await?;
        holds_it
            .store
            .lock_key(&mut open, &holds_it.reader, "a", next.lane)
            .await?;
        put(&holds_it, &mut open, waiting(&next, 0)).await?;
        let ends = end::<F::Store>(open, commits);
        let let_go = meets("letting go a key that is locked", drains.let_go("a", at(2)), ends).await?;
        let (wanted, queued): (_, &[&str]) = if commits {
            (LetGo::StillHeld, &["m-2"])
        } else {
            (LetGo::Free, &[])
        };
        same(
            &format!("letting go, when who holds commits: {commits}"),
            let_go,
            wanted,
        )?;
        no_orphan(&drains, "a", queued).await?;
    }
    Ok(())
}

/// Letting go came first: holding waits, and makes the row anew.
pub(super) async fn holding_waits_for_who_lets_go<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let (drains, holds_it, next) = scene(fixture).await?;
        let mut open = drains.begin().await?;
        same(
            "letting go",
            drains.store.let_go(&mut open, &drains.reader, "a", at(2)).await?,
            LetGo::Free,
        )?;
        let hold = [waiting(&next, 0)];
        let holding = holds_it.hold(&hold);
        meets("holding a key that is let go", holding, end::<F::Store>(open, commits)).await?;
        no_orphan(&drains, "a", &["m-2"]).await?;
    }
    Ok(())
}

/// Two hold the same new key: the second waits for the first, whose row is there or not.
pub(super) async fn two_that_hold_wait_for_each_other<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    for commits in [true, false] {
        let store = fixture.fresh().await;
        let first = Instance::new(&store, "billing")?;
        let second = Instance::new(&fixture.again(&store).await, "billing")?;
        let (one, two) = (message(Some("a"), 1), message(Some("a"), 2));
        let mut open = first.begin().await?;
        store.lock_key(&mut open, &first.reader, "a", one.lane).await?;
        put(&first, &mut open, waiting(&one, 0)).await?;
        let hold = [waiting(&two, 0)];
        meets(
            "holding a key that another one makes",
            second.hold(&hold),
            end::<F::Store>(open, commits),
        )
        .await?;
        no_orphan(&first, "a", if commits { &["m-1", "m-2"] } else { &["m-2"] }).await?;
    }
    Ok(())
}

/// Those who queue do not wait for each other.
pub(super) async fn two_that_queue_do_not_wait<F: Fixture>(fixture: &F) -> Outcome {
    if !fixture.capabilities().concurrent_writers {
        return Ok(());
    }
    let (drains, queues, _) = scene(fixture).await?;
    let mut open = queues.begin().await?;
    queues.store.share_keys(&mut open, &queues.reader, &["a"]).await?;
    let there = drains
        .commit(async |connection| drains.store.share_keys(connection, &drains.reader, &["a"]).await)
        .await?;
    holds("the other one shares it too", there.contains("a"), there)?;
    open.commit().await?;
    Ok(())
}
