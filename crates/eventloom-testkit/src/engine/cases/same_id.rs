//! The same logical id under two keys: one is the duplicate of the other, on whichever lanes they are.

use crate::{
    engine::scene::{STEPS, Scene, Step, Treat, stop},
    store::{Failed, Fixture, Outcome, same},
};
use eventloom_core::{
    ConsumerName, LaneCount, NewEvent,
    ports::{DeadLetters, HeldState, Redrive},
};
use eventloom_runtime::Consumer;

/// Step 1 of `a` under its own key, and the same row under `b`, which another lane has.
fn under_two_keys() -> Result<[NewEvent; 2], Failed> {
    let lanes = LaneCount::default();
    assert_ne!(lanes.lane_of("a"), lanes.lane_of("b"));
    let first = NewEvent::of(
        STEPS,
        &Step {
            key: "a".into(),
            number: 1,
        },
    )?;
    let second = first.clone().with_key("b");
    Ok([first, second])
}

fn one() -> Result<ConsumerName, Failed> {
    Ok(ConsumerName::parse("one")?)
}

async fn until_dead<F: Fixture>(scene: &Scene<'_, F>) -> Outcome {
    scene
        .until("a dead letter", async || {
            let letters = scene.letters("one").await?;
            Ok(letters
                .iter()
                .any(|letter| letter.state == HeldState::Dead)
                .then_some(()))
        })
        .await
}

/// The first is dead under its key; the second holds nothing up, and is not held a second time.
async fn beside_a_dead_one<F: Fixture>(scene: &Scene<'_, F>, consumer: Consumer<F::Store>) -> Outcome {
    scene.script.set("a", 1, Treat::FailForGood);
    let [first, second] = under_two_keys()?;
    scene.publish_rows(&[first]).await?;
    let service = scene.start(consumer).await?;
    until_dead(scene).await?;
    scene.publish_rows(&[second]).await?;
    scene.publish(&[("b", 2), ("a", 2)]).await?;
    scene.until_effects("one", 1).await?;
    same("what flows", scene.effects("one").await?, [("b".to_owned(), 2)])?;
    scene
        .until("a's next to queue", async || {
            Ok((scene.letters("one").await?.len() == 2).then_some(()))
        })
        .await?;
    scene.script.set("a", 1, Treat::Succeed);
    scene.store.redrive(&one()?, &Redrive::All, None).await?;
    scene.until_effects("one", 3).await?;
    scene.until_settled("one").await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2])?;
    // Nothing is left of it under either key.
    scene.publish(&[("b", 3), ("a", 3)]).await?;
    scene.until_effects("one", 5).await?;
    same("b", scene.effects_of("one", "b").await?, [2, 3])?;
    same("a", scene.effects_of("one", "a").await?, [1, 2, 3])?;
    stop(service).await
}

pub(super) async fn a_second_key_is_not_held_by_a_dead_message<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    beside_a_dead_one(&scene, scene.consumer("one")).await
}

pub(super) async fn a_second_key_is_not_held_by_a_dead_call<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    beside_a_dead_one(&scene, scene.caller("one")).await
}

/// The first waits behind a dead one of its key; the second comes by before it.
async fn before_a_queued_one<F: Fixture>(scene: &Scene<'_, F>, consumer: Consumer<F::Store>) -> Outcome {
    scene.script.set("a", 0, Treat::FailForGood);
    let [first, second] = under_two_keys()?;
    scene.publish(&[("a", 0)]).await?;
    scene.publish_rows(&[first]).await?;
    let service = scene.start(consumer).await?;
    scene
        .until("it to queue", async || {
            Ok((scene.letters("one").await?.len() == 2).then_some(()))
        })
        .await?;
    scene.publish_rows(&[second]).await?;
    scene.publish(&[("b", 2)]).await?;
    scene
        .until("b to flow", async || {
            let effects = scene.effects_of("one", "b").await?;
            Ok((effects == [2]).then_some(()))
        })
        .await?;
    scene.script.set("a", 0, Treat::Succeed);
    scene.store.redrive(&one()?, &Redrive::All, None).await?;
    scene.until_effects("one", 3).await?;
    scene.until_settled("one").await?;
    same("letters", scene.letters("one").await?.len(), 0)?;
    same("runs", scene.script.runs("a", 1), 1)?;
    same("effects", scene.effects("one").await?.len(), 3)?;
    stop(service).await
}

pub(super) async fn what_queues_is_handled_once_under_another_key<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    before_a_queued_one(&scene, scene.consumer("one")).await
}

pub(super) async fn what_queues_is_called_once_under_another_key<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    before_a_queued_one(&scene, scene.caller("one")).await
}

pub(super) async fn a_call_of_a_deleted_letter_is_open<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailForGood);
    let [first, second] = under_two_keys()?;
    let id = first.id().to_string();
    scene.publish_rows(&[first]).await?;
    let service = scene.start(scene.caller("one")).await?;
    until_dead(&scene).await?;
    same("deleted", scene.store.delete_letters(&one()?, &[&id], None).await?, 1)?;
    scene.script.set("a", 1, Treat::Succeed);
    scene.publish_rows(&[second]).await?;
    scene.publish(&[("b", 2)]).await?;
    scene.until_effects("one", 2).await?;
    same(
        "effects",
        scene.effects("one").await?,
        [("a".to_owned(), 1), ("b".to_owned(), 2)],
    )?;
    stop(service).await
}

pub(super) async fn both_fail_beside_each_other<F: Fixture>(fixture: &F) -> Outcome {
    // Whichever comes first is held, and is the only one.
    for mode_effect in [false, true] {
        let scene = Scene::new(fixture).await;
        scene.script.set("a", 1, Treat::FailTimes(3));
        let rows = under_two_keys()?;
        scene.publish_rows(&rows).await?;
        scene.publish(&[("a", 2), ("b", 2)]).await?;
        let consumer = if mode_effect {
            scene.caller("one")
        } else {
            scene.consumer("one")
        };
        let service = scene.start(consumer.attempts(8)).await?;
        scene.until_effects("one", 3).await?;
        scene.until_settled("one").await?;
        same("letters", scene.letters("one").await?.len(), 0)?;
        let mut effects = scene.effects("one").await?;
        effects.sort();
        let wanted = [("a", 1), ("a", 2), ("b", 2)].map(|(key, number)| (key.to_owned(), number));
        same("effects", effects, wanted)?;
        stop(service).await?;
    }
    Ok(())
}
