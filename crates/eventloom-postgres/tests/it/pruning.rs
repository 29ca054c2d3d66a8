//! Pruning against whoever registers, reads or rolls back meanwhile.

use crate::servers::{Database, INSERT, PATIENCE, consumer, for_each_server, number, run, until};
use anyhow::Result;
use eventloom_core::{
    OwnerId, Position,
    ports::{Leases, Log, Move, Outbox, ReadError, ReadLimits, Readers, RegisterError, Registration, Start, Store},
};
use eventloom_postgres::Postgres;
use sqlx::{Connection, PgConnection};
use std::time::{Duration, Instant};

const ROWS: &str = "INSERT INTO eventloom.outbox (topic, type, key)
    SELECT 'orders', 'order.placed', n::text FROM generate_series(1, 200) n";

async fn prune(store: &Postgres) -> Result<eventloom_core::ports::Pruned> {
    Ok(store.prune(Duration::ZERO, 1000, None).await?)
}

/// Moves every cursor of a reader to the head.
async fn pass_all(store: &Postgres, reader: &str) -> Result<()> {
    let (reader, owner) = (consumer(reader), OwnerId::new("host", 1));
    let lease = Duration::from_secs(10);
    let tenure = store.keep(&reader, &owner, lease, &[], None).await?;
    let to = store.horizon().await?.position;
    let from = tenure.taken.iter().map(|taken| Move {
        cursor: taken.cursor,
        from: taken.position,
        to,
        batch_end: None,
        confirmed: None,
    });
    let moves: Vec<Move> = from.collect();
    let scope = eventloom_core::ports::Scope {
        reader: &reader,
        owner: &owner,
        limit: lease,
    };
    let mut tx = store.begin(scope).await?;
    store.advance(&mut tx, &reader, &moves).await?;
    eventloom_core::ports::Transaction::commit(tx).await?;
    Ok(store.release(&reader, &owner, &tenure.owned, true).await?)
}

#[test]
fn it_goes_as_far_as_the_slowest_reader() {
    for_each_server(async |database| {
        let (store, mut connection) = (database.store(2).await?, database.connect().await?);
        run(&mut connection, ROWS).await?;
        assert_eq!(prune(&store).await?.rows, 0, "no reader, no pruning");
        store.register(&consumer("fast"), Start::Earliest, None).await?;
        store.register(&consumer("slow"), Start::Earliest, None).await?;
        pass_all(&store, "fast").await?;
        assert_eq!(prune(&store).await?.rows, 0);
        pass_all(&store, "slow").await?;
        let pruned = store.prune(Duration::ZERO, 150, None).await?;
        assert_eq!((pruned.rows, pruned.more), (150, true));
        let pruned = store.prune(Duration::ZERO, 150, None).await?;
        assert_eq!((pruned.rows, pruned.more), (50, false));
        assert_eq!(store.prune(Duration::ZERO, 150, None).await?.rows, 0);
        let refused = store.read_after(Position(1), ReadLimits::default()).await;
        assert!(matches!(refused, Err(ReadError::Pruned { .. })), "{refused:?}");
        let refused = store.register(&consumer("late"), Start::After(Position(7)), None).await;
        assert!(matches!(refused, Err(RegisterError::Pruned { .. })), "{refused:?}");
        let late = store.register(&consumer("late"), Start::Earliest, None).await?;
        assert_eq!(late.begins_after, late.pruned_to, "it is told what is gone");
        Ok(())
    });
}

async fn waits_for_a_lock(database: &Database) -> Result<()> {
    let mut connection = database.connect().await?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("somebody waits for the log's row", async || {
        Ok(number(&mut connection, sql).await? == 1)
    })
    .await
}

/// The pruner has the row, a group registers and waits: it begins where pruning ended.
#[test]
fn who_registers_during_pruning_begins_behind_it() {
    for_each_server(async |database| {
        let (store, mut connection) = (database.store(3).await?, database.connect().await?);
        run(&mut connection, ROWS).await?;
        let mut pruner = connection.begin().await?;
        run(
            &mut pruner,
            "SELECT FROM eventloom.logs WHERE name = 'outbox' FOR UPDATE",
        )
        .await?;
        let name = consumer("late");
        let registering = store.register(&name, Start::Earliest, None);
        let pruning = async {
            waits_for_a_lock(&database).await?;
            run(&mut pruner, "UPDATE eventloom.logs SET pruned_to = 100").await?;
            Ok::<_, anyhow::Error>(pruner.commit().await?)
        };
        let (registered, pruned) = futures::future::join(registering, pruning).await;
        pruned?;
        let expected = Registration::new(true, Position(100), Position(100));
        assert_eq!(registered?, expected);
        Ok(())
    });
}

