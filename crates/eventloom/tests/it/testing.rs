//! The testkit as the author of a service uses it, on both stores: virtual time, runs until idle, assertions, faults.

use crate::folder::Folder;
use eventloom::{
    Backoff, Classify, Consumer, Context, EffectContext, EffectHandle, Event, NewEvent, Relay, Topic, ports::Backend,
};
use eventloom_testkit::{
    RunError, TestService,
    broker::Memory,
    faults::{BrokerFault, FaultyBroker, FaultyStore, StoreFault, StoreFaults, doubled, reordered},
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

const ORDERS: Topic = Topic::new("orders");
const INVOICES: Topic = Topic::new("invoices");
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Placed {
    order: String,
    number: u32,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.order))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Invoiced {
    order: String,
    number: u32,
}

impl Event for Invoiced {
    const TYPE: &'static str = "order.invoiced";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.order))
    }
}

fn placed(order: &str, number: u32) -> Placed {
    Placed {
        order: order.to_owned(),
        number,
    }
}

fn invoiced(order: &str, number: u32) -> Invoiced {
    Invoiced {
        order: order.to_owned(),
        number,
    }
}

fn row(order: &str, number: u32) -> NewEvent {
    NewEvent::of(ORDERS, &placed(order, number)).unwrap()
}

#[derive(Debug, thiserror::Error)]
#[error("order is not to be invoiced")]
struct NotInvoiced;
impl Classify for NotInvoiced {}

/// Invoices what it is given, but fails for some, and hangs for others.
#[derive(Clone, Default)]
struct Invoicing {
    runs: Arc<AtomicU32>,
    down: Arc<AtomicBool>,
}

impl<S: Backend> eventloom::Handle<S> for Invoicing {
    type Event = Placed;
    type Output = ();
    type Error = NotInvoiced;
    async fn handle(&self, placed: Placed, cx: &mut Context<'_, S>) -> Result<(), NotInvoiced> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        if placed.order == "hangs" {
            std::future::pending().await
        }
        if placed.order == "poison" || self.down.load(Ordering::Relaxed) {
            return Err(NotInvoiced);
        }
        let invoiced = invoiced(&placed.order, placed.number);
        cx.publish(INVOICES, &invoiced).await.map_err(|_| NotInvoiced)?;
        Ok(())
    }
}

fn consumer<S: Backend>(handler: &Invoicing) -> Consumer<S> {
    let backoff = Backoff::default().first(MINUTE).most(MINUTE * 10);
    Consumer::new("invoicing")
        .topic(ORDERS)
        .handle(handler.clone())
        .attempts(4)
        .backoff(backoff)
}

async fn runs_until_nothing_is_left<S: Backend>(store: S) {
    let handler = Invoicing::default();
    let mut service = TestService::start(store, |service| service.consumer(consumer(&handler)))
        .await
        .unwrap();
    let rows: Vec<NewEvent> = (0..100).map(|n| row(["a", "b", "c"][n % 3], n as u32)).collect();
    service.publish_rows(&reordered(doubled(rows), 17)).await.unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert_eq!(
        (ran.of("invoicing").handled, ran.of("invoicing").duplicates),
        (100, 100)
    );
    assert_eq!(ran.waiting, None);
    let published = service.published().await.unwrap();
    let of_a: Vec<Invoiced> = (0..100).filter(|n| n % 3 == 0).map(|n| invoiced("a", n)).collect();
    published.assert_events_of_key("invoices", "a", &of_a);
    assert_eq!(published.events::<Invoiced>("invoices").len(), 100);
    published.assert_nothing("receipts");
    service.set_aside("invoicing").await.unwrap().assert_nothing();

    service.publish(ORDERS, &placed("d", 1)).await.unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert_eq!(ran.of("invoicing").handled, 1, "a run tells what happened in it");
    service.redeliver("invoicing", false).await.unwrap();
    let ran = service.advance(MINUTE).await.unwrap();
    assert_eq!(ran.of("invoicing").handled, 0, "the inbox knows all of it");
    assert_eq!(
        service.published().await.unwrap().events::<Invoiced>("invoices").len(),
        101
    );
    service.stop().await.unwrap();
}

