//! Several instances of one consumer: lanes move, and nothing is lost, doubled or out of order.

use crate::{
    engine::scene::{Scene, Treat, stop},
    store::{Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, OwnerId,
    ports::{HeldState, Readers, Scope, Store},
};
use eventloom_runtime::{Backoff, Eventloom};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Waits until this many owners share the lanes.
async fn until_owners<F: Fixture>(scene: &Scene<'_, F>, owners: usize) -> Outcome {
    scene
        .until(&format!("{owners} owners"), async || {
            let readers = scene.store.readers(None).await?;
            let lanes = readers
                .into_iter()
                .find(|reader| reader.name == "one")
                .map(|reader| reader.lanes);
            let lanes = lanes.unwrap_or_default();
            let found: HashSet<_> = lanes.iter().filter_map(|lane| lane.owner.clone()).collect();
            let all = lanes.iter().all(|lane| lane.owner.is_some());
            Ok((all && found.len() == owners).then_some(()))
        })
        .await
}

pub(super) async fn two_instances_share_and_nothing_is_doubled<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let keys: Vec<String> = (0..50).map(|key| format!("k{key}")).collect();
    let first = scene.start(scene.consumer("one")).await?;
    let publish = async |from: i64, to: i64| -> Outcome {
        for number in from..to {
            let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), number)).collect();
            scene.publish(&steps).await?;
        }
        Ok(())
    };
    publish(0, 4).await?;
    let second = scene.start(scene.consumer("one")).await?;
    publish(4, 8).await?;
    until_owners(&scene, 2).await?;
    publish(8, 12).await?;
    stop(first).await?;
    publish(12, 16).await?;
    let effects = scene.until_effects("one", 50 * 16).await?;
    same("effects", effects.len(), 50 * 16)?;
    for key in &keys {
        same(key, scene.effects_of("one", key).await?, (0..16).collect::<Vec<_>>())?;
    }
    stop(second).await
}

pub(super) async fn leaving_hands_over_with_everything_held<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    scene.publish(&[("a", 1), ("a", 2), ("b", 1)]).await?;
    let first = scene.start(scene.consumer("one")).await?;
    scene
        .until("the key to wait", async || {
            Ok((scene.letters("one").await?.len() == 2).then_some(()))
        })
        .await?;
    stop(first).await?;
    let second = scene.start(scene.consumer("one")).await?;
    scene.publish(&[("a", 3), ("b", 2)]).await?;
    scene
        .until("the next to queue", async || {
            Ok((scene.letters("one").await?.len() == 3).then_some(()))
        })
        .await?;
    same("a", scene.effects_of("one", "a").await?.len(), 0)?;
    scene.until_effects("one", 2).await?;
    stop(second).await
}

pub(super) async fn an_instance_that_dies_is_succeeded<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    let first = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    // Not shut down: its tasks end where they are, and its lease runs out.
    drop(first);
    scene.publish(&[("a", 2), ("b", 2)]).await?;
    let second = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 4).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2])?;
    stop(second).await
}

pub(super) async fn a_key_held_by_another_owner_keeps_its_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailTimes(2));
    scene.publish(&[("a", 1), ("a", 2)]).await?;
    let long = Backoff::default()
        .first(Duration::from_secs(2))
        .most(Duration::from_secs(2));
    let first = scene.start(scene.consumer("one").backoff(long)).await?;
    scene
        .until("the key to be held", async || {
            Ok((scene.letters("one").await?.len() == 2).then_some(()))
        })
        .await?;
    // Held just before its lane moves.
    let second = scene.start(scene.consumer("one").backoff(long)).await?;
    stop(first).await?;
    scene.publish(&[("a", 3)]).await?;
    scene.until_effects("one", 3).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2, 3])?;
    stop(second).await
}

/// Leaves a lane as a killed process does: a batch was taken up to its end, and its owner is gone.
async fn leave_a_batch_unfinished<F: Fixture>(scene: &Scene<'_, F>) -> Outcome {
    scene
        .fixture
        .execute(
            &scene.store,
            "UPDATE {cursors} SET batch_end = 1000000 WHERE reader = 'one'",
        )
        .await;
    Ok(())
}

pub(super) async fn what_killed_its_process_is_set_aside<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let name = ConsumerName::parse("one")?;
    let ids = scene.publish(&[("a", 1), ("b", 1), ("a", 2)]).await?;
    register(&scene, &name).await?;
    leave_a_batch_unfinished(&scene).await?;
    // Three processes have died of it, and four attempts are allowed.
    let counted = format!(
        "INSERT INTO {{attempts}} (consumer, id, attempts) VALUES ('one', '{}', 4)",
        ids[0]
    );
    fixture.execute(&scene.store, &counted).await;
    let service = scene.start(scene.consumer("one")).await?;
    let letters = scene
        .until("the killer to be set aside", async || {
            let letters = scene.letters("one").await?;
            Ok((letters.len() == 2).then_some(letters))
        })
        .await?;
    same("state", letters[0].state, HeldState::Dead)?;
    let error = letters[0].error.clone().unwrap_or_default();
    holds(
        "the reason",
        error.contains("the process ended while handling it, 4 times"),
        error,
    )?;
    same("it did not run", scene.script.runs("a", 1), 0)?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

async fn register<F: Fixture>(scene: &Scene<'_, F>, name: &ConsumerName) -> Outcome {
    use eventloom_core::ports::{Leases, Start};
    scene.store.register(name, Start::Earliest, None).await?;
    Ok(())
}

