//! What must not enter a log is refused before the database is asked: value and limit are named, the transaction goes on.

use crate::folder::Folder;
use eventloom::{
    ConsumerName, Event, NewEvent, OwnerId, Payload, Position, Publish, PublishError, Refusal, StoreErrorKind, Topic,
    chain,
    ports::{Backend, ConnectionOf, ReadLimits, Scope, Transaction},
    publish, publish_rows,
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, time::Duration};

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize)]
struct Fine(i64);

impl Event for Fine {
    const TYPE: &'static str = "fine";
}

/// Does not encode: the keys of a JSON object are texts.
#[derive(Serialize, Deserialize)]
struct Unspeakable(HashMap<(i64, i64), i64>);

impl Event for Unspeakable {
    const TYPE: &'static str = "unspeakable";
}

fn row() -> NewEvent {
    NewEvent::untyped(ORDERS, "order.placed")
}

fn with_headers(count: usize) -> NewEvent {
    (0..count).fold(row(), |row, n| row.with_header(format!("h{n}"), "v"))
}

/// Each refused event, and what its refusal says.
fn cases() -> Vec<(NewEvent, &'static str)> {
    let json = |bytes: usize| row().with_payload(Payload::Json(format!("\"{}\"", "x".repeat(bytes - 2))));
    vec![
        (
            json((1 << 20) + 1),
            "payload of 1048577 bytes is over the limit of 1048576 bytes",
        ),
        (
            row().with_payload(Payload::Binary(vec![0; 2 << 20])),
            "payload of 2097152 bytes is over the limit of 1048576 bytes",
        ),
        (with_headers(65), "65 headers are over the limit of 64"),
        (
            row().with_header("trace", "x".repeat(8 << 10)),
            "header \"trace\" of 8197 bytes (name and value) is over the limit of 8192 bytes",
        ),
        (
            row().with_key("k".repeat(1025)),
            "key of 1025 bytes is over the limit of 1024 bytes",
        ),
        (
            NewEvent::untyped(ORDERS, " "),
            "the event type is empty; a type such as \"order.placed\" is required",
        ),
        (
            row().with_key("a\0b"),
            "key holds a NUL character, which a database cannot store as text",
        ),
        (
            row().with_header("a\0b", ""),
            "a header holds a NUL character, which a database cannot store as text",
        ),
    ]
}

/// The largest that is still accepted.
fn largest() -> NewEvent {
    with_headers(63)
        .with_header("x", "y".repeat((8 << 10) - 1))
        .with_key("k".repeat(1024))
        .with_payload(Payload::Binary(vec![7; 1 << 20]))
}

/// Every refusal on a store, in one transaction that is used to its end.
pub(crate) async fn are_named_and_leave_the_transaction_usable<S>(store: &S)
where
    S: Backend,
    S::Connection: ConnectionOf<S>,
{
    let reader = ConsumerName::parse("refusals").unwrap();
    let owner = OwnerId::new("test", 1);
    let scope = Scope {
        reader: &reader,
        owner: &owner,
        limit: Duration::from_secs(30),
    };
    let mut tx = store.begin(scope).await.unwrap();
    let mut written = 0;
    for (refused, text) in cases() {
        let name = text.split_whitespace().next().unwrap();
        let in_caller = publish_rows::<S::Connection, S>(&mut tx, &[row(), refused.clone()]).await;
        let in_store = store.publish_in(&mut tx, std::slice::from_ref(&refused)).await;
        let alone = if S::NAME == "sqlite" {
            // It would wait for this transaction: the check comes first, and is all that is asked for here.
            store.limits().check(&refused).map_err(PublishError::from)
        } else {
            store.publish_row(refused).await.map(drop)
        };
        for result in [in_caller.map(drop), in_store.map(drop), alone] {
            let error = result.unwrap_err();
            assert_eq!(error.to_string(), "the event was refused", "{name}");
            assert_eq!(
                chain(&error).to_string(),
                format!("the event was refused: {text}"),
                "{name}"
            );
            assert!(
                matches!(error, PublishError::Refused(_)) && !error.may_have_happened(),
                "{name}"
            );
        }
        publish::<S::Connection, S, _>(&mut tx, ORDERS, &Fine(written))
            .await
            .unwrap();
        written += 1;
    }
    let unspeakable = Unspeakable(HashMap::from([((1, 2), 3)]));
    let error = publish::<S::Connection, S, _>(&mut tx, ORDERS, &unspeakable)
        .await
        .unwrap_err();
    assert!(matches!(error, PublishError::Encode(_)), "{error}");
    publish_rows::<S::Connection, S>(&mut tx, &[largest()]).await.unwrap();
    tx.commit().await.unwrap();

    let limits = ReadLimits::default().payload_bytes_max(u64::MAX);
    let rows = store.read_after(Position::START, limits).await.unwrap().rows;
    let types: Vec<&str> = rows.iter().map(|row| row.envelope.event_type.as_str()).collect();
    assert_eq!(
        types[..types.len() - 1],
        vec!["fine"; written as usize],
        "of a refused list nothing is written"
    );
    assert_eq!(rows.last().unwrap().envelope.headers.len(), 64);
}

#[tokio::test]
async fn on_sqlite() {
    let folder = Folder::new();
    are_named_and_leave_the_transaction_usable(&folder.store().await).await;
}

#[tokio::test]
async fn limits_of_the_store_are_those_that_count() {
    let folder = Folder::new();
    folder.store().await.close().await;
    let limits = eventloom::PublishLimits::default().payload_bytes_max(3);
    let store = eventloom::sqlite::Sqlite::builder(folder.database())
        .limits(limits)
        .open()
        .await
        .unwrap();
    let payload = |text: &str| row().with_payload(Payload::Json(text.to_owned()));
    store.publish_row(payload("123")).await.unwrap();
    let error = store.publish_row(payload("1234")).await.unwrap_err();
    assert!(
        matches!(
            error,
            PublishError::Refused(Refusal::PayloadTooLarge { bytes: 4, bytes_max: 3 })
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_transaction_that_read_first_is_told_what_to_do() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut deferred = store.pool().begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *deferred)
        .await
        .unwrap();
    store.publish(ORDERS, &Fine(1)).await.unwrap();
    let error = publish(&mut *deferred, ORDERS, &Fine(2)).await.unwrap_err();
    let PublishError::Store(error) = error else {
        panic!("{error}")
    };
    assert_eq!(error.kind(), StoreErrorKind::ReadTransaction);
    assert!(error.to_string().contains("begin it with BEGIN IMMEDIATE"), "{error}");
    deferred.rollback().await.unwrap();

    let mut immediate = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *immediate)
        .await
        .unwrap();
    publish(&mut *immediate, ORDERS, &Fine(2)).await.unwrap();
    immediate.commit().await.unwrap();
}
