//! The store fails or goes silent under a service: it goes on trying, and no message pays for it.

use crate::{
    engine::scene::{Scene, Treat, stop},
    faults::StoreFault,
    store::{Fixture, Outcome, holds, same},
};
use eventloom_core::ports::Store as _;
use std::time::Duration;

/// Leases so short that calls are given up soon.
const LEASE: Duration = Duration::from_millis(600);
const DEADLINE: Duration = Duration::from_millis(300);

pub(super) async fn a_silent_look_at_the_log_is_given_up<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    for name in ["read_after", "horizon", "doze"] {
        scene.trouble.next(name, StoreFault::Silence, 1);
    }
    scene.publish(&[("a", 1)]).await?;
    let consumer = scene.troubled("one").lease(LEASE).deadline(DEADLINE);
    let service = scene.start_troubled(consumer).await?;
    scene.until_effects("one", 1).await?;
    scene
        .until("it to sleep", async || {
            Ok((scene.trouble.left("doze") == 0).then_some(()))
        })
        .await?;
    scene.publish(&[("a", 2)]).await?;
    scene.until_effects("one", 2).await?;
    stop(service).await
}

pub(super) async fn a_silent_transaction_is_given_up<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    // The others go on meanwhile, and renewals too: only this one connection does not answer.
    scene.trouble.next("claim", StoreFault::Silence, 1);
    let service = scene
        .start_troubled(scene.troubled("one").lease(LEASE).deadline(DEADLINE))
        .await?;
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    scene.until_effects("one", 2).await?;
    same("nobody is blamed", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn a_silent_look_at_what_is_held_is_given_up<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailTimes(2));
    for name in ["due", "queue_of", "lane_holds"] {
        scene.trouble.next(name, StoreFault::Silence, 1);
    }
    let service = scene
        .start_troubled(scene.troubled("one").lease(LEASE).deadline(DEADLINE))
        .await?;
    scene.publish(&[("a", 1), ("a", 2)]).await?;
    scene.until_effects("one", 2).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2])?;
    for name in ["due", "queue_of", "lane_holds"] {
        scene
            .until(name, async || Ok((scene.trouble.left(name) == 0).then_some(())))
            .await?;
    }
    stop(service).await
}

pub(super) async fn a_slow_store_costs_no_call_its_time<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    // In one lane: the result of `a` takes longer to store than the call of the other may take.
    let lanes = scene.store.lanes();
    let beside = |key: &String| lanes.lane_of(key) == lanes.lane_of("a");
    let other: Vec<String> = (0..).map(|key| format!("k{key}")).filter(beside).take(1).collect();
    scene.script.set(&other[0], 1, Treat::Take(Duration::from_millis(400)));
    scene
        .trouble
        .next("finish_effects", StoreFault::Late(Duration::from_millis(1200)), 1);
    scene.publish(&[("a", 1), (&other[0], 1)]).await?;
    let service = scene.start_troubled(scene.troubled_caller("one")).await?;
    scene.until_effects("one", 2).await?;
    same("calls", scene.script.runs(&other[0], 1), 1)?;
    let health = service.health().await.consumers.remove(0);
    same("failures", health.failures, 0)?;
    stop(service).await
}

pub(super) async fn calls_run_ahead_of_their_results_so_far<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let lanes = scene.store.lanes();
    let beside = |key: &String| lanes.lane_of(key) == lanes.lane_of("a");
    let keys: Vec<String> = (0..).map(|key| format!("k{key}")).filter(beside).take(12).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    // What the first call came to is not stored until it is given up.
    scene.trouble.next("finish_effects", StoreFault::Silence, 1);
    scene.publish(&steps).await?;
    let caller = scene.troubled_caller("one").in_flight(1).lease(LEASE);
    let service = scene.start_troubled(caller).await?;
    scene
        .until("as many calls as may be made", async || {
            Ok((scene.script.keys().len() == 4).then_some(()))
        })
        .await?;
    same("stored meanwhile", scene.effects("one").await?.len(), 0)?;
    scene.until_effects("one", 12).await?;
    let calls = scene.script.keys().len();
    // Those four, where the lease ends with the silence; none, where the store's own limit ends it and the results wait.
    holds("no more are made again", (12..=16).contains(&calls), calls)?;
    stop(service).await
}

