//! From one database to another, and what is done when either of them has gone back in time.

use super::relay::{NAME, OTHERS, of_key, relay, start, times, until_arrived};
use crate::{
    broker::Memory,
    engine::scene::{Scene, stop},
    store::{Failed, Fixture, Outcome, holds, same},
};
use eventloom_core::{
    ConsumerName, Epoch, NewEvent, Payload, Position, Recorded,
    ports::{Log, Outgoing, Page, ReadLimits, Readers, Relays, Source, Start, Untaken},
};
use eventloom_runtime::{Database, Service};

pub(super) async fn another_database_takes_it_in_once<F: Fixture>(fixture: &F) -> Outcome {
    let (there, here) = (Scene::new(fixture).await, Scene::new(fixture).await);
    let relayed = relay(Database::new(fixture.again(&there.store).await));
    let service = start(&here, relayed).await?;
    let consumer = there.start(there.consumer("c")).await?;
    let keys: Vec<String> = (0..10).map(|key| format!("k{key}")).collect();
    for number in 1..=10 {
        let steps: Vec<(&str, i64)> = keys.iter().map(|key| (key.as_str(), number)).collect();
        here.publish(&steps).await?;
    }
    there.until_effects("c", 100).await?;
    here.until_settled(NAME).await?;
    there.until_settled("c").await?;
    stop(service).await?;
    stop(consumer).await?;
    for key in &keys {
        same(key, there.effects_of("c", key).await?, (1..=10).collect::<Vec<i64>>())?;
    }
    // Whole, but for the place and the origin.
    let full = NewEvent::untyped(OTHERS, "full")
        .with_key("f")
        .with_source("src")
        .with_subject("sub");
    let full = full
        .with_payload(Payload::Binary(vec![0, 255]))
        .with_datacontenttype("x/y")
        .with_dataschema("urn:s");
    let full = full
        .with_schemaversion(3)
        .with_correlation(Some("c".into()), Some("d".into()));
    let full = full.with_trace(
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        Some("a=b".into()),
    );
    here.publish_rows(&[full.with_header("h", "v")]).await?;
    let service = start(&here, relay(Database::new(fixture.again(&there.store).await))).await?;
    here.until_settled(NAME).await?;
    stop(service).await?;
    let last = |page: Page| {
        page.rows
            .into_iter()
            .rev()
            .find(|row| row.envelope.event_type == "full")
    };
    let sent = last(here.store.read_after(Position::START, ReadLimits::default()).await?);
    let came = last(there.store.read_after(Position::START, ReadLimits::default()).await?);
    let (Some(sent), Some(came)) = (sent, came) else {
        return Err(Failed::new("it did not arrive"));
    };
    let mut expected = sent.envelope;
    expected.origin = Some(here.store.log_status().await?.identity);
    same("the message", came.envelope, expected)
}

pub(super) async fn databases_that_relay_to_each_other_do_not_loop<F: Fixture>(fixture: &F) -> Outcome {
    let (one, two) = (Scene::new(fixture).await, Scene::new(fixture).await);
    let times = times(&one);
    let to_two = start(&one, relay(Database::new(fixture.again(&two.store).await))).await?;
    let to_one = start(&two, relay(Database::new(fixture.again(&one.store).await))).await?;
    one.publish(&[("a", 1)]).await?;
    two.publish(&[("b", 1)]).await?;
    let rows = async |scene: &Scene<'_, F>| {
        let page = scene.store.read_after(Position::START, ReadLimits::default()).await?;
        Ok::<_, Failed>(page.rows.len())
    };
    for scene in [&one, &two] {
        scene
            .until("both to arrive", async || {
                Ok((rows(scene).await? >= 2 * times).then_some(()))
            })
            .await?;
        scene.until_settled(NAME).await?;
    }
    // Another round trip later there are no more.
    one.publish(&[("a", 2)]).await?;
    two.until("it to arrive", async || {
        Ok((rows(&two).await? >= 3 * times).then_some(()))
    })
    .await?;
    two.until_settled(NAME).await?;
    stop(to_two).await?;
    stop(to_one).await?;
    same("rows of the first", rows(&one).await?, 3 * times)?;
    same("rows of the second", rows(&two).await?, 3 * times)
}

