//! What is appended is in the log as it was given: in order, byte for byte, and only when it was committed.

use crate::store::{
    check::{Outcome, holds, refused, same},
    fixture::Fixture,
    instance::Instance,
    sample::{ORDERS, event, events, full_message, headers, ids, ids_of, positions, read_all, read_quiet},
};
use eventloom_core::{
    LaneCount, NewEvent, OffsetDateTime, Payload, PublishError, Uuid,
    ports::{Outbox as _, Store as _, Transaction as _},
};
use futures::future::join_all;

pub(super) async fn keeps_the_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let (first, second, third) = (events(&["a", "b", "a"]), events(&["c"]), events(&["b", "a"]));
    writer
        .commit(async |connection| {
            F::Store::append(store.tables(), connection, &first).await?;
            F::Store::append(store.tables(), connection, &second).await
        })
        .await?;
    writer.append(&third).await?;
    let rows = read_all(&store).await?;
    same(
        "ids in the order of the log",
        ids(&rows),
        ids_of(&[first, second, third].concat()),
    )?;
    let positions = positions(&rows);
    holds("positions grow", positions.is_sorted_by(|a, b| a < b), &positions)?;
    holds(
        "positions begin above START",
        positions.iter().all(|position| *position > 0),
        &positions,
    )
}

pub(super) async fn nothing_is_appended_by_an_empty_list<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?.append(&[]).await?;
    same("rows", ids(&read_all(&store).await?), ids_of(&[]))
}

/// More events than a statement can have bound values for, were each attribute bound by itself.
pub(super) async fn thousands_are_one_statement<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let many: Vec<NewEvent> = (0..5_000).map(|number| event(&format!("key-{number}"))).collect();
    Instance::new(&store, "writer")?.append(&many).await?;
    let rows = read_all(&store).await?;
    holds("5,000 events in their order", ids(&rows) == ids_of(&many), rows.len())
}

pub(super) async fn every_attribute_is_kept<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let wanted = full_message(0).envelope;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let mut given = NewEvent::untyped(ORDERS, wanted.event_type.clone())
        .with_key(text(&wanted.key))
        .with_source(text(&wanted.source))
        .with_subject(text(&wanted.subject))
        .with_time(wanted.time)
        .with_datacontenttype(text(&wanted.datacontenttype))
        .with_dataschema(text(&wanted.dataschema))
        .with_schemaversion(wanted.schemaversion)
        .with_correlation(wanted.correlationid.clone(), wanted.causationid.clone())
        .with_trace(text(&wanted.traceparent), wanted.tracestate.clone());
    if let Some(payload) = wanted.payload.clone() {
        given = given.with_payload(payload);
    }
    for (name, value) in headers() {
        given = given.with_header(name, value);
    }
    let id = given.id().to_string();
    Instance::new(&store, "writer")?.append(&[given]).await?;
    let rows = read_all(&store).await?;
    same("rows", rows.len(), 1)?;
    let found = rows[0].envelope.clone();
    same("origin of an event that was written here", found.origin, None::<Uuid>)?;
    same(
        "envelope",
        &found,
        &eventloom_core::Envelope {
            id,
            origin: None,
            ..wanted
        },
    )
}

pub(super) async fn what_is_not_given_stays_away<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let before = OffsetDateTime::now_utc() - time::Duration::hours(1);
    Instance::new(&store, "writer")?
        .append(&[NewEvent::untyped(ORDERS, "order.placed")])
        .await?;
    let rows = read_all(&store).await?;
    same("rows", rows.len(), 1)?;
    let found = &rows[0].envelope;
    let texts = [
        &found.key,
        &found.source,
        &found.subject,
        &found.datacontenttype,
        &found.dataschema,
    ];
    same("key, source, subject, datacontenttype, dataschema", texts, [&None; 5])?;
    let texts = [
        &found.correlationid,
        &found.causationid,
        &found.traceparent,
        &found.tracestate,
    ];
    same("correlation, causation, traceparent, tracestate", texts, [&None; 4])?;
    same("payload", found.payload.as_ref(), None::<&Payload>)?;
    same("headers", found.headers.len(), 0)?;
    same("schemaversion", found.schemaversion, 1)?;
    same(
        "topic and type",
        (found.topic.as_str(), found.event_type.as_str()),
        ("orders", "order.placed"),
    )?;
    let after = before + time::Duration::hours(2);
    holds(
        "the database's clock gives the time",
        before < found.time && found.time < after,
        found.time,
    )
}

pub(super) async fn payloads_are_kept_byte_for_byte<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let texts = [
        r#"{"a": 1 }"#,
        " {\"b\":2,\n\t\"a\" : [ 1,2 ] } \n",
        r#"{"a":1,"a":2}"#,
        r#"{"money":12345678901234567890.100,"exp":1E+2}"#,
        r#""grüße \u00fc \ud83d\ude00 😀 \/ é""#,
        "null",
        "[]",
        "0",
        r#""""#,
    ];
    let bytes = [(0..=255).collect(), Vec::new(), b"{\"not\": json".to_vec(), vec![0; 3]];
    let texts = texts.into_iter().map(|text| Payload::Json(text.to_owned()));
    let wanted: Vec<Payload> = texts.chain(bytes.into_iter().map(Payload::Binary)).collect();
    let given: Vec<NewEvent> = wanted
        .iter()
        .map(|payload| event("a").with_payload(payload.clone()))
        .collect();
    Instance::new(&store, "writer")?.append(&given).await?;
    let rows = read_all(&store).await?;
    same("rows", rows.len(), wanted.len())?;
    for (row, wanted) in rows.iter().zip(&wanted) {
        same("payload", row.envelope.payload.as_ref(), Some(wanted))?;
    }
    Ok(())
}

