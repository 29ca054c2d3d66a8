//! Events, messages and times for cases.

use super::check::Failed;
use eventloom_core::{
    ConsumerName, Envelope, Headers, LaneCount, NewEvent, OffsetDateTime, Payload, Position, Recorded, Topic, Uuid,
    ports::{Backend, Failure, HeldState, NewHeld, ReadError, ReadLimits},
};
use std::time::Duration;
use time::macros::datetime;

pub(super) const ORDERS: Topic = Topic::new("orders");

/// A moment on the virtual clock, far from any real one: seconds after its beginning.
pub(super) fn at(seconds: i64) -> Option<OffsetDateTime> {
    Some(datetime!(2040-01-01 00:00 UTC) + time::Duration::seconds(seconds))
}

/// The real time moved by hours. For what compares with the insert time of rows, which is the database's own: an hour is
/// more than two clocks differ by.
pub(super) fn in_hours(hours: i64) -> Option<OffsetDateTime> {
    Some(OffsetDateTime::now_utc() + time::Duration::hours(hours))
}

pub(super) fn consumer(name: &str) -> Result<ConsumerName, Failed> {
    Ok(ConsumerName::parse(name)?)
}

pub(super) fn event(key: &str) -> NewEvent {
    NewEvent::untyped(ORDERS, "order.placed")
        .with_key(key)
        .with_payload(Payload::Json(r#"{"total": 1250}"#.to_owned()))
}

/// One event for each of `keys`.
pub(super) fn events(keys: &[&str]) -> Vec<NewEvent> {
    keys.iter().map(|key| event(key)).collect()
}

pub(super) fn ids_of(events: &[NewEvent]) -> Vec<String> {
    events.iter().map(|event| event.id().to_string()).collect()
}

pub(super) fn ids(rows: &[Recorded]) -> Vec<String> {
    rows.iter().map(|row| row.envelope.id.clone()).collect()
}

pub(super) fn positions(rows: &[Recorded]) -> Vec<i64> {
    rows.iter().map(|row| row.position.0).collect()
}

/// Every row above `after`, page by page.
pub(super) async fn read_from<S: Backend>(store: &S, after: Position) -> Result<Vec<Recorded>, ReadError> {
    let mut rows = Vec::new();
    let mut after = after;
    loop {
        let page = store.read_after(after, ReadLimits::default()).await?;
        let caught_up = page.scanned_to >= page.horizon;
        rows.extend(page.rows);
        after = page.scanned_to;
        if caught_up {
            return Ok(rows);
        }
    }
}

/// Every row, once no writer is in flight: the rollback of a dropped transaction takes its time.
pub(super) async fn read_quiet<S: Backend>(store: &S) -> Result<Vec<Recorded>, ReadError> {
    loop {
        let horizon = store.horizon().await?;
        if horizon.position == horizon.handed_out {
            return read_all(store).await;
        }
        // pacing: of the poll; the horizon decides
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(super) async fn read_all<S: Backend>(store: &S) -> Result<Vec<Recorded>, ReadError> {
    read_from(store, Position::START).await
}

/// A message as it is held: `m-<position>` of `key`.
pub(super) fn message(key: Option<&str>, position: i64) -> Recorded {
    let id = format!("m-{position}");
    let lane = LaneCount::default().lane_of(key.unwrap_or(&id));
    let mut envelope = Envelope::new(id, "orders", "order.placed", datetime!(2039-12-31 23:00 UTC));
    envelope.key = key.map(str::to_owned);
    envelope.payload = Some(Payload::Json(r#"{"total": 1250}"#.to_owned()));
    Recorded {
        position: Position(position),
        lane,
        envelope,
        omitted: None,
    }
}

/// A message with every attribute set, none of them plain: what is kept byte for byte shows here.
pub(super) fn full_message(position: i64) -> Recorded {
    let mut full = message(Some("schlüssel \u{1F511} 'x' \"y\""), position);
    full.envelope = Envelope {
        id: "någon annans id / 17".to_owned(),
        event_type: "com.exämple.order-placed".to_owned(),
        source: Some("https://shop.example/bücher?a=1&b=%20".to_owned()),
        subject: Some("Ω/№ 5".to_owned()),
        time: datetime!(2026-02-28 23:59:59.123456 UTC),
        payload: Some(Payload::Json("{\"a\": 1 }  ".to_owned())),
        datacontenttype: Some("application/json; charset=utf-8".to_owned()),
        dataschema: Some("https://schemas.example/order/3#frag".to_owned()),
        schemaversion: 3,
        correlationid: Some("büro-1".to_owned()),
        causationid: Some("'; DROP TABLE x; --".to_owned()),
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned()),
        tracestate: Some("vendor=t61rcWkgMzE,other=ü".to_owned()),
        headers: headers(),
        origin: Some(Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)),
        ..full.envelope
    };
    full
}

/// Headers whose names and values need escaping in every text format.
pub(super) fn headers() -> Headers {
    let pairs = [
        ("plain", "value"),
        ("ünï \"quoted\"", "line one\nline two\t\\ \u{1F600}"),
        ("empty", ""),
        ("", "no name"),
    ];
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Waiting at the head of its key's queue, or alone when it has no key; due after `seconds`.
pub(super) fn waiting(message: &Recorded, seconds: u64) -> NewHeld<'_> {
    NewHeld {
        message,
        queued: message.envelope.key.is_some(),
        state: HeldState::Waiting,
        attempts: 1,
        due_in: Some(Duration::from_secs(seconds)),
        failure: None,
    }
}

/// Behind the head of its key's queue.
pub(super) fn behind(message: &Recorded) -> NewHeld<'_> {
    NewHeld {
        attempts: 0,
        due_in: None,
        ..waiting(message, 0)
    }
}

/// Given up.
pub(super) fn dead<'a>(message: &'a Recorded, failure: &'a Failure) -> NewHeld<'a> {
    NewHeld {
        state: HeldState::Dead,
        attempts: 5,
        due_in: None,
        failure: Some(failure),
        ..waiting(message, 0)
    }
}

pub(super) fn failure(error: &str) -> Failure {
    Failure {
        error: error.to_owned(),
        fingerprint: format!("fingerprint of {error}"),
    }
}
