//! What operators do while services run.

use crate::{
    engine::scene::{Scene, Treat, stop},
    store::{Failed, Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, Position,
    ports::{DeadLetters, Leases, Log, Readers, Redrive, Start},
};
use std::time::{Duration, Instant};

fn one() -> Result<ConsumerName, Failed> {
    Ok(ConsumerName::parse("one")?)
}

/// Keys a and b, each with a dead head and two behind it.
async fn two_parked_keys<F: Fixture>(scene: &Scene<'_, F>) -> Outcome {
    scene.script.set("a", 1, Treat::FailForGood);
    scene.script.set("b", 1, Treat::FailForGood);
    scene
        .publish(&[("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)])
        .await?;
    Ok(())
}

async fn until_held<F: Fixture>(scene: &Scene<'_, F>, count: usize) -> Outcome {
    scene
        .until(&format!("{count} held messages"), async || {
            Ok((scene.letters("one").await?.len() == count).then_some(()))
        })
        .await
}

pub(super) async fn one_letter_is_sent_again<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    two_parked_keys(&scene).await?;
    let service = scene.start(scene.consumer("one")).await?;
    until_held(&scene, 6).await?;
    scene.script.set("a", 1, Treat::Succeed);
    let id = scene.letters("one").await?[0].message.envelope.id.clone();
    same(
        "sent again",
        scene.store.redrive(&one()?, &Redrive::One(id), None).await?,
        1,
    )?;
    scene.until_effects("one", 3).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2, 3])?;
    until_held(&scene, 3).await?;
    // It fails again: dead again, and known as one that was sent again.
    let id = scene.letters("one").await?[0].message.envelope.id.clone();
    scene.store.redrive(&one()?, &Redrive::One(id), None).await?;
    scene
        .until("the repeated one", async || {
            let letters = scene.letters("one").await?;
            Ok(
                (scene.script.runs("b", 1) == 2 && letters[0].redrives == 1 && letters[0].due_at.is_none())
                    .then_some(()),
            )
        })
        .await?;
    stop(service).await
}

pub(super) async fn a_key_is_sent_again_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    two_parked_keys(&scene).await?;
    let service = scene.start(scene.consumer("one")).await?;
    until_held(&scene, 6).await?;
    scene.script.set("b", 1, Treat::Succeed);
    scene.store.redrive(&one()?, &Redrive::Key("b".into()), None).await?;
    // New ones come while it drains: they stand behind.
    for number in 4..10 {
        scene.publish(&[("b", number)]).await?;
    }
    scene.until_effects("one", 9).await?;
    same("b", scene.effects_of("one", "b").await?, (1..10).collect::<Vec<_>>())?;
    until_held(&scene, 3).await?;
    stop(service).await
}

pub(super) async fn everything_is_sent_again<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    two_parked_keys(&scene).await?;
    let service = scene.start(scene.consumer("one")).await?;
    until_held(&scene, 6).await?;
    scene.script.set("a", 1, Treat::Succeed);
    scene.script.set("b", 1, Treat::Succeed);
    same(
        "sent again",
        scene.store.redrive(&one()?, &Redrive::All, None).await?,
        2,
    )?;
    scene.until_effects("one", 6).await?;
    same("a", scene.effects_of("one", "a").await?, [1, 2, 3])?;
    same("b", scene.effects_of("one", "b").await?, [1, 2, 3])?;
    until_held(&scene, 0).await?;
    stop(service).await
}

pub(super) async fn a_deleted_letter_lets_its_key_flow<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    two_parked_keys(&scene).await?;
    let service = scene.start(scene.consumer("one")).await?;
    until_held(&scene, 6).await?;
    let id = scene.letters("one").await?[0].message.envelope.id.clone();
    same("deleted", scene.store.delete_letters(&one()?, &[&id], None).await?, 1)?;
    scene.until_effects("one", 2).await?;
    same("a", scene.effects_of("one", "a").await?, [2, 3])?;
    scene.publish(&[("a", 4)]).await?;
    scene.until_effects("one", 3).await?;
    same("a", scene.effects_of("one", "a").await?, [2, 3, 4])?;
    stop(service).await
}

