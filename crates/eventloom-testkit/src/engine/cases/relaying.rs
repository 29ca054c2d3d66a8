//! From a log to a broker, in order, whatever goes wrong on the way.

use super::relay::{NAME, OTHERS, of_key, ordered, relay, row, start, steps, times, until_arrived, until_waiting};
use crate::{
    broker::{Memory, Then},
    engine::scene::{STEPS, Scene, stop},
    store::{Failed, Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, Payload, Uuid,
    ports::{DeadLetters, HeldState, Log, Redrive, Store as _},
};
use eventloom_runtime::Service;
use std::time::Duration;

/// Publishes, each time when the one before has arrived, until a condition holds.
async fn traffic_until<F: Fixture>(
    scene: &Scene<'_, F>,
    broker: &Memory,
    done: impl AsyncFn() -> Result<bool, Failed>,
) -> Outcome {
    let mut number = 0;
    while !done().await? {
        number += 1;
        let before = broker.arrived().len();
        scene.publish(&[("beside", number)]).await?;
        until_arrived(scene, broker, before + 1).await?;
    }
    Ok(())
}

/// A broker that never answers for the message in the log, which is of key `p`, and a relay to it.
async fn with_poison<F: Fixture>(scene: &Scene<'_, F>) -> Result<(Memory, Service<F::Store>), Failed> {
    let broker = Memory::new();
    let poison = row(STEPS, "p", 1)?;
    broker.on(poison.id(), Then::Vanish(u32::MAX));
    scene.publish_rows(&[poison]).await?;
    let service = start(scene, relay(broker.clone())).await?;
    Ok((broker, service))
}

pub(super) async fn everything_arrives_in_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let early: Vec<(&str, i64)> = (1..=10)
        .flat_map(|n| keys.iter().map(move |key| (key.as_str(), n)))
        .collect();
    scene.publish(&early).await?;
    let broker = Memory::new();
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, 200 * times).await?;
    let late: Vec<(&str, i64)> = (11..=20)
        .flat_map(|n| keys.iter().map(move |key| (key.as_str(), n)))
        .collect();
    for part in late.chunks(7) {
        scene.publish(part).await?;
    }
    until_arrived(&scene, &broker, 400 * times).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    let arrived = broker.arrived();
    same("messages", arrived.len(), 400 * times)?;
    if times == 1 {
        ordered(&steps(&arrived)?)?;
    }
    let identity = scene.store.log_status().await?.identity;
    holds(
        "each has its origin",
        arrived.iter().all(|arrived| arrived.envelope.origin == Some(identity)),
        arrived.first(),
    )?;
    same("swallowed", broker.swallowed(), 0)
}

pub(super) async fn one_of_a_key_at_a_time_where_the_broker_keeps_no_order<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new().without_pipelines();
    let rows = [
        row(STEPS, "a", 1)?,
        row(STEPS, "a", 2)?,
        row(STEPS, "b", 1)?,
        row(STEPS, "a", 3)?,
    ];
    // Vanishes twice: what follows it must not arrive before it.
    broker.on(rows[0].id(), Then::Vanish(2));
    scene.publish_rows(&rows).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, 4 * times).await?;
    stop(service).await?;
    let mut numbers = of_key(&broker, "a")?;
    numbers.dedup();
    same(
        "order of the key",
        numbers,
        if times == 1 {
            vec![1, 2, 3]
        } else {
            vec![1, 2, 3, 1, 2, 3]
        },
    )
}

pub(super) async fn what_may_have_arrived_is_sent_again_under_its_id<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    let rows = [row(STEPS, "a", 1)?, row(STEPS, "a", 2)?, row(STEPS, "b", 1)?];
    broker.on(rows[0].id(), Then::ArriveUntold(1));
    broker.on(rows[2].id(), Then::Vanish(1));
    scene.publish_rows(&rows).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, 3 * times).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    holds(
        "something was sent again under its delivery id",
        broker.swallowed() >= 1,
        broker.swallowed(),
    )?;
    same("messages", broker.arrived().len(), 3 * times)?;
    same("held", scene.letters(NAME).await?.len(), 0)
}

