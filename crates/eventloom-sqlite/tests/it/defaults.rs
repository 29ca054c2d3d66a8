//! An INSERT of four columns, from any language, is enough.

use crate::folder::Folder;
use eventloom_core::NewEvent;
use eventloom_core::{
    Headers, OffsetDateTime, Payload, Position, Uuid,
    ports::{Log, Outbox, ReadLimits},
};
use std::time::Duration;

#[tokio::test]
async fn four_columns_are_enough() {
    let folder = Folder::new();
    let store = folder.store().await;
    let insert = "INSERT INTO eventloom_outbox (topic, type, key, data) VALUES ('orders', 'order.placed', 'order-17', \
                  '{\"total\":  \"12.50\"}')";
    let before = OffsetDateTime::now_utc() - Duration::from_secs(1);
    for _ in 0..100 {
        sqlx::query(insert).execute(store.pool()).await.unwrap();
    }
    let page = store.read_after(Position::START, ReadLimits::default()).await.unwrap();
    assert_eq!(
        (page.rows.len(), page.scanned_to, page.horizon),
        (100, Position(100), Position(100))
    );
    for row in &page.rows {
        let envelope = &row.envelope;
        let id = Uuid::parse_str(&envelope.id).unwrap();
        assert_eq!((id.get_version_num(), id.to_string()), (4, envelope.id.clone()));
        assert!(matches!(id.as_bytes()[8], 0x80..=0xbf), "the variant of RFC 9562");
        assert_eq!(
            (envelope.topic.as_str(), envelope.event_type.as_str()),
            ("orders", "order.placed")
        );
        assert_eq!(
            envelope.payload,
            Some(Payload::Json("{\"total\":  \"12.50\"}".to_owned())),
            "byte for byte"
        );
        assert_eq!(row.lane.0, 13);
        assert_eq!(envelope.schemaversion, 1);
        assert_eq!(envelope.headers, Headers::new());
        assert!(envelope.time >= before && envelope.time <= OffsetDateTime::now_utc() + Duration::from_secs(1));
        let none = [
            &envelope.source,
            &envelope.subject,
            &envelope.datacontenttype,
            &envelope.correlationid,
        ];
        assert!(none.iter().all(|attribute| attribute.is_none()) && envelope.origin.is_none());
    }
    let ids: std::collections::HashSet<_> = page.rows.iter().map(|row| &row.envelope.id).collect();
    assert_eq!(ids.len(), 100);
}

#[tokio::test]
async fn every_attribute_comes_back_as_it_was() {
    let folder = Folder::new();
    let store = folder.store().await;
    let time = OffsetDateTime::from_unix_timestamp_nanos(1_700_000_000_123_456_000).unwrap();
    let full = NewEvent::untyped(crate::folder::TOPIC, "order.placed")
        .with_key("Schlüssel 17")
        .with_source("/shop")
        .with_subject("order 17")
        .with_time(time)
        .with_payload(Payload::Binary(vec![0, 255, 1, 0]))
        .with_datacontenttype("application/x-thing")
        .with_dataschema("https://example.com/schema")
        .with_schemaversion(7)
        .with_correlation(Some("c".to_owned()), Some("d".to_owned()))
        .with_trace(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            Some("a=b".to_owned()),
        )
        .with_header("tenant", "häuser \"&\" <co>");
    store.publish_alone(full.clone()).await.unwrap();
    let page = store.read_after(Position::START, ReadLimits::default()).await.unwrap();
    let envelope = &page.rows[0].envelope;
    assert_eq!(envelope.id, full.id().to_string());
    assert_eq!(envelope.key.as_deref(), full.key());
    assert_eq!(envelope.source.as_deref(), full.source());
    assert_eq!(envelope.subject.as_deref(), full.subject());
    assert_eq!(envelope.time, time);
    assert_eq!(envelope.payload.as_ref(), full.payload());
    assert_eq!(envelope.datacontenttype.as_deref(), full.datacontenttype());
    assert_eq!(envelope.dataschema.as_deref(), full.dataschema());
    assert_eq!(envelope.schemaversion, 7);
    assert_eq!(envelope.correlationid.as_deref(), full.correlationid());
    assert_eq!(envelope.causationid.as_deref(), full.causationid());
    assert_eq!(envelope.traceparent.as_deref(), full.traceparent());
    assert_eq!(envelope.tracestate.as_deref(), full.tracestate());
    assert_eq!(&envelope.headers, full.headers());
}

/// A row of another program that is no text at all must not stop the log.
#[tokio::test]
async fn rows_that_are_no_utf8_are_read_all_the_same() {
    let folder = Folder::new();
    let store = folder.store().await;
    let insert = "INSERT INTO eventloom_outbox (topic, type, key, subject, data) \
                  VALUES ('orders', CAST(x'ff41' AS TEXT), CAST(x'fe' AS TEXT), CAST(x'c3' AS TEXT), CAST(x'22ff22' AS TEXT))";
    sqlx::query(insert).execute(store.pool()).await.unwrap();
    let page = store.read_after(Position::START, ReadLimits::default()).await.unwrap();
    let envelope = &page.rows[0].envelope;
    assert_eq!(envelope.event_type, "\u{fffd}A");
    assert_eq!(
        envelope.payload,
        Some(Payload::Binary(vec![0x22, 0xff, 0x22])),
        "the raw bytes"
    );
    let lane = store
        .read_lane(page.rows[0].lane, Position::START, page.horizon, ReadLimits::default())
        .await
        .unwrap();
    assert_eq!(lane.rows.len(), 1, "its lane is the same for every reader");
}