pub(super) async fn results_wait_for_a_store_that_is_away<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let keys: Vec<String> = (0..6).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    scene.trouble.next("finish_effects", StoreFault::Fail, 3);
    let service = scene.start_troubled(scene.troubled_caller("one")).await?;
    scene.publish(&steps).await?;
    scene.until_effects("one", 6).await?;
    same("faults that are left", scene.trouble.left("finish_effects"), 0)?;
    for key in &keys {
        same(key, scene.script.runs(key, 1), 1)?;
    }
    stop(service).await
}

/// One lane of several whose results share a commit was taken over: the others are stored without it.
pub(super) async fn a_lane_that_was_lost_costs_others_no_call<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let lanes = scene.store.lanes();
    let lost = lanes.lane_of("lost");
    let keys: Vec<String> = (0..)
        .map(|key| format!("k{key}"))
        .filter(|key| lanes.lane_of(key) != lost)
        .take(8)
        .collect();
    let mut steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    steps.push(("lost", 1));
    for key in &keys {
        scene.script.set(key, 1, Treat::Take(Duration::from_millis(300)));
    }
    scene.script.set("lost", 1, Treat::Take(Duration::from_millis(400)));
    // The first commit lasts until all others have come back, so that they share the second.
    scene
        .trouble
        .next("finish_effects", StoreFault::Late(Duration::from_secs(1)), 1);
    scene.publish(&steps).await?;
    let service = scene.start_troubled(scene.troubled_caller("one")).await?;
    scene
        .until("all calls to be made", async || {
            Ok((scene.script.runs_in_all() >= 9).then_some(()))
        })
        .await?;
    let taken_over = format!("UPDATE {{cursors}} SET epoch = epoch + 1 WHERE reader = 'one' AND lane = {lost}");
    fixture.execute(&scene.store, &taken_over).await;
    scene
        .until("the others to be stored", async || {
            let stored = scene.effects("one").await?.len();
            Ok((stored >= 8).then_some(()))
        })
        .await?;
    for key in &keys {
        same(key, scene.script.runs(key, 1), 1)?;
    }
    stop(service).await
}

pub(super) async fn a_panic_ends_no_renewal<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let service = scene.start_troubled(scene.troubled("one")).await?;
    scene.publish(&[("a", 1)]).await?;
    scene.until_effects("one", 1).await?;
    // The second one is made only by who has outlived the first.
    for then in [StoreFault::Panic, StoreFault::Late(Duration::ZERO)] {
        scene.trouble.next("keep", then, 1);
        scene
            .until(
                "a renewal",
                async || Ok((scene.trouble.left("keep") == 0).then_some(())),
            )
            .await?;
    }
    scene.publish(&[("a", 2)]).await?;
    scene.until_effects("one", 2).await?;
    let health = service.health().await;
    let trouble = health.consumers[0].trouble.clone().unwrap_or_default().1;
    holds("the panic is told", trouble.contains("panicked"), &trouble)?;
    same("dead tasks", health.tasks_ended, 0)?;
    stop(service).await
}

pub(super) async fn a_store_that_flaps_burns_no_attempts<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    // Every other transaction is lost, more often than there are attempts: first what was taken, then suspects of it.
    scene.trouble.next("claim", StoreFault::Fail, 12);
    let service = scene.start_troubled(scene.troubled("one").attempts(3)).await?;
    scene.publish(&[("a", 1), ("a", 2)]).await?;
    scene.until_effects("one", 2).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2])?;
    same("nobody is dead", scene.letters("one").await?.len(), 0)?;
    // A crash costs one as before: nothing is left over that would pay for it.
    let suspects = service.health().await.consumers[0].suspects;
    holds("there were suspects", suspects > 3, suspects)?;
    stop(service).await
}

pub(super) async fn a_store_that_flaps_burns_no_attempts_of_what_is_held<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailTimes(2));
    let service = scene.start_troubled(scene.troubled("one").attempts(3)).await?;
    scene.trouble.next("remove", StoreFault::Fail, 8);
    scene.publish(&[("a", 1), ("a", 2)]).await?;
    scene.until_effects("one", 2).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2])?;
    same("nobody is dead", scene.letters("one").await?.len(), 0)?;
    same("all of it has happened", scene.trouble.left("remove"), 0)?;
    stop(service).await
}
