//! A handler is a function, and its unit test calls it.

use crate::folder::Folder;
use eventloom::{Envelope, Headers, NewEvent, OffsetDateTime, Refusal, sqlite::prelude::*};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const ORDERS: Topic = Topic::new("orders");
const INVOICES: Topic = Topic::new("invoices");

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: String,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.order))
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum InvoiceError {
    Database(#[from] sqlx::Error),
    Publish(#[from] PublishError),
}
impl Classify for InvoiceError {}

/// Writes a row and publishes; returns the number of the invoice.
async fn invoice(placed: OrderPlaced, cx: &mut Context<'_>) -> Result<i64, InvoiceError> {
    let insert = sqlx::query_scalar("INSERT INTO invoices (order_id, attempt) VALUES (?, ?) RETURNING number");
    let insert = insert.bind(&placed.order).bind(cx.attempt());
    let number = insert.fetch_one(cx.connection()).await?;
    cx.publish(INVOICES, &placed).await?;
    Ok(number)
}

async fn notify(placed: OrderPlaced, cx: &mut EffectContext<'_>) -> Result<String, PublishError> {
    cx.publish(ORDERS, &placed).await?;
    Ok(cx.idempotency_key().to_owned())
}

fn envelope(id: &str, correlation: Option<&str>) -> Envelope {
    Envelope {
        id: id.to_owned(),
        topic: "orders".to_owned(),
        event_type: "order.placed".to_owned(),
        key: Some("order-17".to_owned()),
        source: None,
        subject: None,
        time: OffsetDateTime::UNIX_EPOCH,
        payload: None,
        datacontenttype: None,
        dataschema: None,
        schemaversion: 1,
        correlationid: correlation.map(str::to_owned),
        causationid: None,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: None,
        headers: Headers::new(),
        origin: None,
    }
}

fn order() -> OrderPlaced {
    OrderPlaced {
        order: "order-17".to_owned(),
    }
}

async fn store_with_invoices(folder: &Folder) -> Sqlite {
    let store = folder.store().await;
    let table = "CREATE TABLE invoices (number INTEGER PRIMARY KEY, order_id TEXT, attempt INTEGER)";
    sqlx::query(table).execute(store.pool()).await.unwrap();
    store
}

#[tokio::test]
async fn a_handler_is_called_by_its_test() {
    let folder = Folder::new();
    let store = store_with_invoices(&folder).await;
    let mut tx = store.begin_write().await.unwrap();
    let mut cx = Context::for_test(&mut tx);
    assert_eq!(invoice(order(), &mut cx).await.unwrap(), 1);
    assert_eq!(cx.published_rows().len(), 1);
    assert_eq!(cx.published_rows()[0].topic(), &INVOICES);
    assert_eq!(cx.published_rows()[0].key(), Some("order-17"));
    assert_eq!((cx.attempt(), cx.consumer().as_str()), (1, "test"));

    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    let events: i64 = sqlx::query_scalar("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(
        (rows, events),
        (1, 0),
        "what a handler publishes is buffered, and a test's context writes nothing"
    );
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn what_it_publishes_is_caused_by_its_message() {
    let folder = Folder::new();
    let store = store_with_invoices(&folder).await;
    for (correlation, wanted) in [(None, "message-1"), (Some("process-9"), "process-9")] {
        let message = envelope("message-1", correlation);
        let mut tx = store.begin_write().await.unwrap();
        let mut cx = Context::for_test_with(&mut tx, message.clone());
        invoice(order(), &mut cx).await.unwrap();
        let published: &NewEvent = &cx.published_rows()[0];
        assert_eq!(published.correlationid(), Some(wanted));
        assert_eq!(published.causationid(), Some("message-1"));
        assert_eq!(published.traceparent(), message.traceparent.as_deref());
    }
}

#[tokio::test]
async fn a_refused_event_leaves_the_handler_going() {
    let folder = Folder::new();
    let store = store_with_invoices(&folder).await;
    let mut tx = store.begin_write().await.unwrap();
    let mut cx = Context::for_test(&mut tx);
    let large = OrderPlaced {
        order: "x".repeat(1025),
    };
    let error = cx.publish(INVOICES, &large).await.unwrap_err();
    assert!(
        matches!(
            error,
            PublishError::Refused(Refusal::KeyTooLarge {
                bytes: 1025,
                bytes_max: 1024
            })
        ),
        "{error}"
    );
    assert!(invoice(order(), &mut cx).await.is_ok());
    assert_eq!(cx.published_rows().len(), 1);
}

#[tokio::test]
async fn a_call_to_the_outside_has_its_key() {
    let mut cx = EffectContext::for_test();
    let key = notify(order(), &mut cx).await.unwrap();
    assert_eq!(key, format!("test/{}", cx.envelope().id));
    assert!(!cx.may_repeat());
    assert_eq!(cx.published_rows().len(), 1);
}

#[tokio::test]
async fn what_a_call_publishes_is_caused_by_its_message() {
    let message = envelope("message-1", Some("process-9"));
    let mut cx = EffectContext::for_test_with(message.clone());
    let typed = cx.publish(ORDERS, &order()).await.unwrap();
    let row = NewEvent::untyped(INVOICES, "order.invoiced");
    let untyped = cx.publish_row(row).await.unwrap();
    assert_eq!(cx.idempotency_key(), "test/message-1");
    let ids: Vec<_> = cx.published_rows().iter().map(NewEvent::id).collect();
    assert_eq!(ids, [typed, untyped]);
    for published in cx.published_rows() {
        assert_eq!(published.correlationid(), Some("process-9"));
        assert_eq!(published.causationid(), Some("message-1"));
        assert_eq!(published.traceparent(), message.traceparent.as_deref());
    }
}
