//! Mode effect: calls to the outside are made once where nothing dies, in order for each key, and again under the same key.

use crate::{
    engine::scene::{STEPS, Scene, Treat, stop},
    store::{Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, LaneCount, NewEvent, Payload,
    ports::{DeadLetters, Inbox, Readers, Redrive, Start},
};
use eventloom_runtime::Poison;
use std::collections::HashSet;

pub(super) async fn a_call_is_made_once_and_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let keys: Vec<String> = (0..10).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = (0..100).map(|n| (keys[n % 10].as_str(), (n / 10) as i64)).collect();
    let ids = scene.publish(&steps).await?;
    let service = scene.start(scene.caller("one")).await?;
    let effects = scene.until_effects("one", 100).await?;
    same("effects", effects.len(), 100)?;
    for key in &keys {
        same(key, scene.effects_of("one", key).await?, (0..10).collect::<Vec<_>>())?;
    }
    let made = scene.script.keys();
    same("calls", made.len(), 100)?;
    let distinct: HashSet<_> = made.iter().cloned().collect();
    same(
        "idempotency keys",
        distinct,
        ids.iter().map(|id| format!("one/{id}")).collect::<HashSet<_>>(),
    )?;
    let result = scene
        .store
        .result_of(&ConsumerName::parse("one")?, &ids[99].to_string())
        .await?;
    same("result", result.as_deref(), Some("9"))?;
    stop(service).await
}

pub(super) async fn a_failed_call_is_made_again_under_its_key<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailTimes(2));
    let ids = scene.publish(&[("a", 0), ("a", 1), ("b", 0), ("a", 2)]).await?;
    let service = scene.start(scene.caller("one")).await?;
    scene.until_effects("one", 4).await?;
    same("order of a", scene.effects_of("one", "a").await?, [0, 1, 2])?;
    let key = format!("one/{}", ids[1]);
    same(
        "calls",
        scene.script.keys().iter().filter(|made| **made == key).count(),
        3,
    )?;
    stop(service).await
}

pub(super) async fn a_logical_id_is_called_once<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let service = scene.deliver_one_id_thrice("one", scene.caller("one")).await?;
    same("calls", scene.script.keys().len(), 2)?;
    stop(service).await
}

pub(super) async fn redelivery_calls_nobody<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("b", 1), ("a", 2)]).await?;
    let service = scene.start(scene.caller("one")).await?;
    scene.until_effects("one", 3).await?;
    scene
        .store
        .reset(&ConsumerName::parse("one")?, Start::Earliest, false, None)
        .await?;
    scene.publish(&[("a", 3)]).await?;
    scene.until_effects("one", 4).await?;
    same("calls", scene.script.keys().len(), 4)?;
    stop(service).await
}

pub(super) async fn a_dead_call_waits_and_is_sent_again<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    scene.publish(&[("a", 1), ("a", 2), ("b", 1)]).await?;
    let service = scene.start(scene.caller("one")).await?;
    scene.until_effects("one", 1).await?;
    let name = ConsumerName::parse("one")?;
    scene
        .until("the key to wait", async || {
            Ok((scene.letters("one").await?.len() == 2).then_some(()))
        })
        .await?;
    scene.script.set("a", 1, Treat::Succeed);
    same(
        "sent again",
        scene.store.redrive(&name, &Redrive::Key("a".into()), None).await?,
        1,
    )?;
    scene.until_effects("one", 3).await?;
    same("order of a", scene.effects_of("one", "a").await?, [1, 2])?;
    scene.until_settled("one").await?;
    same("letters", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn keys_are_called_in_parallel<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    // Hangs until its deadline; while it does, all others are called.
    scene.script.set("slow", 1, Treat::Hang);
    let keys: Vec<String> = (0..50).map(|key| format!("k{key}")).collect();
    let mut steps = vec![("slow", 1)];
    steps.extend(keys.iter().map(|key| (key.as_str(), 1)));
    scene.publish(&steps).await?;
    let slow = std::time::Duration::from_secs(20);
    let service = scene.start(scene.caller("one").deadline(slow)).await?;
    let begun = std::time::Instant::now();
    scene.until_effects("one", 50).await?;
    holds(
        "nobody waited for the slow one",
        begun.elapsed() < slow,
        begun.elapsed(),
    )?;
    drop(service);
    Ok(())
}

pub(super) async fn a_blocked_lane_calls_nobody_else<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    let lanes = LaneCount::default();
    let beside = |key: &String| lanes.lane_of(key) == lanes.lane_of("a");
    let keys: Vec<String> = (0..).map(|key| format!("k{key}")).filter(beside).take(5).collect();
    let mut steps = vec![("a", 1), ("a", 2)];
    steps.extend(keys.iter().map(|key| (key.as_str(), 1)));
    scene.publish(&steps).await?;
    // One at a time: when it fails, the others have not been begun.
    let service = scene
        .start(scene.caller("one").on_poison(Poison::Block).in_flight(1))
        .await?;
    let held = scene
        .until("the lane to stand", async || {
            let letters = scene.letters("one").await?;
            Ok((!letters.is_empty()).then_some(letters))
        })
        .await?;
    same("held", held.len(), 1)?;
    // Another lane is beyond all of them by now.
    scene.publish(&[("b", 1)]).await?;
    scene.until_effects("one", 1).await?;
    same("effects", scene.effects("one").await?, [("b".to_owned(), 1)])?;
    same("calls", scene.script.keys().len(), 2)?;
    scene.script.set("a", 1, Treat::Succeed);
    let name = ConsumerName::parse("one")?;
    scene.store.redrive(&name, &Redrive::All, None).await?;
    scene.until_effects("one", 8).await?;
    same("order of a", scene.effects_of("one", "a").await?, [1, 2])?;
    same("letters", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn types_without_a_handler_end_no_outage<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.all(Some(Treat::FailAlways));
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    scene.publish(&steps).await?;
    let service = scene.start(scene.caller("one").attempts(1000)).await?;
    scene
        .until("the outage to be noticed", async || {
            Ok(service.health().await.consumers[0].outage.then_some(()))
        })
        .await?;
    // With the eighth key it was an outage; the seven before were on their way to be set aside.
    let held = scene
        .until("the first to be set aside", async || {
            let held = scene.letters("one").await?.len();
            Ok((held >= 7).then_some(held))
        })
        .await?;
    let other = |_| NewEvent::untyped(STEPS, "step.withdrawn").with_payload(Payload::Json("{}".into()));
    let rows: Vec<NewEvent> = (0..60).map(other).collect();
    scene.publish_rows(&rows).await?;
    scene
        .until("some of them to pass", async || {
            Ok((service.health().await.consumers[0].unhandled >= 3).then_some(()))
        })
        .await?;
    same("the outage", service.health().await.consumers[0].outage, true)?;
    same("held meanwhile", scene.letters("one").await?.len(), held)?;
    same("handled", service.health().await.consumers[0].handled, 0)?;
    scene.script.all(None);
    scene.until_effects("one", 20).await?;
    stop(service).await
}