pub(super) async fn innocents_beside_a_killer_are_handled<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let name = ConsumerName::parse("one")?;
    let keys: Vec<String> = (0..30).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = (0..90).map(|n| (keys[n % 30].as_str(), (n / 30) as i64)).collect();
    scene.publish(&steps).await?;
    register(&scene, &name).await?;
    leave_a_batch_unfinished(&scene).await?;
    let service = scene.start(scene.consumer("one")).await?;
    let effects = scene.until_effects("one", 90).await?;
    same("effects", effects.len(), 90)?;
    // Every delivery was one, second ones included.
    scene.until_settled("one").await?;
    let suspects = service.health().await.consumers[0].suspects;
    let deliveries = if fixture.doubles() { 180 } else { 90 };
    same("all were suspects", suspects, deliveries)?;
    same("nobody is dead", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn shutdown_finishes_what_runs<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let keys: Vec<String> = (0..200).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    for _ in 0..3 {
        scene.publish(&steps).await?;
    }
    let service = scene.start(scene.consumer("one").batch_max(5)).await?;
    scene.until_effects("one", 20).await?;
    stop(service).await?;
    let readers = scene.store.readers(None).await?;
    let owned = readers[0].lanes.iter().filter(|lane| lane.owner.is_some()).count();
    same("lanes still owned", owned, 0)?;
    let before = scene.effects("one").await?.len();
    let service = scene.start(scene.consumer("one")).await?;
    let effects = scene.until_effects("one", 600).await?;
    holds("the rest was left", before < 600, before)?;
    same("effects", effects.len(), 600)?;
    // What was left was not suspicious: nobody died.
    same("suspects", service.health().await.consumers[0].suspects, 0)?;
    stop(service).await
}

pub(super) async fn a_busy_pool_costs_no_lease<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let store = fixture.again(&scene.store).await;
    if store.capacity().connections_max < 2 || !fixture.capabilities().concurrent_writers {
        // One connection, or one transaction that writes at a time: renewals take their turn.
        return Ok(());
    }
    let lease = Duration::from_millis(2400);
    let consumer = scene.consumer("one").lease(lease).deadline(Duration::from_millis(500));
    let service = Eventloom::new(store.clone()).consumer(consumer).start().await?;
    let all = async |lanes: usize| {
        let what = format!("{lanes} lanes");
        scene
            .until(&what, async || {
                Ok((service.health().await.consumers[0].lanes == lanes).then_some(()))
            })
            .await
    };
    all(64).await?;
    // The service's own code takes whatever the pool gives, for longer than a lease.
    let (end, ended) = tokio::sync::watch::channel(());
    let mut holders = tokio::task::JoinSet::new();
    let held = Arc::new(AtomicU32::new(0));
    let connections = store.capacity().connections_max;
    for _ in 0..connections {
        let (store, mut ended, held) = (store.clone(), ended.clone(), held.clone());
        holders.spawn(async move {
            let name = ConsumerName::parse("others").unwrap_or_else(|_| unreachable!("a legal name"));
            let scope = Scope {
                reader: &name,
                owner: &OwnerId::new("others", 1),
                limit: Duration::from_secs(60),
            };
            let transaction = store.begin(scope).await;
            held.fetch_add(1, Ordering::SeqCst);
            let _ = ended.changed().await;
            drop(transaction);
        });
    }
    scene
        .until("the pool to be used up", async || {
            Ok((held.load(Ordering::SeqCst) >= connections - 1).then_some(()))
        })
        .await?;
    let begun = Instant::now();
    scene
        .until("leases to pass", async || {
            let one = &service.health().await.consumers[0];
            holds("the lease", one.lanes == 64 && one.lease_left > Duration::ZERO, one)?;
            Ok((begun.elapsed() > lease * 4).then_some(()))
        })
        .await?;
    same("taken anew", service.health().await.consumers[0].taken, 64)?;
    end.send_replace(());
    while holders.join_next().await.is_some() {}
    scene.publish(&[("a", 1)]).await?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn handlers_as_slow_as_allowed_get_through<F: Fixture>(fixture: &F) -> Outcome {
    // A batch of them takes many leases; and where one transaction writes at a time, renewals wait for each.
    for batch_max in [256, 1] {
        let scene = Scene::new(fixture).await;
        let lease = Duration::from_millis(1200);
        scene.script.all(Some(Treat::Take(lease * 3 / 4)));
        let steps = [
            ("a", 1),
            ("b", 1),
            ("a", 2),
            ("c", 1),
            ("a", 3),
            ("d", 1),
            ("b", 2),
            ("a", 4),
        ];
        scene.publish(&steps).await?;
        let consumer = scene.consumer("one").lease(lease).deadline(lease * 9 / 10);
        let service = scene.start(consumer.attempts(3).batch_max(batch_max)).await?;
        let effects = scene.until_effects("one", steps.len()).await?;
        same("effects", effects.len(), steps.len())?;
        same("a", scene.effects_of("one", "a").await?, [1, 2, 3, 4])?;
        same("nobody is blamed", scene.letters("one").await?.len(), 0)?;
        let run = |(key, number): &(&str, i64)| scene.script.runs(key, *number);
        let runs: u32 = steps.iter().map(run).sum();
        // On a machine with nothing else to do it is one run each. A handler that comes late beyond its lease runs again,
        // by itself; batches that never fit would run for ever.
        holds("runs", runs <= 4 * steps.len() as u32, (batch_max, runs))?;
        stop(service).await?;
    }
    Ok(())
}
