//! What fails is tried again, set aside, and holds up nothing but its key.

use crate::{
    engine::scene::{STEPS, Scene, Step, Treat, stop},
    store::{Failed, Fixture, Outcome, holds, same},
};
use eventloom_core::{
    Event, NewEvent, Payload,
    ports::{Backend, DeadLetter, HeldState},
};
use eventloom_runtime::{Backoff, Context, EffectContext, EffectHandle, Handle, Poison, Unhandled};
use std::time::Duration;

fn dead(letters: &[DeadLetter]) -> Vec<&DeadLetter> {
    letters
        .iter()
        .filter(|letter| letter.state == HeldState::Dead)
        .collect()
}

/// Waits until a consumer has this many dead letters.
async fn until_dead<F: Fixture>(scene: &Scene<'_, F>, consumer: &str, count: usize) -> Result<Vec<DeadLetter>, Failed> {
    scene
        .until(&format!("{count} dead letters"), async || {
            let letters = scene.letters(consumer).await?;
            Ok((dead(&letters).len() >= count).then_some(letters))
        })
        .await
}

pub(super) async fn a_transient_failure_is_tried_again_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailTimes(3));
    scene
        .publish(&[("a", 0), ("a", 1), ("b", 0), ("a", 2), ("a", 3)])
        .await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 5).await?;
    same("order of a", scene.effects_of("one", "a").await?, [0, 1, 2, 3])?;
    scene.until_settled("one").await?;
    // And the key flows again.
    scene.publish(&[("a", 4)]).await?;
    scene.until_effects("one", 6).await?;
    same("letters", scene.letters("one").await?.len(), 0)?;
    stop(service).await
}

pub(super) async fn a_permanent_failure_is_dead_at_once<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    same("runs", scene.script.runs("a", 1), 1)?;
    same("attempts", letters[0].attempts, 1)?;
    same("error", letters[0].error.as_deref(), Some("step 1 was refused"))?;
    same(
        "fingerprint",
        letters[0].fingerprint.as_deref(),
        Some("step <number> was refused"),
    )?;
    stop(service).await
}

pub(super) async fn attempts_run_out<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailAlways);
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one").attempts(3)).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    same("attempts", letters[0].attempts, 3)?;
    holds(
        "first and last failure",
        letters[0].first_failed_at < letters[0].last_failed_at,
        &letters[0],
    )?;
    stop(service).await
}

pub(super) async fn a_parked_key_waits_and_the_others_flow<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    scene
        .publish(&[("a", 0), ("a", 1), ("a", 2), ("b", 0), ("a", 3), ("b", 1)])
        .await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 3).await?;
    until_dead(&scene, "one", 1).await?;
    scene.publish(&[("a", 4), ("b", 2)]).await?;
    let letters = scene
        .until("a's messages to queue", async || {
            let letters = scene.letters("one").await?;
            Ok((letters.len() == 4).then_some(letters))
        })
        .await?;
    same("effects of a", scene.effects_of("one", "a").await?, [0])?;
    let queue: Vec<_> = letters.iter().map(|letter| (letter.state, letter.queued)).collect();
    let waiting = (HeldState::Waiting, true);
    same("queue", queue, [(HeldState::Dead, true), waiting, waiting, waiting])?;
    scene.until_effects("one", 4).await?;
    same("effects of b", scene.effects_of("one", "b").await?, [0, 1, 2])?;
    stop(service).await
}

pub(super) async fn a_skipped_message_lets_its_key_flow<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailAlways);
    scene.publish(&[("a", 0), ("a", 1), ("a", 2)]).await?;
    let service = scene.start(scene.consumer("one").on_poison(Poison::Skip)).await?;
    until_dead(&scene, "one", 1).await?;
    scene.until_effects("one", 2).await?;
    same("effects", scene.effects_of("one", "a").await?, [0, 2])?;
    stop(service).await
}

pub(super) async fn a_blocked_lane_waits<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    // As many lanes as keys, so that another key waits in the same lane, and most do not.
    let keys: Vec<String> = (0..64).map(|key| format!("k{key}")).collect();
    scene.publish(&[("a", 0), ("a", 1), ("a", 2)]).await?;
    let service = scene.start(scene.consumer("one").on_poison(Poison::Block)).await?;
    until_dead(&scene, "one", 1).await?;
    let lanes = eventloom_core::LaneCount::default();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 0)).collect();
    scene.publish(&steps).await?;
    let elsewhere = keys
        .iter()
        .filter(|key| lanes.lane_of(key) != lanes.lane_of("a"))
        .count();
    scene.until_effects("one", 1 + elsewhere).await?;
    same("effects of a", scene.effects_of("one", "a").await?, [0])?;
    let letters = scene.letters("one").await?;
    same("held", letters.len(), 1)?;
    // Mended and sent again: the lane goes on where it stood.
    scene.script.set("a", 1, Treat::Succeed);
    redrive_all(&scene, "one").await?;
    scene.until_effects("one", 3 + keys.len()).await?;
    same("effects of a", scene.effects_of("one", "a").await?, [0, 1, 2])?;
    stop(service).await
}