pub(super) async fn a_database_is_not_its_own_broker<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    scene.publish(&[("a", 1)]).await?;
    let service = start(&scene, relay(Database::new(fixture.again(&scene.store).await))).await?;
    let (name, why) = service.alarmed().await;
    same("who", name.as_str(), NAME)?;
    holds("what the alarm says", why.contains("without a relay"), &why)?;
    same("ready", service.health().await.ready, false)?;
    stop(service).await?;
    let page = scene.store.read_after(Position::START, ReadLimits::default()).await?;
    same("rows", page.rows.len(), times(&scene))
}

/// Three of a key have arrived at a broker, and its relay knows.
async fn with_three_arrived<F: Fixture>(scene: &Scene<'_, F>) -> Result<(Memory, Service<F::Store>), Failed> {
    let broker = Memory::new();
    let service = start(scene, relay(broker.clone())).await?;
    scene.publish(&[("a", 1), ("a", 2), ("a", 3)]).await?;
    until_arrived(scene, &broker, 3 * times(scene)).await?;
    scene.until_settled(NAME).await?;
    Ok((broker, service))
}

pub(super) async fn a_broker_that_was_restored_raises_an_alarm<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let (broker, service) = with_three_arrived(&scene).await?;
    stop(service).await?;
    let second = broker.arrived()[1].position;
    broker.restore_to(second);
    let service = start(&scene, relay(broker.clone())).await?;
    scene.publish(&[("a", 4)]).await?;
    let (_, why) = service.alarmed().await;
    holds(
        "what the alarm says",
        why.contains("has lost messages") && why.contains("consumer reset relay"),
        &why,
    )?;
    stop(service).await?;
    same("messages", broker.arrived().len(), 2)?;
    // What the alarm says helps.
    let reader = ConsumerName::parse(NAME)?;
    scene.store.reset(&reader, Start::After(second), false, None).await?;
    let service = start(&scene, relay(broker.clone())).await?;
    until_arrived(&scene, &broker, 4 * times).await?;
    stop(service).await?;
    let mut numbers = of_key(&broker, "a")?;
    numbers.dedup();
    holds("order of the key", times == 2 || numbers == [1, 2, 3, 4], &numbers)
}

/// It fails over to a standby that lags, say: nothing fails, and the producers that are open go on.
pub(super) async fn a_broker_that_goes_back_while_it_is_sent_to_raises_an_alarm<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let (broker, service) = with_three_arrived(&scene).await?;
    let first = broker.arrived()[0].position;
    broker.restore_to(first);
    scene.publish(&[("a", 4)]).await?;
    let (_, why) = service.alarmed().await;
    holds("what the alarm says", why.contains("has lost messages"), &why)?;
    stop(service).await?;
    same("messages", broker.arrived().len(), 1)
}