/// A group that registers has the row, the pruner comes: it passes by, and the next time it sees the group.
#[test]
fn who_registers_first_is_not_pruned_away() {
    for_each_server(async |database| {
        let (store, mut connection) = (database.store(3).await?, database.connect().await?);
        run(&mut connection, ROWS).await?;
        store.register(&consumer("fast"), Start::Latest, None).await?;
        let mut group = connection.begin().await?;
        run(
            &mut group,
            "SELECT FROM eventloom.logs WHERE name = 'outbox' FOR UPDATE",
        )
        .await?;
        run(
            &mut group,
            "INSERT INTO eventloom.readers (name) VALUES ('early');
             INSERT INTO eventloom.cursors (reader, lane, position) SELECT 'early', n, 50 FROM generate_series(0, 63) n",
        )
        .await?;
        let pruned = prune(&store).await?;
        assert_eq!((pruned.rows, pruned.more), (0, false), "another one has the row");
        group.commit().await?;
        let pruned = prune(&store).await?;
        assert_eq!(pruned.pruned_to, Position(50));
        Ok(())
    });
}

/// A group that registers at the earliest while pruning runs as fast as it can finds every row from where it begins.
#[test]
fn registering_and_pruning_leave_no_gap() {
    for_each_server(async |database| {
        let (store, other) = (database.store(3).await?, database.store(3).await?);
        let mut connection = database.connect().await?;
        store.register(&consumer("fast"), Start::Latest, None).await?;
        let begun = Instant::now();
        for round in 0..25 {
            run(&mut connection, ROWS).await?;
            pass_all(&store, "fast").await?;
            let name = consumer(&format!("late{round}"));
            let pruning = async {
                while store.prune(Duration::ZERO, 20, None).await?.more {}
                Ok::<_, anyhow::Error>(())
            };
            let (registered, pruned) =
                futures::future::join(other.register(&name, Start::Earliest, None), pruning).await;
            pruned?;
            let begins_after = registered?.begins_after;
            let limits = ReadLimits::default().rows_max(100_000);
            let page = other.read_after(begins_after, limits).await?;
            let there = format!("SELECT count(*) FROM eventloom.outbox WHERE position > {begins_after}");
            assert_eq!(page.rows.len() as i64, number(&mut connection, &there).await?);
            // Only one writer, and nothing was rolled back: positions have no holes after the one that a migration burns.
            if let Some(first) = page.rows.first() {
                assert_eq!(first.position.0, begins_after.0.max(1) + 1, "round {round}");
            }
            eventloom_core::ports::Readers::drop_reader(&other, &name).await?;
            anyhow::ensure!(begun.elapsed() < PATIENCE, "too slow");
        }
        Ok(())
    });
}

/// A row in flight below every cursor (a reader that began at the latest) is not left behind as garbage.
#[test]
fn it_never_goes_above_the_horizon() {
    for_each_server(async |database| {
        let (store, mut connection) = (database.store(2).await?, database.connect().await?);
        let mut writer = connection.begin().await?;
        run(&mut writer, INSERT).await?;
        let mut other: PgConnection = database.connect().await?;
        run(&mut other, ROWS).await?;
        store.register(&consumer("latest"), Start::Latest, None).await?;
        assert_eq!(prune(&store).await?.rows, 0);
        writer.commit().await?;
        assert_eq!(prune(&store).await?.rows, 201);
        assert_eq!(number(&mut other, "SELECT count(*) FROM eventloom.outbox").await?, 0);
        store.publish_alone(crate::servers::event("k")).await?;
        Ok(())
    });
}

/// A transaction that deletes millions of rows keeps vacuum away from every table for minutes, and is for nothing when it is
/// ended.
#[test]
fn an_inbox_is_deleted_piece_by_piece() {
    const HANDLED: &str = "INSERT INTO eventloom.inbox (consumer, id, handled_at)
        SELECT 'billing', n::text, now() FROM generate_series(1, 12000) n";
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let reader = consumer("billing");
        store.register(&reader, Start::Earliest, None).await?;
        let mut connection = database.connect().await?;
        let guard = "CREATE FUNCTION at_most() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF (SELECT count(*) FROM old_rows) > 5000 THEN RAISE EXCEPTION 'too many'; END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER at_most AFTER DELETE ON eventloom.inbox REFERENCING OLD TABLE AS old_rows
                FOR EACH STATEMENT EXECUTE FUNCTION at_most()";
        run(&mut connection, guard).await?;
        let left = "SELECT count(*) FROM eventloom.inbox";
        run(&mut connection, HANDLED).await?;
        store.reset(&reader, Start::Earliest, true, None).await?;
        assert_eq!(number(&mut connection, left).await?, 0, "after a reset");
        run(&mut connection, HANDLED).await?;
        assert!(store.drop_reader(&reader).await?);
        assert_eq!(number(&mut connection, left).await?, 0, "after a drop");
        Ok(())
    });
}