async fn backoff_goes_by_the_clock<S: Backend>(store: S) {
    let handler = Invoicing::default();
    let mut service = TestService::start(store, |service| service.consumer(consumer(&handler)))
        .await
        .unwrap();
    service
        .publish_rows(&[row("poison", 1), row("a", 1), row("poison", 2)])
        .await
        .unwrap();
    let ran = service.run_until_idle().await.unwrap();
    let (wait, what) = ran.waiting.clone().unwrap();
    assert!(wait <= MINUTE && what.contains("due"), "{wait:?} {what}");
    assert_eq!(ran.of("invoicing").handled, 1);
    let held = service.set_aside("invoicing").await.unwrap();
    held.assert_held_keys(&["poison"]);
    held.assert_dead(&[]);
    assert_eq!(held.waiting().count(), 2);
    let before = handler.runs.load(Ordering::Relaxed);
    service.run_until_idle().await.unwrap();
    assert_eq!(handler.runs.load(Ordering::Relaxed), before, "its time has not come");

    let ran = service.advance_until_idle(HOUR).await.unwrap();
    assert_eq!(ran.of("invoicing").dead, 1);
    assert!(ran.advanced <= MINUTE * 7, "{:?}", ran.advanced);
    assert_eq!(handler.runs.load(Ordering::Relaxed), before + 3, "four attempts in all");
    service
        .set_aside("invoicing")
        .await
        .unwrap()
        .assert_dead(&["order.placed"]);
    service.stop().await.unwrap();
}

async fn leases_go_by_the_clock<S: Backend>(store: S) {
    let handler = Invoicing::default();
    let first = |handler: &Invoicing| consumer(handler).lease(SECOND * 10);
    let mut service = TestService::start(store, |service| service.consumer(first(&handler)))
        .await
        .unwrap();
    service.run_until_idle().await.unwrap();
    service.advance(HOUR).await.unwrap();
    let health = service.service().consumers();
    assert_eq!(
        (health[0].lanes, health[0].taken, health[0].fenced),
        (64, 64, 0),
        "renewed for an hour"
    );

    // Who stands still for longer than its lease has lost it, and takes its lanes under new epochs.
    service.clock().jump(MINUTE).await;
    service.publish(ORDERS, &placed("a", 1)).await.unwrap();
    let ran = service.advance(SECOND * 10).await.unwrap();
    assert_eq!((ran.of("invoicing").handled, ran.of("invoicing").duplicates), (1, 0));
    assert_eq!(service.service().consumers()[0].taken, 128);

    let (store, clock) = service.crash();
    let mut next = TestService::start_on(store, clock, |service| service.consumer(first(&handler)))
        .await
        .unwrap();
    next.publish_rows(&(0..20).map(|n| row(&format!("k{n}"), n)).collect::<Vec<_>>())
        .await
        .unwrap();
    let ran = next.run_until_idle().await.unwrap();
    assert!(
        ran.of("invoicing").handled < 20,
        "lanes of the crashed one are not free yet"
    );
    next.advance(SECOND * 15).await.unwrap();
    assert_eq!(next.service().consumers()[0].lanes, 64);
    assert_eq!(next.published().await.unwrap().events::<Invoiced>("invoices").len(), 21);
    next.stop().await.unwrap();
}

