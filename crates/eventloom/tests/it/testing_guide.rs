//! The examples of the guide "Test it": what is shown there is run here.

use crate::folder::Folder;
use eventloom::{Envelope, OffsetDateTime, Redrive, ports::Store, sqlite::prelude::*};
use eventloom_testkit::{
    TestService,
    broker::Memory,
    faults::{BrokerFault, FaultyBroker, FaultyStore, StoreFault, StoreFaults, doubled, reordered},
};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;
use std::{
    error::Error,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/testing.md");

const ORDERS: Topic = Topic::new("orders");
const INVOICES: Topic = Topic::new("invoices");

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "order.invoiced")]
struct OrderInvoiced {
    #[event(key)]
    order: String,
    number: i64,
}

#[derive(Debug, thiserror::Error)]
enum InvoiceError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("the customer is not known yet")]
    UnknownCustomer,
}
impl Classify for InvoiceError {}

static CUSTOMER_IS_KNOWN: AtomicBool = AtomicBool::new(false);

async fn invoice(placed: OrderPlaced, cx: &mut Context<'_>) -> Result<i64, InvoiceError> {
    if placed.order == "order-of-a-stranger" && !CUSTOMER_IS_KNOWN.load(Ordering::Relaxed) {
        return Err(InvoiceError::UnknownCustomer);
    }
    let insert = sqlx::query_scalar("INSERT INTO invoices (order_id) VALUES (?) RETURNING number");
    let number = insert.bind(&placed.order).fetch_one(cx.connection()).await?;
    let order = placed.order;
    cx.publish(INVOICES, &OrderInvoiced { order, number }).await?;
    Ok(number)
}

async fn notify(_placed: OrderPlaced, cx: &mut EffectContext<'_>) -> Result<String, PublishError> {
    Ok(format!("{} {}", cx.idempotency_key(), cx.may_repeat()))
}

fn placed(order: &str) -> OrderPlaced {
    OrderPlaced {
        order: order.to_owned(),
    }
}

fn invoiced(order: &str, number: i64) -> OrderInvoiced {
    OrderInvoiced {
        order: order.to_owned(),
        number,
    }
}

async fn store(folder: &Folder) -> Sqlite {
    let store = folder.store().await;
    let table = "CREATE TABLE invoices (number INTEGER PRIMARY KEY, order_id TEXT)";
    sqlx::query(table).execute(store.pool()).await.unwrap();
    store
}

type Tested = Result<(), Box<dyn Error>>;

