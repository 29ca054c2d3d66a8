//! A relay with short times, and what arrives of steps.

use crate::{
    broker::{Arrived, Memory},
    engine::scene::{Scene, Step},
    store::{Failed, Fixture, Outcome, holds},
};
use eventloom_core::{
    NewEvent, Payload, Topic,
    ports::{Broker, Readers},
};
use eventloom_runtime::{Backoff, Eventloom, Relay, Service};
use std::{collections::HashMap, time::Duration};

pub(super) const OTHERS: Topic = Topic::new("others");
pub(super) const NAME: &str = "relay";

pub(super) fn relay(broker: impl Broker) -> Relay {
    let backoff = Backoff::default()
        .first(Duration::from_millis(20))
        .most(Duration::from_millis(100));
    let relay = Relay::new(NAME, broker).backoff(backoff).attempts(4);
    relay.lease(Duration::from_secs(3)).batch_max(50)
}

pub(super) async fn start<F: Fixture>(scene: &Scene<'_, F>, relay: Relay) -> Result<Service<F::Store>, Failed> {
    let store = scene.fixture.again(&scene.store).await;
    Ok(Eventloom::new(store).keep_log(None).relay(relay).start().await?)
}

/// Steps that have arrived, in order: `(key, number)`.
pub(super) fn steps(arrived: &[Arrived]) -> Result<Vec<(String, i64)>, Failed> {
    let step = |arrived: &Arrived| {
        let bytes = arrived.envelope.payload.as_ref().map_or(&b"null"[..], Payload::bytes);
        let step: Step = serde_json::from_slice(bytes)?;
        Ok((step.key, step.number))
    };
    arrived.iter().map(step).collect()
}

/// Numbers of one key that have arrived, in order.
pub(super) fn of_key(broker: &Memory, key: &str) -> Result<Vec<i64>, Failed> {
    let steps = steps(&broker.arrived())?;
    Ok(steps
        .into_iter()
        .filter(|(of, _)| of == key)
        .map(|(_, number)| number)
        .collect())
}

/// Waits until this many different messages have arrived.
pub(super) async fn until_arrived<F: Fixture>(scene: &Scene<'_, F>, broker: &Memory, count: usize) -> Outcome {
    scene
        .until(&format!("{count} messages to arrive"), async || {
            Ok((broker.arrived().len() >= count).then_some(()))
        })
        .await
}

pub(super) async fn until_waiting<F: Fixture>(scene: &Scene<'_, F>, count: u64) -> Outcome {
    scene
        .until(&format!("{count} messages to wait"), async || {
            let readers = scene.store.readers(None).await?;
            Ok(readers
                .iter()
                .any(|status| status.waiting + status.dead >= count)
                .then_some(()))
        })
        .await
}

/// How often each message stands in the log: fixtures may publish everything twice.
pub(super) fn times<F: Fixture>(scene: &Scene<'_, F>) -> usize {
    if scene.fixture.doubles() { 2 } else { 1 }
}

pub(super) fn row(topic: Topic, key: &str, number: i64) -> Result<NewEvent, Failed> {
    let step = Step {
        key: key.to_owned(),
        number,
    };
    Ok(NewEvent::of(topic, &step)?)
}

pub(super) fn ordered(steps: &[(String, i64)]) -> Outcome {
    let mut last = HashMap::new();
    for (key, number) in steps {
        let before = last.insert(key.clone(), *number);
        holds(
            &format!("{key} in order"),
            before.is_none_or(|before| before <= *number),
            (before, number),
        )?;
    }
    Ok(())
}
