//! What the tables refuse, whoever writes.

use crate::folder::{Folder, append, event, read_all};
use eventloom_core::{
    Payload, Position, PublishError, Refusal, StoreErrorKind,
    ports::{Outbox, Store},
};
use eventloom_sqlite::Sqlite;

const ROW: &str = "INSERT INTO eventloom_outbox (topic, type, key, data) VALUES ('orders', 'order.placed', 'k', '{}')";

/// Runs it in a transaction that has published, and says what kind of refusal it was. The transaction is usable then.
async fn refused(store: &Sqlite, sql: &'static str) -> (StoreErrorKind, String) {
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[event("k")]).await;
    let before: i64 = sqlx::query_scalar("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    let error = sqlx::query(sql).execute(&mut *tx).await.expect_err(sql);
    let after: i64 = sqlx::query_scalar("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(before, after, "{sql}");
    tx.commit().await.unwrap();
    (Sqlite::kind_of(&error).unwrap(), error.to_string())
}

#[tokio::test]
async fn rows_are_facts() {
    let folder = Folder::new();
    let store = folder.store().await;
    for _ in 0..3 {
        sqlx::query(ROW).execute(store.pool()).await.unwrap();
    }
    let cases = [
        "UPDATE eventloom_outbox SET type = 'other'",
        "UPDATE eventloom_outbox SET position = position + 100",
        "DELETE FROM eventloom_outbox",
        "DELETE FROM eventloom_outbox WHERE position = 2",
        "INSERT OR REPLACE INTO eventloom_outbox (position, topic, type) VALUES (2, 'orders', 'other')",
        "REPLACE INTO eventloom_outbox (position, topic, type) VALUES (1, 'orders', 'other')",
        "INSERT INTO eventloom_outbox (position, topic, type) VALUES (0, 'orders', 'other')",
        "INSERT INTO eventloom_outbox (position, topic, type) VALUES (-5, 'orders', 'other')",
        "INSERT OR IGNORE INTO eventloom_outbox (position, topic, type) VALUES (-5, 'orders', 'other')",
    ];
    for sql in cases {
        let (kind, message) = refused(&store, sql).await;
        assert_eq!(kind, StoreErrorKind::Refused, "{sql}: {message}");
        assert!(message.contains("eventloom: "), "{message}");
    }
    // The place of a row that is there is refused by its uniqueness.
    let taken = "INSERT INTO eventloom_outbox (position, topic, type) VALUES (2, 'orders', 'other')";
    assert_eq!(refused(&store, taken).await.0, StoreErrorKind::Constraint);
    let rows = read_all(&store, Position::START).await;
    assert_eq!(
        rows.iter().map(|row| row.0).collect::<Vec<_>>(),
        (1..=13).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn rows_that_no_reader_could_use() {
    let folder = Folder::new();
    let store = folder.store().await;
    let cases = [
        (
            "topic",
            "INSERT INTO eventloom_outbox (topic, type) VALUES ('orders of today', 't')",
        ),
        ("topic", "INSERT INTO eventloom_outbox (topic, type) VALUES ('', 't')"),
        ("topic", "INSERT INTO eventloom_outbox (topic, type) VALUES ('ö', 't')"),
        (
            "topic",
            "INSERT INTO eventloom_outbox (topic, type) SELECT printf('%.250c', 'x'), 't'",
        ),
        ("topic", "INSERT INTO eventloom_outbox (type) VALUES ('t')"),
        (
            "type",
            "INSERT INTO eventloom_outbox (topic, type) VALUES ('orders', ' ')",
        ),
        ("type", "INSERT INTO eventloom_outbox (topic) VALUES ('orders')"),
        (
            "data",
            "INSERT INTO eventloom_outbox (topic, type, data, data_bytes) VALUES ('orders', 't', '{}', x'00')",
        ),
        (
            "data",
            "INSERT INTO eventloom_outbox (topic, type, data) VALUES ('orders', 't', '{\"a\":')",
        ),
        (
            "data",
            "INSERT INTO eventloom_outbox (topic, type, data) VALUES ('orders', 't', x'7b7d')",
        ),
        (
            "data_bytes",
            "INSERT INTO eventloom_outbox (topic, type, data_bytes) VALUES ('orders', 't', 'text')",
        ),
        (
            "headers",
            "INSERT INTO eventloom_outbox (topic, type, headers) VALUES ('orders', 't', '[]')",
        ),
        (
            "headers",
            "INSERT INTO eventloom_outbox (topic, type, headers) VALUES ('orders', 't', 'x')",
        ),
        (
            "id",
            "INSERT INTO eventloom_outbox (topic, type, id) VALUES ('orders', 't', 'order-17')",
        ),
        (
            "id",
            "INSERT INTO eventloom_outbox (topic, type, id) SELECT 'orders', 't', upper(id) FROM eventloom_outbox",
        ),
        (
            "time",
            "INSERT INTO eventloom_outbox (topic, type, time) VALUES ('orders', 't', '2026-01-01')",
        ),
        (
            "position",
            "INSERT INTO eventloom_outbox (position, topic, type) VALUES (9223372036854775807, 'orders', 't')",
        ),
        (
            "nul",
            "INSERT INTO eventloom_outbox (topic, type, key) VALUES ('orders', 't', 'a' || char(0) || 'b')",
        ),
    ];
    for (what, sql) in cases {
        let (kind, message) = refused(&store, sql).await;
        assert_eq!(kind, StoreErrorKind::Constraint, "{sql}: {message}");
        assert!(message.contains(what), "{what} is named: {message}");
    }
}

#[tokio::test]
async fn events_over_a_limit_are_refused_before_the_database_is_asked() {
    let folder = Folder::new();
    let store = folder.store().await;
    let large = event("k").with_payload(Payload::Json(format!("\"{}\"", "x".repeat(1 << 20))));
    let refused = store.publish_alone(large).await.unwrap_err();
    assert!(
        matches!(
            refused,
            PublishError::Refused(Refusal::PayloadTooLarge {
                bytes_max: 1_048_576,
                ..
            })
        ),
        "{refused}"
    );
    assert_eq!(read_all(&store, Position::START).await, []);
}
