//! An event without a macro is the same event.

use crate::folder::{Folder, until};
use eventloom::{
    Classify, Consumer, ConsumerName, Context, Envelope, Event, Eventloom, NewEvent, Payload, Position, Publish,
    RetryClass, Topic,
    ports::{DeadLetters, Held, HeldState, Inbox, Log, ReadLimits},
    publish, publish_all, publish_rows,
    sqlite::Sqlite,
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, time::Duration};

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize)]
struct ByHand {
    order: String,
    cents: i64,
}

impl Event for ByHand {
    const TYPE: &'static str = "order.placed";
    const VERSION: i32 = 2;
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.order))
    }
}

#[cfg(feature = "macros")]
#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = 2)]
struct Derived {
    #[event(key)]
    order: String,
    cents: i64,
}

/// Everything but the logical id and the times, which differ from event to event.
fn essence(envelope: &Envelope) -> (&str, &str, Option<&str>, i32, Option<&Payload>) {
    let Envelope {
        topic,
        event_type,
        key,
        schemaversion,
        payload,
        ..
    } = envelope;
    (topic, event_type, key.as_deref(), *schemaversion, payload.as_ref())
}

#[cfg(feature = "macros")]
#[test]
fn the_macro_only_makes_it_shorter() {
    let (order, cents) = ("order-17".to_owned(), 1250);
    let by_hand = NewEvent::of(
        ORDERS,
        &ByHand {
            order: order.clone(),
            cents,
        },
    )
    .unwrap();
    let derived = NewEvent::of(ORDERS, &Derived { order, cents }).unwrap();
    let derived = derived.with_id(by_hand.id());
    assert_eq!(by_hand, derived);
}

#[tokio::test]
async fn events_by_hand_are_published_in_their_order() {
    let folder = Folder::new();
    let store = folder.store().await;
    let event = |cents| ByHand {
        order: "order-17".to_owned(),
        cents,
    };
    let mut tx = store.begin_write().await.unwrap();
    let mut ids = vec![publish(&mut *tx, ORDERS, &event(1)).await.unwrap()];
    ids.extend(publish_all(&mut *tx, ORDERS, &[event(2), event(3)]).await.unwrap());
    let row = |cents| NewEvent::of(ORDERS, &event(cents)).unwrap();
    ids.extend(publish_rows(&mut *tx, &[row(4), row(5)]).await.unwrap());
    ids.extend(store.publish_in(&mut tx, &[row(6), row(7)]).await.unwrap());
    assert!(store.publish_in(&mut tx, &[]).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    ids.push(store.publish(ORDERS, &event(8)).await.unwrap());
    ids.push(store.publish_row(row(9)).await.unwrap());

    let rows = store
        .read_after(Position::START, ReadLimits::default())
        .await
        .unwrap()
        .rows;
    for (row, cents) in rows.iter().zip(1..) {
        let payload = Payload::Json(format!(r#"{{"order":"order-17","cents":{cents}}}"#));
        let wanted = ("orders", "order.placed", Some("order-17"), 2, Some(&payload));
        assert_eq!(essence(&row.envelope), wanted);
    }
    let found: Vec<String> = rows.into_iter().map(|row| row.envelope.id).collect();
    let returned: Vec<String> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(
        found, returned,
        "every way to publish returns the logical ids, in order"
    );
}

#[derive(Debug, thiserror::Error)]
#[error("no such order")]
struct NoSuchOrder;

impl Classify for NoSuchOrder {
    fn retry_class(&self) -> RetryClass {
        RetryClass::Permanent
    }
}

async fn first_fails(event: ByHand, _: &mut Context<'_, Sqlite>) -> Result<(), NoSuchOrder> {
    if event.cents == 1 { Err(NoSuchOrder) } else { Ok(()) }
}

/// Other programs write an empty key where they have none: a failed one keeps nobody waiting.
#[tokio::test]
async fn an_empty_key_of_another_program_is_none() {
    let folder = Folder::new();
    let store = folder.store().await;
    let insert = "INSERT INTO eventloom_outbox (id, topic, type, key, data) VALUES \
                  ('018f2c4e-9d3a-7cc1-8f00-000000000001', 'orders', 'order.placed', '', '{\"order\": \"\", \"cents\": 1}'), \
                  ('018f2c4e-9d3a-7cc1-8f00-000000000002', 'orders', 'order.placed', '', '{\"order\": \"\", \"cents\": 2}')";
    sqlx::query(insert).execute(store.pool()).await.unwrap();
    let name = ConsumerName::parse("invoicing").unwrap();
    let consumer = Consumer::new("invoicing").topic(ORDERS).handle(first_fails);
    let service = Eventloom::new(store.clone()).consumer(consumer).start().await.unwrap();
    let both = async || {
        let handled = store
            .result_of(&name, "018f2c4e-9d3a-7cc1-8f00-000000000002")
            .await
            .unwrap();
        let letter = store
            .letter(&name, "018f2c4e-9d3a-7cc1-8f00-000000000001")
            .await
            .unwrap();
        handled.and(letter)
    };
    let letter = until("one dead, two handled", both).await;
    service.shutdown(Duration::from_secs(10)).await.unwrap();
    assert!(!letter.queued && letter.state == HeldState::Dead, "{letter:?}");
    let keys = store.keys_of_lane(&name, letter.message.lane, "", 10).await.unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
