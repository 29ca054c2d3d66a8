//! What could never work is refused before anything runs, with the numbers; what grows is bounded.

use crate::{
    engine::scene::{Scene, Treat, stop},
    store::{Failed, Fixture, Outcome, holds, same},
};
use eventloom_core::{
    LaneCount,
    ports::{DeadLetters, Redrive, Store},
};
use eventloom_runtime::{Backoff, Consumer, Eventloom};
use std::time::Duration;

async fn refusal<F: Fixture>(scene: &Scene<'_, F>, consumer: Consumer<F::Store>) -> Result<String, Failed> {
    match scene.start(consumer).await {
        Ok(_) => Err(Failed::new("it started")),
        Err(failed) => Ok(failed.to_string()),
    }
}

pub(super) async fn what_cannot_work_is_refused_at_start<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let minute = Duration::from_secs(60);
    let long = Backoff::default().first(minute).most(Duration::from_secs(24 * 3600));
    let cases = [
        (
            "no handler",
            Consumer::new("one").topic(crate::engine::scene::STEPS),
            "no handler",
        ),
        ("a bad name", scene.consumer("One Two"), "not a legal name"),
        ("no attempts", scene.consumer("one").attempts(0), "attempts 0"),
        (
            "a long deadline",
            scene.consumer("one").deadline(minute),
            "deadline 60s does not fit into lease 3s",
        ),
        (
            "a deadline that meets the server's own limit",
            scene.consumer("one").deadline(Duration::from_secs(3)),
            "deadline 3s does not fit into lease 3s: a handler must end within nine tenths of it, 2.7s",
        ),
        (
            "a short window",
            scene.consumer("one").attempts(20).backoff(long),
            "inbox_window 604800s is shorter than the longest redelivery",
        ),
        (
            "effect without inbox",
            scene.caller("one").without_inbox(),
            "needs the inbox",
        ),
        ("nothing in flight", scene.consumer("one").in_flight(0), "in_flight 0"),
        (
            "a lease of nothing",
            scene.consumer("one").lease(Duration::from_millis(1)),
            "lease 1ms",
        ),
    ];
    for (what, consumer, wanted) in cases {
        let refusal = refusal(&scene, consumer).await?;
        holds(what, refusal.contains(wanted), refusal)?;
    }
    Ok(())
}

pub(super) async fn an_explicit_number_that_the_pool_cannot_carry_is_refused<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let pool = scene.store.capacity().connections_max;
    let asked = pool.max(2);
    let refusal = refusal(&scene, scene.consumer("one").in_flight(asked)).await?;
    let numbers = format!("in_flight {asked} needs {} connections", asked + 1);
    holds(
        "both numbers are named",
        refusal.contains(&numbers) && refusal.contains(&format!("the pool has {pool}")),
        refusal,
    )
}

pub(super) async fn numbers_that_the_pool_cannot_carry_together_are_refused<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let pool = scene.store.capacity().connections_max;
    let usable = pool.saturating_sub(1).max(1);
    let store = scene.fixture.again(&scene.store).await;
    let both = Eventloom::new(store)
        .consumer(scene.consumer("one").in_flight(usable))
        .consumer(scene.consumer("two").in_flight(1));
    let refusal = match both.start().await {
        Ok(_) => return Err(Failed::new("it was started")),
        Err(refusal) => refusal.to_string(),
    };
    let numbers = format!(
        "in_flight 1 and the {usable} of consumers before it need {} connections",
        usable + 2
    );
    holds(
        "the numbers are named",
        refusal.contains(&numbers) && refusal.contains(&format!("the pool has {pool}")),
        refusal,
    )
}

/// However many handlers could run: leases are renewed while they do.
pub(super) async fn the_default_leaves_a_connection_free<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let capacity = scene.store.capacity();
    if capacity.connections_max < 2 || !fixture.capabilities().concurrent_writers {
        // The one handler that runs has what there is, and the lease is renewed when it has ended.
        return Ok(());
    }
    let keys: Vec<String> = (0..40).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 0)).collect();
    scene.script.all(Some(Treat::Hang));
    scene.publish(&steps).await?;
    let lease = Duration::from_secs(9);
    let service = scene
        .start(scene.consumer("one").lease(lease).deadline(lease * 9 / 10))
        .await?;
    // Four, where nothing is scarce.
    let wanted = 4.min(capacity.connections_max - 1);
    scene
        .until("handlers to run", async || {
            Ok((scene.script.runs_in_all() >= wanted).then_some(()))
        })
        .await?;
    let left = service.health().await.consumers[0].lease_left;
    scene
        .until("the lease to be renewed", async || {
            Ok((service.health().await.consumers[0].lease_left > left).then_some(()))
        })
        .await?;
    same("handlers that run", scene.script.runs_in_all(), wanted)
}