async fn redrive_all<F: Fixture>(scene: &Scene<'_, F>, consumer: &str) -> Outcome {
    use eventloom_core::ports::{DeadLetters, Redrive};
    let name = eventloom_core::ConsumerName::parse(consumer)?;
    scene.store.redrive(&name, &Redrive::All, None).await?;
    Ok(())
}

pub(super) async fn unkeyed_messages_are_set_aside_alone<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("", 1, Treat::FailForGood);
    scene.publish(&[("", 0), ("", 1), ("", 2)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    scene.until_effects("one", 2).await?;
    same("queued", letters[0].queued, false)?;
    stop(service).await
}

pub(super) async fn a_panic_is_a_failure<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::Panic);
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    let service = scene.start(scene.consumer("one").attempts(2)).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    let error = letters[0].error.clone().unwrap_or_default();
    holds("the panic's text", error.contains("step 1 panics"), error)?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn a_hanging_handler_is_a_failure<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::Hang);
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    let service = scene
        .start(scene.consumer("one").attempts(1).deadline(Duration::from_millis(100)))
        .await?;
    let letters = until_dead(&scene, "one", 1).await?;
    let error = letters[0].error.clone().unwrap_or_default();
    holds("the deadline is named", error.contains("100ms"), error)?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn an_aborted_transaction_is_a_failure<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 5, Treat::AbortTransaction);
    let steps: Vec<(&str, i64)> = (0..10).map(|n| ("a", n)).collect();
    scene.publish(&steps).await?;
    let service = scene.start(scene.consumer("one").attempts(1)).await?;
    if fixture.capabilities().concurrent_writers {
        // Nobody before it is blamed, and those behind it wait.
        let letters = until_dead(&scene, "one", 1).await?;
        same(
            "the dead one",
            dead(&letters)[0].message.envelope.payload.clone(),
            payload("a", 5),
        )?;
        scene.until_effects("one", 5).await?;
        same("effects", scene.effects_of("one", "a").await?, [0, 1, 2, 3, 4])?;
    } else {
        // SQLite undoes the statement and goes on.
        scene.until_effects("one", 10).await?;
    }
    stop(service).await
}