async fn outages_and_windows_go_by_the_clock<S: Backend>(store: S) {
    let handler = Invoicing::default();
    handler.down.store(true, Ordering::Relaxed);
    let consumer = consumer(&handler).inbox_window(HOUR);
    let mut service = TestService::start(store, |service| service.keep_log(Some(MINUTE)).consumer(consumer))
        .await
        .unwrap();
    let rows: Vec<NewEvent> = (0..30).map(|n| row(&format!("k{n}"), n)).collect();
    service.publish_rows(&rows).await.unwrap();
    service.run_until_idle().await.unwrap();
    assert!(service.service().consumers()[0].outage);
    let ran = service.run_until_idle().await.unwrap();
    assert!(
        ran.waiting.is_some(),
        "it waits for a probe, or for what was held before the outage"
    );
    let runs = handler.runs.load(Ordering::Relaxed);
    service.advance(MINUTE).await.unwrap();
    assert!(handler.runs.load(Ordering::Relaxed) > runs, "probes have run");
    handler.down.store(false, Ordering::Relaxed);
    service.advance_until_idle(HOUR).await.unwrap();
    service.set_aside("invoicing").await.unwrap().assert_nothing();
    assert_eq!(
        service.published().await.unwrap().events::<Invoiced>("invoices").len(),
        30
    );

    service.publish_rows(&rows[..1]).await.unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert_eq!((ran.of("invoicing").handled, ran.of("invoicing").duplicates), (0, 1));
    // An idle inbox is looked at every four minutes or so.
    service.advance(HOUR + 6 * MINUTE).await.unwrap();
    service.publish_rows(&rows[..1]).await.unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert_eq!(ran.of("invoicing").handled, 1, "the inbox has forgotten it");
    service.advance(HOUR).await.unwrap();
    assert!(
        service.published().await.unwrap().rows().is_empty(),
        "the log was pruned"
    );
    service.stop().await.unwrap();
}

async fn breakers_go_by_the_clock<S: Backend>(store: S) {
    let broker = Memory::new();
    broker.down(true);
    let relay = Relay::new("relay", broker.clone());
    let mut service = TestService::start(store, |service| service.relay(relay)).await.unwrap();
    service
        .publish_rows(&[row("a", 1), row("b", 1), row("a", 2)])
        .await
        .unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert!(ran.waiting.is_some());
    let error = service.advance_until_idle(MINUTE).await.unwrap_err();
    assert!(
        matches!(&error, RunError::Limit { .. }) && error.to_string().contains("probe"),
        "{error}"
    );
    broker.down(false);
    let ran = service.advance_until_idle(MINUTE).await.unwrap();
    assert_eq!((ran.of("relay").handled, broker.arrived().len()), (3, 3));
    service.stop().await.unwrap();
}

async fn says_what_it_waits_for<S: Backend>(store: S) {
    let consumer = consumer(&Invoicing::default());
    let service = TestService::start(store, |service| service.consumer(consumer))
        .await
        .unwrap();
    let mut service = service.patience(Duration::from_millis(300));
    service.publish(ORDERS, &placed("hangs", 1)).await.unwrap();
    let error = service.run_until_idle().await.unwrap_err().to_string();
    assert!(error.contains("invoicing: works on 1 lanes"), "{error}");
    service.crash();
}

async fn store_faults_bite<S: Backend>(store: S) {
    let faults = StoreFaults::default();
    let handler = Invoicing::default();
    let store = FaultyStore::new(store, faults.clone());
    let consumer = consumer(&handler).lease(Duration::from_millis(400));
    let mut service = TestService::start(store, |service| service.consumer(consumer))
        .await
        .unwrap();
    service.run_until_idle().await.unwrap();
    let mut number = 0;
    for (method, fault) in [
        ("claim", StoreFault::Fail),
        ("advance", StoreFault::DropReply),
        ("commit", StoreFault::DropReply),
        ("commit", StoreFault::Fail),
        ("claim", StoreFault::Silence),
        ("claim", StoreFault::Panic),
    ] {
        number += 1;
        let runs = handler.runs.load(Ordering::Relaxed);
        // Publishing commits too; the consumer's first commit has the effect, since marks are made alone.
        faults.nth(method, if method == "commit" { 2 } else { 1 }, fault);
        service.publish(ORDERS, &placed("a", number)).await.unwrap();
        if let Err(error) = service.run_until_idle().await {
            panic!("{method} {fault:?}: {error}");
        }
        assert_eq!(faults.left(method), 0, "{method} {fault:?} was met");
        let ran_again = handler.runs.load(Ordering::Relaxed) - runs;
        let again = matches!((method, fault), ("advance", _) | ("commit", StoreFault::Fail));
        assert_eq!(ran_again, 1 + u32::from(again), "{method} {fault:?}");
        let wanted: Vec<Invoiced> = (1..=number).map(|number| invoiced("a", number)).collect();
        service.published().await.unwrap().assert_events("invoices", &wanted);
    }
    faults.every(StoreFault::Fail);
    assert!(service.published().await.is_err());
    faults.mend();
    service.run_until_idle().await.unwrap();
    service.stop().await.unwrap();
}