pub(super) async fn held_limits_stop_the_lane_and_nothing_is_lost<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 0, Treat::FailForGood);
    let steps: Vec<(&str, i64)> = (0..20).map(|n| ("a", n)).collect();
    scene.publish(&steps).await?;
    let service = scene
        .start(scene.consumer("one").held_limits(5, 1000).batch_max(1))
        .await?;
    scene
        .until("the limit", async || {
            let trouble = service.health().await.consumers[0].trouble.clone();
            Ok(trouble.filter(|(_, text)| text.contains("limit")))
        })
        .await?;
    same("held", scene.letters("one").await?.len(), 5)?;
    scene.script.set("a", 0, Treat::Succeed);
    let name = eventloom_core::ConsumerName::parse("one")?;
    scene.store.redrive(&name, &Redrive::All, None).await?;
    scene.until_effects("one", 20).await?;
    same(
        "order",
        scene.effects_of("one", "a").await?,
        (0..20).collect::<Vec<_>>(),
    )?;
    stop(service).await
}

pub(super) async fn a_lane_at_its_limit_stops_alone<F: Fixture>(fixture: &F) -> Outcome {
    let lanes = LaneCount::default();
    let elsewhere = |key: &String| lanes.lane_of(key) != lanes.lane_of("a");
    let keys: Vec<String> = (0..).map(|key| format!("k{key}")).filter(elsewhere).take(20).collect();
    let mut steps = Vec::new();
    for number in 0..10 {
        steps.push(("a", number));
        steps.extend(keys.iter().map(|key| (key.as_str(), number)));
    }
    for mode_effect in [false, true] {
        let scene = Scene::new(fixture).await;
        scene.script.set("a", 0, Treat::FailForGood);
        scene.publish(&steps).await?;
        let consumer = if mode_effect {
            scene.caller("one")
        } else {
            scene.consumer("one")
        };
        let service = scene.start(consumer.held_limits(3, 1000)).await?;
        // All of them are in the same batches as what has no room.
        scene.until_effects("one", 200).await?;
        same("a", scene.effects_of("one", "a").await?.len(), 0)?;
        for key in &keys {
            same(key, scene.effects_of("one", key).await?, (0..10).collect::<Vec<_>>())?;
        }
        scene.publish(&[("b", 1)]).await?;
        scene.until_effects("one", 201).await?;
        scene.script.set("a", 0, Treat::Succeed);
        let name = eventloom_core::ConsumerName::parse("one")?;
        scene
            .until("a to flow", async || {
                // More fails to find room until the queue is empty again.
                scene.store.redrive(&name, &Redrive::All, None).await?;
                Ok((scene.effects_of("one", "a").await?.len() == 10).then_some(()))
            })
            .await?;
        same("a", scene.effects_of("one", "a").await?, (0..10).collect::<Vec<_>>())?;
        stop(service).await?;
    }
    Ok(())
}

pub(super) async fn calls_that_run_are_finished_where_no_more_may_be_held<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let lanes = scene.store.lanes();
    let beside = |key: &String| lanes.lane_of(key) == lanes.lane_of("a");
    let slow = (0..).map(|key| format!("k{key}")).find(beside).unwrap_or_default();
    scene.script.set("first", 1, Treat::FailForGood);
    scene.script.set("a", 1, Treat::FailForGood);
    scene.script.set(&slow, 1, Treat::Take(Duration::from_millis(500)));
    let service = scene.start(scene.caller("one").held_limits(1, 1)).await?;
    scene.publish(&[("first", 1)]).await?;
    scene
        .until("the only place to be taken", async || {
            Ok((scene.letters("one").await?.len() == 1).then_some(()))
        })
        .await?;
    scene.publish(&[("a", 1), (&slow, 1)]).await?;
    scene
        .until("the slow call to be stored", async || {
            Ok((scene.effects_of("one", &slow).await?.len() == 1).then_some(()))
        })
        .await?;
    same("slow calls", scene.script.runs(&slow, 1), 1)?;
    stop(service).await
}