fn payload(key: &str, number: i64) -> Option<Payload> {
    Some(Payload::Json(format!(r#"{{"key":"{key}","number":{number}}}"#)))
}

pub(super) async fn a_conflict_that_does_not_pass_is_a_failure<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::Conflict);
    scene.publish(&[("a", 1), ("a", 2), ("b", 1), ("c", 1)]).await?;
    // Held once, and it loses again where held messages are tried.
    let service = scene.start(scene.consumer("one").attempts(2)).await?;
    scene.until_effects("one", 2).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    same("attempts", letters[0].attempts, 2)?;
    let error = letters[0].error.clone().unwrap_or_default();
    holds(
        "the losses are counted",
        error.contains("lost against other transactions"),
        error,
    )?;
    same("the key waits", scene.effects_of("one", "a").await?.len(), 0)?;
    same("the others flow", scene.effects("one").await?.len(), 2)?;
    let health = service.health().await.consumers.remove(0);
    holds("conflicts", health.conflicts > 2 && health.failures == 2, &health)?;
    stop(service).await
}

pub(super) async fn what_cannot_be_decoded_is_dead_with_its_bytes<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let bytes = Payload::Binary(vec![0, 159, 146, 150]);
    let bad = [
        NewEvent::untyped(STEPS, "step.taken")
            .with_key("a")
            .with_payload(bytes.clone()),
        NewEvent::untyped(STEPS, "step.taken")
            .with_key("b")
            .with_payload(Payload::Json(r#"{"number": "three" }"#.into())),
        NewEvent::untyped(STEPS, "step.taken").with_key("c"),
    ];
    scene.publish_rows(&bad).await?;
    scene.publish(&[("d", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    let letters = until_dead(&scene, "one", 3).await?;
    let kept: Vec<_> = letters
        .iter()
        .map(|letter| letter.message.envelope.payload.clone())
        .collect();
    same(
        "raw",
        kept,
        [Some(bytes), Some(Payload::Json(r#"{"number": "three" }"#.into())), None],
    )?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

/// An event whose decoder panics.
struct Brittle;

impl<'de> serde::Deserialize<'de> for Brittle {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("the decoder panics")
    }
}

impl serde::Serialize for Brittle {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl Event for Brittle {
    const TYPE: &'static str = "step.brittle";
}

struct Never;

impl<S: Backend> Handle<S> for Never {
    type Event = Brittle;
    type Output = ();
    type Error = std::convert::Infallible;
    async fn handle(&self, _: Brittle, _: &mut Context<'_, S>) -> Result<(), Self::Error> {
        Ok(())
    }
}

struct NeverCalled;

impl EffectHandle for NeverCalled {
    type Event = Brittle;
    type Output = ();
    type Error = std::convert::Infallible;
    async fn handle(&self, _: Brittle, _: &mut EffectContext<'_>) -> Result<(), Self::Error> {
        Ok(())
    }
}

pub(super) async fn a_decoder_that_panics_is_a_failure<F: Fixture>(fixture: &F) -> Outcome {
    for mode_effect in [false, true] {
        let scene = Scene::new(fixture).await;
        let brittle = NewEvent::untyped(STEPS, "step.brittle")
            .with_key("a")
            .with_payload(Payload::Json("{}".into()));
        scene.publish_rows(&[brittle]).await?;
        scene.publish(&[("b", 1)]).await?;
        let consumer = if mode_effect {
            scene.caller("one").effect(NeverCalled)
        } else {
            scene.consumer("one").handle(Never)
        };
        let service = scene.start(consumer.attempts(2)).await?;
        let letters = until_dead(&scene, "one", 1).await?;
        let error = letters[0].error.clone().unwrap_or_default();
        holds("the panic's text", error.contains("the decoder panics"), error)?;
        scene.until_effects("one", 1).await?;
        stop(service).await?;
    }
    Ok(())
}

pub(super) async fn types_without_a_handler_are_dead_by_choice<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let other = NewEvent::untyped(STEPS, "step.withdrawn").with_payload(Payload::Json("{}".into()));
    scene.publish_rows(&[other]).await?;
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one").on_unhandled(Unhandled::Dead)).await?;
    let letters = until_dead(&scene, "one", 1).await?;
    let error = letters[0].error.clone().unwrap_or_default();
    holds("the type is named", error.contains("step.withdrawn"), error)?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn many_poisons_in_one_batch<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let mut rows = Vec::new();
    for n in 0..200 {
        let key = format!("k{}", n % 40);
        if n % 13 == 0 {
            scene.script.set(&key, n, Treat::FailForGood);
        }
        rows.push(NewEvent::of(STEPS, &Step { key, number: n })?);
    }
    scene.publish_rows(&rows).await?;
    let service = scene.start(scene.consumer("one").on_poison(Poison::Skip)).await?;
    until_dead(&scene, "one", 16).await?;
    let effects = scene.until_effects("one", 184).await?;
    same("effects", effects.len(), 184)?;
    for key in 0..40 {
        let of = scene.effects_of("one", &format!("k{key}")).await?;
        holds("order", of.is_sorted(), &of)?;
    }
    stop(service).await
}

pub(super) async fn a_failure_undoes_what_was_published<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 2, Treat::FailTimes(1));
    scene.publish(&[("a", 1), ("a", 2), ("a", 3)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 3).await?;
    scene.until_settled("one").await?;
    same("effects", scene.effects_of("one", "a").await?, [1, 2, 3])?;
    stop(service).await
}

pub(super) async fn an_outage_burns_no_attempts<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.all(Some(Treat::FailAlways));
    let keys: Vec<String> = (0..100).map(|key| format!("k{key}")).collect();
    let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
    scene.publish(&steps).await?;
    let slow = Backoff::default()
        .first(Duration::from_millis(200))
        .most(Duration::from_secs(1));
    let service = scene.start(scene.consumer("one").attempts(3).backoff(slow)).await?;
    scene
        .until("the outage to be noticed", async || {
            Ok(service.health().await.consumers[0].outage.then_some(()))
        })
        .await?;
    // Probes go on, and nobody is blamed for them.
    let failures = service.health().await.consumers[0].failures;
    scene
        .until("three probes", async || {
            Ok((service.health().await.consumers[0].failures >= failures + 3).then_some(()))
        })
        .await?;
    same("dead letters", dead(&scene.letters("one").await?).len(), 0)?;
    let held = scene.letters("one").await?.len();
    holds("few were set aside before it was noticed", held < 20, held)?;
    scene.script.all(None);
    let effects = scene.until_effects("one", 100).await?;
    same("effects", effects.len(), 100)?;
    stop(service).await
}