async fn broker_faults_bite<S: Backend>(store: S) {
    let broker = FaultyBroker::new(Memory::new());
    let relay = Relay::new("relay", broker.clone()).lease(SECOND * 2);
    let mut service = TestService::start(store, |service| service.relay(relay)).await.unwrap();
    let faults = [
        (BrokerFault::Fail, 0),
        (BrokerFault::Vanish, 0),
        (BrokerFault::DropReply, 4),
        (BrokerFault::Duplicate, 4),
        (BrokerFault::Silence, 4),
        (BrokerFault::Reorder(3), 0),
    ];
    for (nth, (fault, swallowed)) in (1..).zip(faults) {
        let (met, before) = (broker.met(), broker.inner().swallowed());
        broker.nth(1, fault);
        let rows = [row("a", nth), row("b", nth), row("a", nth + 100), row("c", nth)];
        service.publish_rows(&rows).await.unwrap();
        if let Err(error) = service.advance_until_idle(MINUTE).await {
            panic!("{fault:?}: {error}");
        }
        assert_eq!(broker.met(), met + 1, "{fault:?}");
        let arrived = broker.inner().arrived();
        assert_eq!(arrived.len(), nth as usize * 4, "{fault:?}");
        let swallowed_now = broker.inner().swallowed() - before;
        assert!((swallowed_now > 0) == (swallowed > 0), "{fault:?}: {swallowed_now}");
        let of_a = arrived[arrived.len() - 4..]
            .iter()
            .filter(|arrived| arrived.envelope.key.as_deref() == Some("a"));
        assert!(of_a.map(|arrived| arrived.position).is_sorted(), "{fault:?}");
    }
    service.stop().await.unwrap();
}

/// Notes the keys under which it was called, and fails the first time.
#[derive(Clone, Default)]
struct Calling(Arc<Mutex<Vec<String>>>);

impl EffectHandle for Calling {
    type Event = Placed;
    type Output = ();
    type Error = NotInvoiced;
    async fn handle(&self, placed: Placed, cx: &mut EffectContext<'_>) -> Result<(), NotInvoiced> {
        let mut keys = self.0.lock().unwrap();
        keys.push(cx.idempotency_key().to_owned());
        match placed.order == "a" && cx.attempt() == 1 {
            true => Err(NotInvoiced),
            false => Ok(()),
        }
    }
}

async fn calls_are_retried_by_the_clock<S: Backend>(store: S) {
    let faults = StoreFaults::default();
    let calling = Calling::default();
    let backoff = Backoff::default().first(MINUTE);
    let caller = Consumer::new("caller")
        .topic(ORDERS)
        .effect(calling.clone())
        .backoff(backoff);
    let store = FaultyStore::new(store, faults.clone());
    let mut service = TestService::start(store, |service| service.consumer(caller))
        .await
        .unwrap();
    service
        .publish_rows(&doubled(vec![row("a", 1), row("b", 1)]))
        .await
        .unwrap();
    let ran = service.run_until_idle().await.unwrap();
    assert_eq!((ran.of("caller").handled, ran.of("caller").failures), (1, 1));
    assert_eq!(calling.0.lock().unwrap().len(), 2);
    faults.nth("finish_effects", 1, StoreFault::Fail);
    let ran = service.advance_until_idle(HOUR).await.unwrap();
    assert_eq!((ran.of("caller").handled, faults.left("finish_effects")), (1, 0));
    let keys = calling.0.lock().unwrap().clone();
    assert_eq!(
        keys.len(),
        4,
        "its result was not stored, so it was called once more: {keys:?}"
    );
    let of_a: HashSet<&String> = keys
        .iter()
        .filter(|key| keys.iter().filter(|other| other == key).count() > 1)
        .collect();
    assert_eq!(of_a.len(), 1, "under one key: {keys:?}");
    service.stop().await.unwrap();
}