#[tokio::test]
async fn a_handler_alone() -> Tested {
    let folder = Folder::new();
    let store = store(&folder).await;

    let mut tx = store.begin_write().await?; // Postgres: pool.begin().await?
    let mut cx = Context::for_test(&mut tx).with_attempt(3);
    let number = invoice(placed("order-17"), &mut cx).await?;
    assert_eq!(cx.published::<OrderInvoiced>(INVOICES)?, [invoiced("order-17", number)]);
    assert_eq!(cx.published_rows()[0].key(), Some("order-17"));
    tx.rollback().await?;

    let envelope = Envelope::new("id-1", "orders", "order.placed", OffsetDateTime::now_utc());
    let mut cx = EffectContext::for_test_with(envelope)
        .with_deadline(Instant::now() + Duration::from_secs(1))
        .after_a_crash();
    assert_eq!(notify(placed("order-17"), &mut cx).await?, "test/id-1 true");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_service() -> Tested {
    let folder = Folder::new();
    let store = store(&folder).await;

    let invoicing = Consumer::new("invoicing").topic(ORDERS).handle(invoice);
    let mut service = TestService::start(store, |service| service.consumer(invoicing)).await?;
    service.publish(ORDERS, &placed("order-17")).await?;
    let ran = service.run_until_idle().await?;
    assert_eq!(ran.of("invoicing").handled, 1);
    let published = service.published().await?;
    published.assert_events("invoices", &[invoiced("order-17", 1)]);

    // Eight attempts with back-off, which take minutes of the clock and no time of the test.
    service.publish(ORDERS, &placed("order-of-a-stranger")).await?;
    let ran = service.advance_until_idle(Duration::from_secs(3600)).await?;
    assert_eq!((ran.of("invoicing").failures, ran.of("invoicing").dead), (8, 1));
    let held = service.set_aside("invoicing").await?;
    held.assert_held_keys(&["order-of-a-stranger"]);
    held.assert_dead(&["order.placed"]);

    CUSTOMER_IS_KNOWN.store(true, Ordering::Relaxed);
    service.redrive("invoicing", &Redrive::All).await?;
    service.run_until_idle().await?;
    service.set_aside("invoicing").await?.assert_nothing();

    // Everything once more: with the inbox nothing may change.
    service.redeliver("invoicing", false).await?;
    service.advance(Duration::from_secs(60)).await?;
    assert_eq!(service.published().await?.events::<OrderInvoiced>("invoices").len(), 2);
    service.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_crashes() -> Tested {
    let folder = Folder::new();
    let store = store(&folder).await;

    let invoicing = || Consumer::new("invoicing").topic(ORDERS).handle(invoice);
    let service = TestService::start(store, |service| service.consumer(invoicing())).await?;
    let (store, clock) = service.crash();
    let mut next = TestService::start_on(store, clock, |service| service.consumer(invoicing())).await?;
    next.publish(ORDERS, &placed("order-17")).await?;
    next.advance(Duration::from_secs(20)).await?; // two leases
    assert_eq!(next.published().await?.events::<OrderInvoiced>("invoices").len(), 1);
    next.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong() -> Tested {
    let folder = Folder::new();
    let store = store(&folder).await;
    let sqlite = store.clone();

    let faults = StoreFaults::default();
    let store = FaultyStore::new(store, faults.clone());
    let invoicing = Consumer::new("invoicing").topic(ORDERS).handle(Invoicing);
    let mut service = TestService::start(store, |service| service.consumer(invoicing)).await?;
    let rows = vec![
        NewEvent::of(ORDERS, &placed("order-1"))?,
        NewEvent::of(ORDERS, &placed("order-2"))?,
    ];
    service.publish_rows(&reordered(doubled(rows), 17)).await?;
    faults.nth("commit", 1, StoreFault::DropReply);
    service.run_until_idle().await?;
    assert_eq!(faults.left("commit"), 0, "the fault was met");
    let invoices: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices")
        .fetch_one(sqlite.pool())
        .await?;
    assert_eq!(invoices, 2);
    service.stop().await?;

    let broker = FaultyBroker::new(Memory::new());
    broker.nth(1, BrokerFault::DropReply);
    let relay = Relay::new("relay", broker.clone());
    let mut service = TestService::start(sqlite, |service| service.relay(relay)).await?;
    service.publish(ORDERS, &placed("order-3")).await?;
    service.advance_until_idle(Duration::from_secs(60)).await?;
    assert_eq!(broker.met(), 1);
    assert!(
        broker
            .inner()
            .arrived()
            .iter()
            .any(|arrived| arrived.envelope.key.as_deref() == Some("order-3"))
    );
    service.stop().await?;
    Ok(())
}

struct Invoicing;

// For every store with this connection: the store itself, and one with faults around it.
impl<S: Store<Connection = SqliteConnection>> Handle<S> for Invoicing {
    type Event = OrderPlaced;
    type Output = i64;
    type Error = InvoiceError;
    async fn handle(&self, placed: OrderPlaced, cx: &mut eventloom::Context<'_, S>) -> Result<i64, InvoiceError> {
        let insert = sqlx::query_scalar("INSERT INTO invoices (order_id) VALUES (?) RETURNING number");
        Ok(insert.bind(&placed.order).fetch_one(cx.connection()).await?)
    }
}

#[test]
fn the_guide_shows_what_is_run_here() {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect()
    };
    let source = lines(include_str!("testing_guide.rs"));
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let (for_services, _) = guide.split_once("## A store of your own").unwrap();
    let blocks: Vec<&str> = for_services.split("```rust\n").skip(1).collect();
    assert!(blocks.len() >= 4, "{} examples", blocks.len());
    for block in blocks {
        let shown = lines(block.split("```").next().unwrap());
        let run = source.windows(shown.len()).any(|window| window == shown);
        assert!(run, "not run by a test:\n{}", shown.join("\n"));
    }
}
