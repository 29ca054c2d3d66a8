//! What is committed is delivered, in order for each key, and takes effect once.

use crate::{
    engine::scene::{EFFECTS, STEPS, Scene, Scripted, Step, stop},
    store::{Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, NewEvent, Payload, Position, Topic,
    ports::{Inbox, Log, ReadLimits, Readers, Start},
};

pub(super) async fn each_event_takes_effect_once_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = (0..300).map(|n| (keys[n % 20].as_str(), (n / 20) as i64)).collect();
    scene.publish(&steps[..100]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.publish(&steps[100..]).await?;
    let effects = scene.until_effects("one", 300).await?;
    same("effects", effects.len(), 300)?;
    for key in &keys {
        let numbers: Vec<i64> = effects
            .iter()
            .filter(|(of, _)| of == key)
            .map(|(_, number)| *number)
            .collect();
        same(&format!("order of {key}"), numbers, (0..15).collect::<Vec<_>>())?;
    }
    stop(service).await
}

pub(super) async fn consumers_have_their_own_effects<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("b", 2), ("a", 3)]).await?;
    let one = scene.start(scene.consumer("one")).await?;
    let two = scene.start(scene.consumer("two")).await?;
    for name in ["one", "two"] {
        scene.until_effects(name, 3).await?;
        same(name, scene.effects_of(name, "a").await?, [1, 3])?;
    }
    stop(one).await?;
    stop(two).await
}

pub(super) async fn a_logical_id_takes_effect_once<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let service = scene.deliver_one_id_thrice("one", scene.consumer("one")).await?;
    same(
        "effects",
        scene.effects("one").await?,
        [("a".to_owned(), 1), ("a".to_owned(), 2)],
    )?;
    stop(service).await
}

pub(super) async fn redelivery_of_everything_changes_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let steps: Vec<(String, i64)> = (0..60).map(|n| (format!("k{}", n % 7), n)).collect();
    let steps: Vec<(&str, i64)> = steps.iter().map(|(key, n)| (key.as_str(), *n)).collect();
    scene.publish(&steps).await?;
    let service = scene.start(scene.consumer("one")).await?;
    let before = scene.until_effects("one", 60).await?;
    let name = ConsumerName::parse("one")?;
    // While it runs, and while it does not.
    scene.store.reset(&name, Start::Earliest, false, None).await?;
    scene.publish(&[("last", 1)]).await?;
    scene.until_effects("one", 61).await?;
    stop(service).await?;
    scene.store.reset(&name, Start::Earliest, false, None).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.publish(&[("last", 2)]).await?;
    let after = scene.until_effects("one", 62).await?;
    same("effects", after.len(), 62)?;
    same("the first of them", &after[..60], &before[..])?;
    stop(service).await
}

pub(super) async fn what_a_handler_publishes_is_caused<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let first = NewEvent::of(
        STEPS,
        &Step {
            key: "a".into(),
            number: 1,
        },
    )?
    .with_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
    let second = NewEvent::of(
        STEPS,
        &Step {
            key: "a".into(),
            number: 2,
        },
    )?
    .with_correlation(Some("case-7".into()), Some("earlier".into()));
    let ids = [first.id().to_string(), second.id().to_string()];
    scene.publish_rows(&[first, second]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    let page = scene.store.read_after(Position::START, ReadLimits::default()).await?;
    let effects: Vec<_> = page
        .rows
        .iter()
        .filter(|row| row.envelope.topic == EFFECTS.as_str())
        .collect();
    let causes: Vec<_> = effects.iter().map(|row| row.envelope.causationid.clone()).collect();
    same("causation", causes, ids.clone().map(Some))?;
    let correlations: Vec<_> = effects.iter().map(|row| row.envelope.correlationid.clone()).collect();
    same(
        "correlation",
        correlations,
        [Some(ids[0].clone()), Some("case-7".to_owned())],
    )?;
    let trace = effects[0].envelope.traceparent.as_deref().unwrap_or("").to_owned();
    same(
        "trace",
        trace.as_str(),
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )?;
    stop(service).await
}

pub(super) async fn results_are_kept<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let ids = scene.publish(&[("a", 41), ("b", 42)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    let name = ConsumerName::parse("one")?;
    let result = scene.store.result_of(&name, &ids[1].to_string()).await?;
    same("result", result.as_deref(), Some("42"))?;
    same("of a stranger", scene.store.result_of(&name, "stranger").await?, None)?;
    stop(service).await
}

pub(super) async fn only_topics_of_the_consumer_are_delivered<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let elsewhere = NewEvent::of(
        Topic::new("elsewhere"),
        &Step {
            key: "a".into(),
            number: 9,
        },
    )?;
    scene.publish_rows(&[elsewhere]).await?;
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_settled("one").await?;
    same("effects", scene.effects("one").await?, [("a".to_owned(), 1)])?;
    stop(service).await
}

pub(super) async fn types_without_a_handler_are_acknowledged<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let other = NewEvent::untyped(STEPS, "step.withdrawn")
        .with_key("a")
        .with_payload(Payload::Json("{}".into()));
    scene.publish_rows(&[other]).await?;
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 1).await?;
    let health = service.health().await;
    same("unhandled", health.consumers[0].unhandled, 1)?;
    same("letters", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn a_batch_reads_its_own_effects_once<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let steps: Vec<(&str, i64)> = (0..500).map(|n| ("hot", n)).collect();
    scene.publish(&steps).await?;
    // Small batches: the cursor moves in the middle of the key.
    let service = scene.start(scene.consumer("one").batch_max(7)).await?;
    scene.until_effects("one", 500).await?;
    same(
        "order",
        scene.effects_of("one", "hot").await?,
        (0..500).collect::<Vec<_>>(),
    )?;
    stop(service).await
}

pub(super) async fn rows_of_other_programs_are_read<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let plain = r#"INSERT INTO {outbox} (topic, type, key, data) VALUES ('steps', 'step.taken', 'a', '{"key": "a", "number": 5}')"#;
    fixture.execute(&scene.store, plain).await;
    let binary = br#"{"key": "a", "number": 6}"#.to_vec();
    let bytes = NewEvent::untyped(STEPS, "step.taken")
        .with_key("a")
        .with_payload(Payload::Binary(binary));
    scene.publish_rows(&[bytes]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    same("effects", scene.effects_of("one", "a").await?, [5, 6])?;
    holds(
        "a handler twice for one type is refused",
        scene
            .start(scene.consumer("two").handle(Scripted(scene.script.clone())))
            .await
            .is_err(),
        "it started",
    )?;
    stop(service).await
}