pub(super) async fn a_refused_message_is_dead_and_its_key_waits<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    let rows = [
        row(STEPS, "a", 1)?,
        row(STEPS, "a", 2)?,
        row(STEPS, "b", 1)?,
        row(STEPS, "a", 3)?,
    ];
    broker.on(rows[1].id(), Then::Refuse);
    scene.publish_rows(&rows).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    // Of what is published twice, the second copy of the key queues.
    until_arrived(&scene, &broker, times + 1).await?;
    until_waiting(&scene, 2).await?;
    scene.publish_rows(&[row(STEPS, "a", 4)?]).await?;
    until_waiting(&scene, 3).await?;
    let letters = scene.letters(NAME).await?;
    let dead: Vec<_> = letters
        .iter()
        .filter(|letter| letter.state == HeldState::Dead)
        .collect();
    same("dead ones", dead.len(), 1)?;
    same("its error", dead[0].error.as_deref(), Some("malformed"))?;
    let came = of_key(&broker, "a")?;
    holds("no successor overtakes it", !came.contains(&3), &came)?;
    // Mended and sent again: its key goes on, in order, and the broker sees another delivery id.
    broker.mend(rows[1].id());
    let reader = ConsumerName::parse(NAME)?;
    scene
        .store
        .redrive(&reader, &Redrive::One(rows[1].id().to_string()), None)
        .await?;
    scene
        .until("the key to go on", async || {
            Ok(of_key(&broker, "a")?.contains(&4).then_some(()))
        })
        .await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    let mut numbers = of_key(&broker, "a")?;
    numbers.dedup();
    if times == 1 {
        same("order of the key", numbers, vec![1, 2, 3, 4])?;
    }
    let again: Vec<_> = broker.arrived();
    let again = again
        .iter()
        .find(|arrived| arrived.envelope.id == rows[1].id().to_string());
    holds(
        "another delivery id after a redrive",
        again.is_some_and(|arrived| arrived.delivery_id.ends_with(".1")),
        again.map(|arrived| &arrived.delivery_id),
    )
}

pub(super) async fn a_blocked_topic_waits_alone<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    broker.block(OTHERS.as_str(), true);
    scene
        .publish_rows(&[row(OTHERS, "x", 1)?, row(STEPS, "b", 1)?, row(OTHERS, "x", 2)?])
        .await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, times).await?;
    until_waiting(&scene, 2).await?;
    let letters = scene.letters(NAME).await?;
    holds(
        "no attempt is used up",
        letters.iter().all(|letter| letter.state == HeldState::Waiting),
        &letters,
    )?;
    scene.publish(&[("b", 2)]).await?;
    until_arrived(&scene, &broker, 2 * times).await?;
    broker.block(OTHERS.as_str(), false);
    scene
        .until("the topic to go on", async || {
            Ok(of_key(&broker, "x")?.contains(&2).then_some(()))
        })
        .await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    same("held", scene.letters(NAME).await?.len(), 0)?;
    let mut numbers = of_key(&broker, "x")?;
    numbers.dedup();
    holds("order of the key", numbers.starts_with(&[1, 2]), &numbers)
}

pub(super) async fn a_broker_that_is_down_is_waited_for<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    broker.down(true);
    scene.publish(&[("a", 1), ("b", 1)]).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    scene
        .until("the trouble to be told", async || {
            let health = service.health().await;
            Ok(health.consumers[0].outage.then_some(()))
        })
        .await?;
    same("held", scene.letters(NAME).await?.len(), 0)?;
    broker.down(false);
    until_arrived(&scene, &broker, 2 * times).await?;
    // Gone in the middle, and back.
    broker.down(true);
    scene.publish(&[("a", 2), ("c", 1)]).await?;
    scene
        .until("the trouble", async || {
            Ok(service.health().await.consumers[0].outage.then_some(()))
        })
        .await?;
    broker.down(false);
    until_arrived(&scene, &broker, 4 * times).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    same("messages", broker.arrived().len(), 4 * times)?;
    same("held", scene.letters(NAME).await?.len(), 0)?;
    ordered(&steps(&broker.arrived())?).or_else(|error| if times == 1 { Err(error) } else { Ok(()) })
}