async fn instances_share_a_clock<S: Backend>(store: S) {
    let handler = Invoicing::default();
    let mut first = TestService::start(store.clone(), |service| service.consumer(consumer(&handler)))
        .await
        .unwrap();
    first.run_until_idle().await.unwrap();
    let clock = first.clock().clone();
    let mut second = TestService::start_on(store, clock, |service| service.consumer(consumer(&handler)))
        .await
        .unwrap();
    for _ in 0..3 {
        first.advance(SECOND * 5).await.unwrap();
        second.run_until_idle().await.unwrap();
    }
    let lanes = |service: &TestService<S>| service.service().consumers()[0].lanes;
    assert_eq!((lanes(&first), lanes(&second)), (32, 32));
    let rows: Vec<NewEvent> = (0..60).map(|n| row(&format!("k{n}"), n)).collect();
    first.publish_rows(&rows).await.unwrap();
    let (one, other) = (
        first.run_until_idle().await.unwrap(),
        second.run_until_idle().await.unwrap(),
    );
    let (one, other) = (one.of("invoicing").handled, other.of("invoicing").handled);
    assert!(one > 0 && other > 0 && one + other == 60, "{one} {other}");
    second.stop().await.unwrap();
    first.advance(SECOND * 5).await.unwrap();
    assert_eq!(lanes(&first), 64);
    first.stop().await.unwrap();
}

/// Passes on what was invoiced, and then what was passed on, step by step.
#[derive(Clone)]
struct Passing(u32);

impl<S: Backend> eventloom::Handle<S> for Passing {
    type Event = Invoiced;
    type Output = ();
    type Error = NotInvoiced;
    async fn handle(&self, invoiced: Invoiced, cx: &mut Context<'_, S>) -> Result<(), NotInvoiced> {
        let passed = Invoiced {
            number: invoiced.number + 1,
            ..invoiced
        };
        if invoiced.number < self.0 {
            cx.publish(INVOICES, &passed).await.map_err(|_| NotInvoiced)?;
        }
        Ok(())
    }
}

async fn what_one_consumer_leaves_to_another_is_work<S: Backend>(store: S) {
    let handler = Invoicing::default();
    let passing = Consumer::new("passing").topic(INVOICES).handle(Passing(5));
    let configure = |service: eventloom::Eventloom<S>| service.consumer(consumer(&handler)).consumer(passing);
    let mut service = TestService::start(store, configure).await.unwrap();
    for round in 0..40 {
        service.publish(ORDERS, &placed(&format!("k{round}"), 0)).await.unwrap();
        let ran = service.run_until_idle().await.unwrap();
        assert_eq!(
            (ran.of("invoicing").handled, ran.of("passing").handled),
            (1, 6),
            "round {round}"
        );
    }
    service.stop().await.unwrap();
}

/// Each case as a test on both stores.
macro_rules! on_both {
    ($($case:ident)+) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let folder = super::Folder::new();
                    super::$case(folder.store().await).await;
                }
            )+
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::database::with_database(stringify!($case), async |database| {
                        super::$case(database.store(6).await).await;
                    })
                    .await;
                }
            )+
        }
    };
}

on_both! {
    runs_until_nothing_is_left
    backoff_goes_by_the_clock
    leases_go_by_the_clock
    outages_and_windows_go_by_the_clock
    breakers_go_by_the_clock
    says_what_it_waits_for
    store_faults_bite
    broker_faults_bite
    calls_are_retried_by_the_clock
    instances_share_a_clock
    what_one_consumer_leaves_to_another_is_work
}