/// The same with a database, whose marks say it.
pub(super) async fn a_database_that_has_gone_back_takes_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let (there, here) = (Scene::new(fixture).await, Scene::new(fixture).await);
    here.publish(&[("a", 1), ("a", 2)]).await?;
    let source = Source {
        log: here.store.log_status().await?.identity,
        reader: ConsumerName::parse(NAME)?,
    };
    let page = here.store.read_after(Position::START, ReadLimits::default()).await?;
    let outgoing = |row: &Recorded, confirmed| Outgoing {
        message: row.clone().into(),
        epoch: Epoch(1),
        redrives: 0,
        confirmed,
    };
    let (first, second) = (&page.rows[0], &page.rows[1]);
    let lost = there
        .store
        .take_in(&source, &[outgoing(second, Some(first.position))])
        .await?;
    same(
        "without a mark",
        lost.into_iter().collect::<Vec<_>>(),
        vec![(first.lane, Untaken::Lost)],
    )?;
    same("marks", there.store.relay_marks(&source).await?.len(), 0)?;
    same(
        "the first",
        there.store.take_in(&source, &[outgoing(first, None)]).await?.len(),
        0,
    )?;
    let lost = there
        .store
        .take_in(&source, &[outgoing(second, Some(second.position))])
        .await?;
    same(
        "below what was confirmed",
        lost.into_iter().collect::<Vec<_>>(),
        vec![(first.lane, Untaken::Lost)],
    )?;
    same(
        "the second",
        there
            .store
            .take_in(&source, &[outgoing(second, Some(first.position))])
            .await?
            .len(),
        0,
    )?;
    let page = there.store.read_after(Position::START, ReadLimits::default()).await?;
    same("rows", page.rows.len(), 2)
}

pub(super) async fn a_source_that_was_restored_raises_an_alarm<F: Fixture>(fixture: &F) -> Outcome {
    let scene = Scene::new(fixture).await;
    let times = times(&scene);
    let broker = Memory::new();
    let service = start(&scene, relay(broker.clone())).await?;
    scene.publish(&[("a", 1), ("b", 2)]).await?;
    until_arrived(&scene, &broker, 2 * times).await?;
    scene.until_settled(NAME).await?;
    stop(service).await?;
    // A backup from before the first event, which has gone on since: other events at the same positions.
    let restored = Scene::new(fixture).await;
    let identity = scene.store.log_status().await?.identity;
    let same_log = format!("UPDATE {{logs}} SET identity = '{identity}'");
    fixture.execute(&restored.store, &same_log).await;
    restored.publish(&[("c", 1)]).await?;
    let service = start(&restored, relay(broker.clone())).await?;
    let (_, why) = service.alarmed().await;
    holds(
        "what the alarm says",
        why.contains("has gone back") && why.contains("--promoted"),
        &why,
    )?;
    stop(service).await?;
    same("messages", broker.arrived().len(), 2 * times)?;
    // With a new identity it is another log, and the broker knows nothing of it.
    restored.store.renew_identity().await?;
    let service = start(&restored, relay(broker.clone())).await?;
    until_arrived(&restored, &broker, 3 * times).await?;
    stop(service).await
}

pub(super) async fn a_former_owner_is_refused_by_the_broker<F: Fixture>(fixture: &F) -> Outcome {
    let (there, here) = (Scene::new(fixture).await, Scene::new(fixture).await);
    here.publish(&[("a", 1)]).await?;
    let source = Source {
        log: here.store.log_status().await?.identity,
        reader: ConsumerName::parse(NAME)?,
    };
    let page = here.store.read_after(Position::START, ReadLimits::default()).await?;
    let outgoing = |epoch| Outgoing {
        message: page.rows[0].clone().into(),
        epoch: Epoch(epoch),
        redrives: 0,
        confirmed: None,
    };
    let lane = page.rows[0].lane;
    same(
        "the owner",
        there.store.take_in(&source, &[outgoing(5)]).await?.len(),
        0,
    )?;
    let fenced = there.store.take_in(&source, &[outgoing(4)]).await?;
    same(
        "a former owner",
        fenced.into_iter().collect::<Vec<_>>(),
        vec![(lane, Untaken::Fenced)],
    )?;
    same(
        "the owner again",
        there.store.take_in(&source, &[outgoing(5)]).await?.len(),
        0,
    )?;
    same(
        "its successor",
        there.store.take_in(&source, &[outgoing(6)]).await?.len(),
        0,
    )?;
    let page = there.store.read_after(Position::START, ReadLimits::default()).await?;
    same("rows", page.rows.len(), 3)?;
    let marks = there.store.relay_marks(&source).await?;
    same("marks", marks.len(), 1)?;
    same("epoch", marks[0].epoch.0, 6)
}