/// Also where something behind it is refused without asking: that is no answer of the broker.
pub(super) async fn an_outage_burns_no_attempt_of_what_is_held<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let broker = Memory::new();
    broker.block(STEPS.as_str(), true);
    let service = start(&scene, relay(broker.clone())).await?;
    scene.publish(&[("a", 1)]).await?;
    until_waiting(&scene, 1).await?;
    let large = row(STEPS, "a", 2)?.with_payload(Payload::Binary(vec![0; 100 << 10]));
    scene.publish_rows(&[large]).await?;
    until_waiting(&scene, 2).await?;
    broker.down(true);
    broker.block(STEPS.as_str(), false);
    scene
        .until("more looks than there are attempts", async || {
            Ok((broker.turned_away() > 6).then_some(()))
        })
        .await?;
    let letters = scene.letters(NAME).await?;
    let dead = letters.iter().filter(|letter| letter.state == HeldState::Dead).count();
    same("dead", dead, 0)?;
    broker.down(false);
    until_arrived(&scene, &broker, 1).await?;
    stop(service).await
}

pub(super) async fn what_only_the_broker_chokes_on_is_set_aside<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let (broker, service) = with_poison(&scene).await?;
    let beside = async {
        let mut number = 0;
        loop {
            number += 1;
            let keys: Vec<String> = (0..8).map(|key| format!("k{key}")).collect();
            let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), number)).collect();
            if let Err(error) = scene.publish(&steps).await {
                return error;
            }
            // pacing: traffic beside
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let dead = scene.until("the poison to be dead", async || {
        let letters = scene.letters(NAME).await?;
        Ok(letters
            .iter()
            .any(|letter| letter.state == HeldState::Dead)
            .then_some(letters))
    });
    let letters = tokio::select! {
        letters = dead => letters?,
        error = beside => return Err(error),
    };
    stop(service).await?;
    let keys: Vec<_> = letters
        .iter()
        .filter_map(|letter| letter.message.envelope.key.as_deref())
        .collect();
    holds("nobody else is held", keys.iter().all(|key| *key == "p"), &keys)?;
    ordered(&steps(&broker.arrived())?).or_else(|error| if times(&scene) == 1 { Err(error) } else { Ok(()) })
}

pub(super) async fn two_relays_share_and_a_dead_one_is_succeeded<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    broker.confirms_after(Duration::from_millis(5));
    let first = start(&scene, relay(broker.clone())).await?;
    let second = start(&scene, relay(broker.clone())).await?;
    scene
        .until("both to own lanes", async || {
            let (a, b) = (first.health().await, second.health().await);
            Ok((a.consumers[0].lanes > 0 && b.consumers[0].lanes > 0).then_some(()))
        })
        .await?;
    let keys: Vec<String> = (0..30).map(|key| format!("k{key}")).collect();
    for number in 1..=10 {
        let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), number)).collect();
        scene.publish(&steps).await?;
        if number == 5 {
            until_arrived(&scene, &broker, 1).await?;
        }
    }
    // Dropped with what it has in flight, as a process that is killed.
    drop(first);
    until_arrived(&scene, &broker, 300 * times).await?;
    scene.until_settled(NAME).await?;
    stop(second).await?;
    same("messages", broker.arrived().len(), 300 * times)?;
    if times == 1 {
        ordered(&steps(&broker.arrived())?)?;
    }
    holds(
        "no more than what was in flight is sent twice",
        broker.swallowed() <= 200,
        broker.swallowed(),
    )
}

pub(super) async fn only_its_topics_are_relayed<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    scene
        .publish_rows(&[row(STEPS, "a", 1)?, row(OTHERS, "a", 2)?, row(STEPS, "a", 3)?])
        .await?;
    let service = start(&scene, relay(broker.clone()).topic(STEPS)).await?;
    until_arrived(&scene, &broker, 2 * times).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    let mut numbers = of_key(&broker, "a")?;
    numbers.truncate(2);
    same("of its topic", numbers, vec![1, 3])
}

