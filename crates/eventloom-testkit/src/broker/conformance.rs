//! The conformance suite of the broker port: what a relay relies on, and each capability that a broker claims.
//!
//! A broker implements [`BrokerFixture`] and runs [`conformance`] on it. A capability that is claimed has its case run, and
//! the case fails where the fixture cannot provoke what it needs: a claim without proof is a defect.

use crate::store::{Failed, Outcome, Report, holds, same};
use eventloom_core::{
    ConsumerName, Envelope, Epoch, LaneCount, OffsetDateTime, Payload, Position, Recorded, Uuid,
    ports::{Broker, Fate, Ordering, Outgoing, Producer, Source},
};
use std::{future::Future, sync::Arc, time::Duration};

/// How long a ticket may take.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(30);

/// Brokers for cases. Its methods panic when they cannot do what they say: the case has failed then.
pub trait BrokerFixture: Send + Sync {
    /// The broker under test.
    type Broker: Broker;

    /// A broker in which nothing has arrived.
    fn fresh(&self) -> impl Future<Output = Self::Broker> + Send;

    /// Everything that has arrived, in the order of its arrival. Second arrivals may be in it or not.
    fn arrived(&self, broker: &Self::Broker) -> impl Future<Output = Vec<Envelope>> + Send;

    /// Makes it refuse messages of this event type for their own sake from now on. `false`: it cannot be made to.
    fn refuse(&self, broker: &Self::Broker, event_type: &str) -> impl Future<Output = bool> + Send;
}

/// Runs every case, each on a fresh broker.
pub async fn conformance<F: BrokerFixture>(fixture: &F) -> Report {
    let mut report = Report::default();
    macro_rules! run {
        ($($case:ident)+) => {
            $(match $case(fixture).await {
                Ok(()) => report.passed.push(stringify!($case)),
                Err(failed) => report.failed.push((stringify!($case), failed)),
            })+
        };
    }
    run! {
        what_is_sent_arrives_whole
        batches_in_flight_keep_the_order_of_keys
        a_resend_has_the_same_ids
        a_redrive_has_another_delivery_id
        what_is_too_large_is_told_beforehand
        an_empty_batch_has_no_fates
        pipelines_are_kept_as_claimed
        marks_are_kept_as_claimed
    }
    report
}

fn source() -> Result<Source, Failed> {
    Ok(Source {
        log: Uuid::new_v4(),
        reader: ConsumerName::parse("relay")?,
    })
}

fn message(position: i64, key: Option<&str>, event_type: &str) -> Outgoing {
    let id = Uuid::now_v7().to_string();
    let lane = LaneCount::default().lane_of(key.unwrap_or(&id));
    // In whole milliseconds: no protocol carries less.
    let time = OffsetDateTime::UNIX_EPOCH + Duration::from_millis(1_796_053_391_115);
    let mut envelope = Envelope::new(id, "orders", event_type, time);
    envelope.key = key.map(str::to_owned);
    envelope.payload = Some(Payload::Json(format!("{{\"n\": {position}}}")));
    Outgoing {
        message: Arc::new(Recorded {
            position: Position(position),
            lane,
            envelope,
            omitted: None,
        }),
        epoch: Epoch(1),
        redrives: 0,
        confirmed: None,
    }
}

async fn send<P: Producer>(producer: &mut P, batch: Vec<Outgoing>) -> Result<Vec<Fate>, Failed> {
    let count = batch.len();
    let ticket = producer.submit(batch).await?;
    let fates = tokio::time::timeout(CONFIRMED_WITHIN, ticket).await?;
    same("as many fates as messages", fates.len(), count)?;
    Ok(fates)
}

fn confirmed(fates: &[Fate]) -> Outcome {
    holds(
        "all are confirmed",
        fates.iter().all(|fate| *fate == Fate::Confirmed),
        fates,
    )
}

/// Logical ids of a key, each at its first arrival.
fn first_of(arrived: &[Envelope], key: &str) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for envelope in arrived.iter().filter(|envelope| envelope.key.as_deref() == Some(key)) {
        if !ids.contains(&envelope.id) {
            ids.push(envelope.id.clone());
        }
    }
    ids
}

fn ids(messages: &[Outgoing]) -> Vec<String> {
    messages
        .iter()
        .map(|outgoing| outgoing.message.envelope.id.clone())
        .collect()
}

