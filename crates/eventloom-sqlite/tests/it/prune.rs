//! The pruner deletes what every reader has passed, and readers below it are told.

use crate::folder::{Folder, append, event, read_all};
use eventloom_core::{
    ConsumerName, OwnerId, Position,
    ports::{Leases, Log, Move, ReadError, ReadLimits, Readers, RegisterError, Start},
};
use eventloom_sqlite::Sqlite;
use std::time::Duration;

const ROWS: i64 = 100;

async fn filled(folder: &Folder) -> Sqlite {
    let store = folder.store().await;
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &(0..ROWS).map(|i| event(&format!("k{i}"))).collect::<Vec<_>>()).await;
    tx.commit().await.unwrap();
    store
}

async fn move_to(store: &Sqlite, reader: &ConsumerName, to: i64) {
    let owner = OwnerId::new("test", 1);
    let tenure = store
        .keep(reader, &owner, Duration::from_secs(60), &[], None)
        .await
        .unwrap();
    let moves: Vec<Move> = tenure
        .taken
        .iter()
        .map(|taken| Move {
            cursor: taken.cursor,
            from: taken.position,
            to: Position(to),
            batch_end: None,
            confirmed: None,
        })
        .collect();
    assert_eq!(moves.len(), 64);
    let mut tx = store.begin_write().await.unwrap();
    store.advance(&mut tx, reader, &moves).await.unwrap();
    tx.commit().await.unwrap();
    store.release(reader, &owner, &tenure.owned, true).await.unwrap();
}

#[tokio::test]
async fn only_what_all_have_passed_goes() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let nobody = store.prune(Duration::ZERO, 1000, None).await.unwrap();
    assert_eq!(
        (nobody.rows, nobody.more),
        (0, false),
        "without readers nothing is pruned"
    );
    let [fast, slow] = ["fast", "slow"].map(|name| ConsumerName::parse(name).unwrap());
    for reader in [&fast, &slow] {
        store.register(reader, Start::Earliest, None).await.unwrap();
    }
    move_to(&store, &fast, 80).await;
    assert_eq!(store.prune(Duration::ZERO, 1000, None).await.unwrap().rows, 0);
    move_to(&store, &slow, 50).await;
    let young = store.prune(Duration::from_secs(3600), 1000, None).await.unwrap();
    assert_eq!(
        (young.rows, young.pruned_to),
        (0, Position(0)),
        "rows are kept for a while"
    );

    let mut pruned = Vec::new();
    loop {
        let step = store.prune(Duration::ZERO, 20, None).await.unwrap();
        pruned.push((step.rows, step.pruned_to.0, step.more));
        if !step.more {
            break;
        }
    }
    assert_eq!(pruned, [(20, 20, true), (20, 40, true), (10, 50, false)]);
    assert_eq!(read_all(&store, Position(50)).await.len(), 50);
    let below = store.read_after(Position(49), ReadLimits::default()).await.unwrap_err();
    assert!(
        matches!(
            below,
            ReadError::Pruned {
                after: Position(49),
                pruned_to: Position(50)
            }
        ),
        "{below}"
    );
    let lane = eventloom_core::Lane(0);
    let below = store
        .read_lane(lane, Position(0), Position(100), ReadLimits::default())
        .await
        .unwrap_err();
    assert!(matches!(below, ReadError::Pruned { .. }), "{below}");

    let late = ConsumerName::parse("late").unwrap();
    let refused = store
        .register(&late, Start::After(Position(10)), None)
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            RegisterError::Pruned {
                asked: Position(10),
                pruned_to: Position(50)
            }
        ),
        "{refused}"
    );
    let registered = store.register(&late, Start::Earliest, None).await.unwrap();
    assert_eq!(
        (registered.created, registered.begins_after, registered.pruned_to),
        (true, Position(50), Position(50))
    );
    assert!(matches!(
        store.reset(&fast, Start::After(Position(1)), false, None).await,
        Err(RegisterError::Pruned { .. })
    ));
}

#[tokio::test]
async fn a_log_that_was_pruned_to_its_end_goes_on_where_it_was() {
    let folder = Folder::new();
    let store = filled(&folder).await;
    let reader = ConsumerName::parse("reader").unwrap();
    store.register(&reader, Start::Earliest, None).await.unwrap();
    move_to(&store, &reader, ROWS).await;
    assert_eq!(store.prune(Duration::ZERO, 1000, None).await.unwrap().rows, ROWS as u64);
    assert_eq!(store.horizon().await.unwrap().position, Position(ROWS));
    let page = store.read_after(Position(ROWS), ReadLimits::default()).await.unwrap();
    assert_eq!((page.rows.len(), page.scanned_to), (0, Position(ROWS)));
    let again = "INSERT INTO eventloom_outbox (position, topic, type) VALUES (7, 'orders', 't')";
    assert!(
        sqlx::query(again).execute(store.pool()).await.is_err(),
        "a place that was pruned is not given out again"
    );
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[event("k")]).await;
    tx.commit().await.unwrap();
    assert_eq!(read_all(&store, Position(ROWS)).await.len(), 1);
    // Nobody deletes after the pruner has.
    assert!(
        sqlx::query("DELETE FROM eventloom_outbox")
            .execute(store.pool())
            .await
            .is_err()
    );
}
