//! Pages: what they hold, and how far they say they have looked.

use crate::folder::{Folder, append, event};
use eventloom_core::{
    Lane, LaneCount, NewEvent, OffsetDateTime, Payload, Position,
    ports::{Log, Outbox, ReadLimits},
};
use eventloom_sqlite::Sqlite;
use std::time::Duration;

fn sized(key: &str, bytes: usize) -> NewEvent {
    event(key).with_payload(Payload::Json(format!("\"{}\"", "x".repeat(bytes - 2))))
}

async fn filled(folder: &Folder, events: impl IntoIterator<Item = NewEvent>) -> Sqlite {
    let store = folder.store().await;
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &events).await;
    tx.commit().await.unwrap();
    store
}

#[tokio::test]
async fn pages_end_at_their_limits_and_say_so() {
    let folder = Folder::new();
    let sizes = [100, 100, 5000, 100, 100];
    let store = filled(&folder, sizes.iter().map(|bytes| sized("k", *bytes))).await;
    let cases = [
        // after, rows_max, payload_bytes_max: rows, scanned_to
        (0, 1000, 1 << 20, 5, 5),
        (0, 2, 1 << 20, 2, 2),
        (0, 5, 1 << 20, 5, 5),
        (0, 1000, 1, 1, 1),
        (0, 1000, 200, 2, 2),
        (0, 1000, 201, 3, 3),
        (2, 1000, 200, 1, 3),
        (4, 1000, 1 << 20, 1, 5),
        (5, 1000, 1 << 20, 0, 5),
    ];
    for (after, rows_max, payload_bytes_max, rows, scanned_to) in cases {
        let page = store
            .read_after(
                Position(after),
                ReadLimits::default()
                    .rows_max(rows_max)
                    .payload_bytes_max(payload_bytes_max),
            )
            .await
            .unwrap();
        let found = (page.rows.len(), page.scanned_to.0, page.horizon.0);
        assert_eq!(
            found,
            (rows, scanned_to, 5),
            "after {after}, {rows_max} rows, {payload_bytes_max} bytes"
        );
    }
}

#[tokio::test]
async fn an_empty_log_has_an_honest_page() {
    let folder = Folder::new();
    let store = folder.store().await;
    let page = store.read_after(Position::START, ReadLimits::default()).await.unwrap();
    assert_eq!(
        (page.rows.len(), page.scanned_to, page.horizon),
        (0, Position::START, Position::START)
    );
    let status = store.log_status().await.unwrap();
    assert_eq!((status.head, status.pruned_to), (Position::START, Position::START));
    assert_eq!(status.identity.get_version_num(), 4);
}

#[tokio::test]
async fn a_lane_is_read_without_gap_however_it_is_cut() {
    let folder = Folder::new();
    let lanes = LaneCount::default();
    let store = filled(&folder, (0..3000).map(|i| event(&format!("k{}", i % 300)))).await;
    let all = store
        .read_after(Position::START, ReadLimits::default().rows_max(5000))
        .await
        .unwrap();
    for lane in [0, 13, 63].map(Lane) {
        let expected: Vec<i64> = all
            .rows
            .iter()
            .filter(|row| row.lane == lane)
            .map(|row| row.position.0)
            .collect();
        for (rows_max, payload_bytes_max) in [(1000, 1 << 20), (1, 1 << 20), (7, 1 << 20), (1000, 50)] {
            let (mut found, mut place) = (Vec::new(), Position::START);
            while place < Position(2500) {
                let limits = ReadLimits::default()
                    .rows_max(rows_max)
                    .payload_bytes_max(payload_bytes_max);
                let page = store.read_lane(lane, place, Position(2500), limits).await.unwrap();
                assert!(page.scanned_to > place && page.scanned_to <= Position(2500));
                assert!(
                    page.rows
                        .iter()
                        .all(|row| row.lane == lane && row.position <= page.scanned_to)
                );
                found.extend(page.rows.iter().map(|row| row.position.0));
                place = page.scanned_to;
            }
            let expected: Vec<i64> = expected.iter().copied().filter(|position| *position <= 2500).collect();
            assert_eq!(
                found, expected,
                "{lane} at {rows_max} rows and {payload_bytes_max} bytes"
            );
        }
    }
    assert_eq!(lanes.get(), 64);
}