async fn what_is_sent_arrives_whole<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    let mut producer = broker.producer(&source).await?;
    let mut full = message(7, Some("schlüssel 'x' \"y\""), "order.placed");
    let mut recorded = (*full.message).clone();
    recorded.envelope = Envelope {
        source: Some("https://shop.example/bücher?a=1&b=%20".to_owned()),
        subject: Some("Ω/№ 5".to_owned()),
        payload: Some(Payload::Binary(vec![0, 255, 128, 10, 13])),
        datacontenttype: Some("application/octet-stream".to_owned()),
        dataschema: Some("urn:schema:5".to_owned()),
        schemaversion: 3,
        correlationid: Some("correlation".to_owned()),
        causationid: Some("causation".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: Some("a=b".to_owned()),
        headers: [("name".to_owned(), "värde".to_owned())].into(),
        ..recorded.envelope
    };
    full.message = Arc::new(recorded);
    let plain = message(8, None, "order.placed");
    confirmed(&send(&mut producer, vec![full.clone(), plain.clone()]).await?)?;
    let arrived = fixture.arrived(&broker).await;
    for sent in [full, plain] {
        let mut wanted = sent.message.envelope.clone();
        wanted.origin = Some(source.log);
        let found = arrived.iter().find(|envelope| envelope.id == wanted.id);
        same("what arrived", found, Some(&wanted))?;
    }
    Ok(())
}

async fn batches_in_flight_keep_the_order_of_keys<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    if broker.capabilities().ordering == Ordering::None {
        return Ok(());
    }
    let mut producer = broker.producer(&source).await?;
    let (mut tickets, mut sent) = (Vec::new(), Vec::new());
    // One message of a key in each batch is in flight, and the next batch is handed over when it is confirmed; with
    // pipelines, several are.
    let pipelines = broker.capabilities().pipelines;
    for batch in 0..5 {
        let of_key = |n: i64| message(batch * 10 + n, Some("a"), "order.placed");
        let mut messages: Vec<Outgoing> = (1..=if pipelines { 4 } else { 1 }).map(of_key).collect();
        sent.extend(ids(&messages));
        messages.push(message(batch * 10 + 9, Some(&format!("other-{batch}")), "order.placed"));
        tickets.push(producer.submit(messages).await?);
        if !pipelines {
            for ticket in tickets.drain(..) {
                confirmed(&tokio::time::timeout(CONFIRMED_WITHIN, ticket).await?)?;
            }
        }
    }
    // A database takes batches in the order in which they are awaited.
    for ticket in tickets {
        confirmed(&tokio::time::timeout(CONFIRMED_WITHIN, ticket).await?)?;
    }
    same("order of the key", first_of(&fixture.arrived(&broker).await, "a"), sent)
}

async fn a_resend_has_the_same_ids<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    let messages = vec![
        message(1, Some("a"), "order.placed"),
        message(2, Some("b"), "order.placed"),
    ];
    for _ in 0..2 {
        // By another instance, as after a crash.
        let mut producer = broker.producer(&source).await?;
        confirmed(&send(&mut producer, messages.clone()).await?)?;
    }
    let arrived = fixture.arrived(&broker).await;
    let known = ids(&messages);
    holds(
        "no message but these",
        arrived.iter().all(|envelope| known.contains(&envelope.id)),
        &arrived,
    )?;
    same("the first", first_of(&arrived, "a").len(), 1)?;
    same("the second", first_of(&arrived, "b").len(), 1)
}

/// And so it arrives: a broker that dedups must not swallow what an operator asks for.
async fn a_redrive_has_another_delivery_id<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    let first = message(1, Some("a"), "order.placed");
    let redriven = Outgoing {
        redrives: 1,
        ..first.clone()
    };
    holds(
        "a redrive",
        redriven.delivery_id(&source) != first.delivery_id(&source) && redriven.delivery_id(&source).len() <= 68,
        redriven.delivery_id(&source),
    )?;
    let id = first.message.envelope.id.clone();
    let mut producer = broker.producer(&source).await?;
    confirmed(&send(&mut producer, vec![first]).await?)?;
    confirmed(&send(&mut producer, vec![redriven]).await?)?;
    let arrived = fixture.arrived(&broker).await;
    same(
        "arrivals",
        arrived.iter().filter(|envelope| envelope.id == id).count(),
        2,
    )
}