pub(super) async fn the_largest_payload_is_kept<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let bytes_max = store.limits().payload_bytes_max;
    let largest = vec![
        Payload::Json(format!("\"{}\"", "x".repeat(bytes_max - 2))),
        Payload::Binary(vec![7; bytes_max]),
    ];
    let given: Vec<NewEvent> = largest
        .iter()
        .map(|payload| event("a").with_payload(payload.clone()))
        .collect();
    Instance::new(&store, "writer")?.append(&given).await?;
    let rows = read_all(&store).await?;
    let found: Vec<Option<Payload>> = rows.into_iter().map(|row| row.envelope.payload).collect();
    let lengths: Vec<usize> = found.iter().flatten().map(|payload| payload.bytes().len()).collect();
    holds(
        "two payloads of the limit's size",
        found.into_iter().flatten().eq(largest),
        lengths,
    )
}

pub(super) async fn rolled_back_rows_never_appear<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let kept = events(&["a", "b", "c"]);
    writer.append(&kept[..1]).await?;
    let mut undone = writer.begin().await?;
    F::Store::append(store.tables(), &mut undone, &events(&["x", "x"])).await?;
    undone.rollback().await?;
    writer.append(&kept[1..2]).await?;
    let mut dropped = writer.begin().await?;
    F::Store::append(store.tables(), &mut dropped, &events(&["y"])).await?;
    drop(dropped);
    writer.append(&kept[2..]).await?;
    same("rows", ids(&read_quiet(&store).await?), ids_of(&kept))
}

pub(super) async fn publishers_at_once_all_arrive<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    let given: Vec<NewEvent> = (0..64).map(|number| event(&format!("key-{number}"))).collect();
    let publishing = given.iter().enumerate().map(|(number, event)| {
        let store = if number % 2 == 0 { &store } else { &other };
        store.publish_alone(event.clone())
    });
    for published in join_all(publishing).await {
        published?;
    }
    let (mut found, mut wanted) = (ids(&read_all(&store).await?), ids_of(&given));
    found.sort();
    wanted.sort();
    same("ids, each once", found, wanted)
}

pub(super) async fn one_publisher_keeps_its_order<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let given = events(&["a", "b", "a", "c"]);
    for event in &given {
        store.publish_alone(event.clone()).await?;
    }
    same("rows", ids(&read_all(&store).await?), ids_of(&given))
}

pub(super) async fn the_same_id_can_be_published_again<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let given = event("a");
    store.publish_alone(given.clone()).await?;
    store.publish_alone(given.clone()).await?;
    let found = ids(&read_all(&store).await?);
    holds(
        "it is in the log",
        !found.is_empty() && found.iter().all(|id| *id == given.id().to_string()),
        found,
    )
}

pub(super) async fn publishing_over_a_limit_is_refused<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let too_large = Payload::Binary(vec![0; store.limits().payload_bytes_max + 1]);
    let cases = [
        ("a payload over the limit", event("a").with_payload(too_large)),
        (
            "a key over the limit",
            event(&"k".repeat(store.limits().key_bytes_max + 1)),
        ),
        ("an empty type", NewEvent::untyped(ORDERS, "")),
        ("a NUL character", event("a\0b")),
    ];
    for (what, given) in cases {
        let published = store.publish_alone(given).await;
        refused(what, published, |error| matches!(error, PublishError::Refused(_)))?;
    }
    same("rows", ids(&read_all(&store).await?), ids_of(&[]))
}

/// The SQL contract: an INSERT of four columns from any language.
pub(super) async fn a_plain_insert_is_an_event<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let insert = r#"INSERT INTO {outbox} (topic, type, key, data)
                    VALUES ('orders', 'order.placed', 'order-17', '{"total": "12.50" }')"#;
    fixture.execute(&store, insert).await;
    fixture
        .execute(
            &store,
            "INSERT INTO {outbox} (topic, type) VALUES ('orders', 'order.placed')",
        )
        .await;
    let rows = read_all(&store).await?;
    same("rows", rows.len(), 2)?;
    let found = &rows[0].envelope;
    same(
        "payload",
        found.payload.clone(),
        Some(Payload::Json(r#"{"total": "12.50" }"#.to_owned())),
    )?;
    same("key", found.key.as_deref(), Some("order-17"))?;
    same("schemaversion", found.schemaversion, 1)?;
    let lanes = LaneCount::default();
    same("lane of the key", rows[0].lane, lanes.lane_of("order-17"))?;
    same(
        "lane of the id where there is no key",
        rows[1].lane,
        lanes.lane_of(&rows[1].envelope.id),
    )?;
    let given_ids = rows
        .iter()
        .map(|row| row.envelope.id.parse::<Uuid>())
        .collect::<Result<Vec<_>, _>>()?;
    holds(
        "the database gives each row its own id",
        given_ids[0] != given_ids[1],
        given_ids,
    )
}