#[tokio::test]
async fn a_lane_without_rows_is_looked_through_in_bounded_calls() {
    let folder = Folder::new();
    let lane_of_k = LaneCount::default().lane_of("k");
    let other = Lane((lane_of_k.0 + 1) % 64);
    let store = filled(&folder, []).await;
    let many = "INSERT INTO eventloom_outbox (topic, type, key) SELECT 'orders', 't', 'k' FROM ( \
                WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 70000) SELECT i FROM n)";
    sqlx::query(many).execute(store.pool()).await.unwrap();
    let horizon = store.horizon().await.unwrap().position;
    let first = store
        .read_lane(other, Position::START, horizon, ReadLimits::default())
        .await
        .unwrap();
    assert!(first.rows.is_empty() && first.scanned_to > Position(60_000) && first.scanned_to < horizon);
    let second = store
        .read_lane(other, first.scanned_to, horizon, ReadLimits::default())
        .await
        .unwrap();
    assert!(second.rows.is_empty() && second.scanned_to == horizon);
}

#[tokio::test]
async fn the_position_at_a_time_is_before_the_first_row_of_it() {
    let folder = Folder::new();
    let store = folder.store().await;
    let at = |second: i64| OffsetDateTime::from_unix_timestamp(second).unwrap();
    // Holes between positions, and several rows at one time.
    for (position, second) in [(3, 100), (4, 100), (10, 200), (11, 300), (500, 400)] {
        let insert = "INSERT INTO eventloom_outbox (position, topic, type, recorded_at) VALUES (?, 'orders', 't', ?)";
        sqlx::query(insert)
            .bind(position)
            .bind(second * 1_000_000)
            .execute(store.pool())
            .await
            .unwrap();
    }
    for (second, first) in [
        (0, Some(3)),
        (100, Some(3)),
        (101, Some(10)),
        (200, Some(10)),
        (400, Some(500)),
        (401, None),
    ] {
        let begins_after = store.position_at(at(second)).await.unwrap();
        let page = store.read_after(begins_after, ReadLimits::default()).await.unwrap();
        assert_eq!(
            page.rows.first().map(|row| row.position.0),
            first,
            "at {second}: after {begins_after}"
        );
    }
    store.publish_alone(event("k")).await.unwrap();
    let page = store
        .read_after(store.position_at(at(401)).await.unwrap(), ReadLimits::default())
        .await
        .unwrap();
    assert_eq!(page.rows.len(), 1);
    let later = OffsetDateTime::now_utc() + Duration::from_secs(3600);
    assert_eq!(
        store.position_at(later).await.unwrap(),
        store.horizon().await.unwrap().position
    );
}

/// A row is read in the lane that it says it has, or whoever reads lanes apart never sees it.
#[tokio::test]
async fn a_key_without_bytes_is_none() {
    let folder = Folder::new();
    let store = folder.store().await;
    let insert = "INSERT INTO eventloom_outbox (topic, type, key)
                  VALUES ('orders', 't', ''), ('orders', 't', x''), ('orders', 't', NULL), ('orders', 't', x'ff')";
    sqlx::raw_sql(insert).execute(store.pool()).await.unwrap();
    let all = store.read_after(Position::START, ReadLimits::default()).await.unwrap();
    assert_eq!(all.rows.len(), 4);
    for row in all.rows {
        let before = Position(row.position.0 - 1);
        let page = store
            .read_lane(row.lane, before, row.position, ReadLimits::default())
            .await;
        assert_eq!(page.unwrap().rows.len(), 1, "{row:?}");
    }
}