async fn what_is_too_large_is_told_beforehand<F: BrokerFixture>(fixture: &F) -> Outcome {
    let broker = fixture.fresh().await;
    let most = broker.capabilities().payload_bytes_max;
    let mut envelope = message(1, None, "order.placed").message.envelope.clone();
    envelope.payload = Some(Payload::Binary(vec![0; usize::try_from(most)? + 1]));
    let refused = broker.check(&envelope).err().unwrap_or_default();
    let told = [most, most + 1]
        .iter()
        .all(|number| refused.contains(&number.to_string()));
    holds("value and limit are told", told, &refused)?;
    envelope.payload = Some(Payload::Binary(vec![0; 1000]));
    same("a small one", broker.check(&envelope), Ok(()))
}

async fn an_empty_batch_has_no_fates<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    let mut producer = broker.producer(&source).await?;
    same("fates", send(&mut producer, Vec::new()).await?, Vec::new())
}

async fn pipelines_are_kept_as_claimed<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    if !broker.capabilities().pipelines {
        return Ok(());
    }
    holds(
        "a claim has its proof",
        fixture.refuse(&broker, "poison").await,
        "it cannot be made to refuse",
    )?;
    let mut producer = broker.producer(&source).await?;
    let batch = vec![
        message(1, Some("a"), "order.placed"),
        message(2, Some("a"), "poison"),
        message(3, Some("b"), "order.placed"),
        message(4, Some("a"), "order.placed"),
        message(5, None, "order.placed"),
    ];
    let fates = send(&mut producer, batch.clone()).await?;
    holds("the poison is refused", matches!(fates[1], Fate::Refused(_)), &fates)?;
    same("what stands behind it", &fates[3], &Fate::Behind)?;
    holds(
        "nobody else suffers",
        [0, 2, 4].iter().all(|at| fates[*at] == Fate::Confirmed),
        &fates,
    )?;
    let arrived = fixture.arrived(&broker).await;
    same("of the key", first_of(&arrived, "a"), ids(&batch[..1]))?;
    same(
        "of the others",
        arrived
            .iter()
            .filter(|envelope| envelope.key.as_deref() != Some("a"))
            .count(),
        2,
    )
}

async fn marks_are_kept_as_claimed<F: BrokerFixture>(fixture: &F) -> Outcome {
    let (broker, source) = (fixture.fresh().await, source()?);
    let mut producer = broker.producer(&source).await?;
    let marks = producer.marks().await?;
    same("marks", marks.is_some(), broker.capabilities().marks)?;
    let Some(marks) = marks else { return Ok(()) };
    same("at first", marks.lanes.len(), 0)?;
    let under = |position, epoch| Outgoing {
        epoch: Epoch(epoch),
        ..message(position, Some("a"), "order.placed")
    };
    let (first, second) = (under(5, 3), under(9, 3));
    confirmed(&send(&mut producer, vec![first.clone(), second.clone()]).await?)?;
    let mut later = broker.producer(&source).await?;
    let known = later.marks().await?.ok_or_else(|| Failed::new("the marks are gone"))?;
    same("its identity", known.broker, marks.broker)?;
    same("lanes", known.lanes.len(), 1)?;
    let mark = &known.lanes[0];
    let wanted = (
        second.message.lane,
        Epoch(3),
        Position(9),
        second.message.envelope.id.clone(),
    );
    same(
        "the mark",
        (mark.lane, mark.epoch, mark.position, mark.id.clone()),
        wanted,
    )?;
    same(
        "a former owner",
        send(&mut later, vec![under(10, 2)]).await?,
        vec![Fate::Fenced],
    )?;
    let lost = Outgoing {
        confirmed: Some(Position(11)),
        ..under(12, 3)
    };
    same(
        "more was confirmed than it has",
        send(&mut later, vec![lost]).await?,
        vec![Fate::Lost],
    )?;
    // An old message that was held, sent again by the owner: it arrives, and the mark stays.
    confirmed(&send(&mut later, vec![under(6, 3)]).await?)?;
    let marks = later.marks().await?.ok_or_else(|| Failed::new("the marks are gone"))?;
    same("the mark after an old message", marks.lanes[0].position, Position(9))?;
    let elsewhere = Source {
        log: Uuid::new_v4(),
        ..source
    };
    let marks = broker.producer(&elsewhere).await?.marks().await?;
    same("of another source", marks.map(|marks| marks.lanes.len()), Some(0))
}