pub(super) async fn a_paused_consumer_waits<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.store.register(&one()?, Start::Earliest, None).await?;
    same("paused", scene.store.pause(&one()?, true).await?, true)?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.publish(&[("a", 1)]).await?;
    scene
        .until("the instance to know", async || {
            Ok(service.health().await.consumers[0].paused.then_some(()))
        })
        .await?;
    same("effects", scene.effects("one").await?.len(), 0)?;
    same("resumed", scene.store.pause(&one()?, false).await?, true)?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn a_paused_consumer_tries_nothing_again<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.script.set("a", 1, Treat::FailAlways);
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one").attempts(1000)).await?;
    until_held(&scene, 1).await?;
    scene.store.pause(&one()?, true).await?;
    scene
        .until("the instance to know", async || {
            Ok(service.health().await.consumers[0].paused.then_some(()))
        })
        .await?;
    // What was running when it became known has an answer by the time that the message is long due.
    let long_due = async || {
        let due = scene.letters("one").await?[0].due_at;
        let long_ago = eventloom_core::OffsetDateTime::now_utc() - Duration::from_millis(500);
        Ok(due.is_some_and(|due| due < long_ago).then_some(()))
    };
    scene.until("it to be long due", long_due).await?;
    let runs = scene.script.runs("a", 1);
    let begun = Instant::now();
    scene
        .until("many of its times to pass", async || {
            Ok((begun.elapsed() > Duration::from_secs(1)).then_some(()))
        })
        .await?;
    same("runs", scene.script.runs("a", 1), runs)?;
    scene.script.set("a", 1, Treat::Succeed);
    scene.store.pause(&one()?, false).await?;
    scene.until_effects("one", 1).await?;
    stop(service).await
}

pub(super) async fn a_reset_consumer_reads_again<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("a", 2), ("a", 3)]).await?;
    let service = scene.start(scene.consumer("one").start_at(Start::Latest)).await?;
    scene.publish(&[("a", 4)]).await?;
    scene.until_effects("one", 1).await?;
    scene.store.reset(&one()?, Start::Earliest, false, None).await?;
    scene.until_effects("one", 4).await?;
    same("effects", scene.effects_of("one", "a").await?, [4, 1, 2, 3])?;
    stop(service).await
}

pub(super) async fn a_reset_that_forgets_repeats<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("a", 2)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    scene.store.reset(&one()?, Start::Earliest, true, None).await?;
    scene.until_effects("one", 4).await?;
    same("effects", scene.effects_of("one", "a").await?, [1, 2, 1, 2])?;
    stop(service).await
}

pub(super) async fn a_dropped_consumer_stops<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 1).await?;
    same("dropped", scene.store.drop_reader(&one()?).await?, true)?;
    scene.publish(&[("a", 2)]).await?;
    scene
        .until("the instance to notice", async || {
            let health = service.health().await;
            Ok((health.consumers[0].lanes == 0 && health.consumers[0].trouble.is_some()).then_some(()))
        })
        .await?;
    let health = service.health().await;
    same("ready", health.ready, false)?;
    holds(
        "it says why",
        health.not_ready()[0].contains("dropped"),
        health.not_ready(),
    )?;
    same("effects", scene.effects_of("one", "a").await?, [1])?;
    stop(service).await
}

pub(super) async fn a_new_group_begins_where_it_says<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1)]).await?;
    let between: Position = scene.store.horizon().await?.position;
    scene.publish(&[("a", 2)]).await?;
    let after = scene
        .start(scene.consumer("after").start_at(Start::After(between)))
        .await?;
    let latest = scene.start(scene.consumer("latest").start_at(Start::Latest)).await?;
    scene.publish(&[("a", 3)]).await?;
    scene.until_effects("after", 2).await?;
    scene.until_effects("latest", 1).await?;
    same("after", scene.effects_of("after", "a").await?, [2, 3])?;
    same("latest", scene.effects_of("latest", "a").await?, [3])?;
    stop(after).await?;
    stop(latest).await
}

pub(super) async fn health_tells_how_it_is<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    let service = scene.start(scene.consumer("one")).await?;
    scene.until_effects("one", 2).await?;
    let health = scene
        .until("readiness", async || {
            let health = service.health().await;
            Ok((health.ready && health.consumers[0].handled == 2).then_some(health))
        })
        .await?;
    same("lanes", health.consumers[0].lanes, 64)?;
    same("instances", health.consumers[0].instances, 1)?;
    holds(
        "no trouble",
        health.consumers[0].trouble.is_none(),
        &health.consumers[0].trouble,
    )?;
    stop(service).await
}