pub(super) async fn what_is_too_large_is_held_and_not_sent<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let broker = Memory::new();
    let text = format!("\"{}\"", "x".repeat(200_000));
    let id = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001);
    let insert = "INSERT INTO {outbox} (id, topic, type, key, data) VALUES ";
    fixture
        .execute(
            &scene.store,
            &format!("{insert} ('{id}', 'steps', 'step.taken', 'big', '{text}')"),
        )
        .await;
    let bytes = "INSERT INTO {outbox} (topic, type, data_bytes) VALUES ('steps', 'blob', ";
    let zeroes = if F::Store::NAME == "sqlite" {
        "zeroblob(100000)"
    } else {
        "decode(repeat('00', 100000), 'hex')"
    };
    fixture.execute(&scene.store, &format!("{bytes} {zeroes})")).await;
    scene.publish(&[("big", 2), ("b", 1)]).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, 1).await?;
    until_waiting(&scene, 3).await?;
    stop(service).await?;
    let letters = scene.letters(NAME).await?;
    let big = letters
        .iter()
        .find(|letter| letter.message.envelope.id == id.to_string());
    let big = big.ok_or_else(|| Failed::new("it is not held"))?;
    same("its state", big.state, HeldState::Dead)?;
    let error = big.error.clone().unwrap_or_default();
    holds(
        "value and limit",
        error.contains("200002") && error.contains("65536"),
        &error,
    )?;
    let whole = scene.store.letter(&ConsumerName::parse(NAME)?, &id.to_string()).await?;
    let payload = whole.and_then(|letter| letter.message.envelope.payload);
    holds(
        "its payload is what it was",
        payload == Some(Payload::Json(text)),
        payload.map(|payload| payload.bytes().len()),
    )?;
    same("successors that overtook it", of_key(&broker, "big")?.len(), 0)
}

pub(super) async fn a_duplicate_of_what_is_held_counts_for_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let broker = Memory::new();
    let refused = row(STEPS, "", 1)?;
    broker.on(refused.id(), Then::Refuse);
    scene.publish_rows(std::slice::from_ref(&refused)).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_waiting(&scene, 1).await?;
    scene.publish_rows(&[refused]).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    same("held", scene.letters(NAME).await?.len(), 1)?;
    // The broker never had it: it would be taken for one that has forgotten.
    let service = start(&scene, relay(broker.clone())).await?;
    scene.publish(&[("b", 1)]).await?;
    until_arrived(&scene, &broker, times(&scene)).await?;
    same("alarm", service.health().await.consumers[0].alarm.clone(), None)?;
    stop(service).await
}

pub(super) async fn who_waits_behind_others_is_not_blamed<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let broker = Memory::new().without_pipelines();
    let poison = row(STEPS, "p", 1)?;
    broker.on(poison.id(), Then::Vanish(u32::MAX));
    // In one batch with it: a key whose messages are handed over one at a time, and take many rounds.
    let mut rows = vec![poison];
    for number in 1..=30 {
        rows.push(row(STEPS, "k", number)?);
    }
    scene.publish_rows(&rows).await?;
    let service = start(&scene, relay(broker.clone()).in_flight(1)).await?;
    until_arrived(&scene, &broker, 30 * times(&scene)).await?;
    // Traffic beside, so that the broker is known to be up.
    traffic_until(&scene, &broker, async || Ok(!scene.letters(NAME).await?.is_empty())).await?;
    let held = service.health().await.consumers[0].held;
    stop(service).await?;
    holds(
        "nobody else was held, however briefly",
        held <= times(&scene) as u64,
        held,
    )
}

pub(super) async fn a_message_to_blame_makes_no_outage<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let (broker, service) = with_poison(&scene).await?;
    // Until it is known to be to blame, and the broker known to be up.
    traffic_until(&scene, &broker, async || {
        let held = !scene.letters(NAME).await?.is_empty();
        Ok(held && !service.health().await.consumers[0].outage)
    })
    .await?;
    let outage = scene
        .until("the poison to be dead, or an outage", async || {
            let outage = service.health().await.consumers[0].outage;
            let letters = scene.letters(NAME).await?;
            let dead = letters.iter().any(|letter| letter.state == HeldState::Dead);
            Ok((dead || outage).then_some(outage))
        })
        .await?;
    stop(service).await?;
    same("outage", outage, false)
}
