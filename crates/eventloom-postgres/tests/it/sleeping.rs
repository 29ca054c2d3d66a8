//! Nobody sleeps through a commit, and nobody pays for sleepers who are gone.

use crate::servers::{Database, INSERT, PATIENCE, event, for_each_server, number, run, until};
use anyhow::Result;
use eventloom_core::{
    Position,
    ports::{Log, Outbox, ReadLimits, Store},
};
use eventloom_postgres::Postgres;
use futures::future::{join_all, try_join_all};
use sqlx::{Connection, postgres::PgListener};
use std::time::{Duration, Instant};

/// Longer than any of these tests may take: whoever returns after that was not woken.
const AT_MOST: Duration = Duration::from_secs(60);
/// Far above a notification's way, far below a fallback.
const PROMPTLY: Duration = Duration::from_secs(5);

async fn head(store: &Postgres) -> Result<Position> {
    Ok(store.horizon().await?.handed_out)
}

/// As a reader does: again until there is a row.
async fn sleep_until_a_row(store: &Postgres, seen: Position) -> Result<Duration> {
    let begun = Instant::now();
    while store.read_after(seen, ReadLimits::default()).await?.rows.is_empty() {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "slept through a commit");
        store.doze(seen, AT_MOST).await?;
    }
    Ok(begun.elapsed())
}

/// That somebody listens: the condition under which sleeping has begun.
async fn listeners(database: &Database, count: i64) -> Result<()> {
    let mut connection = database.connect().await?;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
    until("all listen", async || Ok(number(&mut connection, sql).await? == count)).await
}

/// Three processes share one request; each is woken by one commit.
#[test]
fn a_commit_wakes_every_sleeper() {
    for_each_server(async |database| {
        let stores = try_join_all((0..3).map(|_| database.store(2))).await?;
        let seen = head(&stores[0]).await?;
        let sleepers = join_all(stores.iter().map(|store| sleep_until_a_row(store, seen)));
        let writer = async {
            listeners(&database, 3).await?;
            let mut connection = database.connect().await?;
            let begun = Instant::now();
            run(&mut connection, INSERT).await?;
            Ok::<_, anyhow::Error>(begun)
        };
        let begun = Instant::now();
        let (slept, committed) = futures::future::join(sleepers, writer).await;
        let committed_after = committed?.duration_since(begun);
        for slept in slept {
            let slept = slept?;
            assert!(
                slept < committed_after + PROMPTLY,
                "slept {slept:?}, committed after {committed_after:?}"
            );
        }
        Ok(())
    });
}

/// Many sleepers on one store, one connection that listens.
#[test]
fn one_ear_hears_for_all_of_a_process() {
    for_each_server(async |database| {
        let store = database.store(4).await?;
        let seen = head(&store).await?;
        let sleepers = join_all((0..5).map(|_| sleep_until_a_row(&store, seen)));
        let writer = async {
            listeners(&database, 1).await?;
            run(&mut database.connect().await?, INSERT).await?;
            Ok::<_, anyhow::Error>(())
        };
        let (slept, written) = futures::future::join(sleepers, writer).await;
        written?;
        for slept in slept {
            slept?;
        }
        let mut connection = database.connect().await?;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()";
        assert_eq!(number(&mut connection, sql).await?, 1);
        Ok(())
    });
}

/// It has locked before anybody asked to be notified, so it will not notify: whoever slept now would sleep through it.
#[test]
fn a_writer_in_flight_keeps_readers_awake() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let seen = head(&store).await?;
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        let begun = Instant::now();
        for _ in 0..5 {
            store.doze(seen, AT_MOST).await?;
        }
        assert!(
            begun.elapsed() < PROMPTLY,
            "it paces, and looks again: {:?}",
            begun.elapsed()
        );
        let (slept, committed) = futures::future::join(sleep_until_a_row(&store, seen), tx.commit()).await;
        committed?;
        assert!(slept? < PROMPTLY);
        Ok(())
    });
}

/// Commits at every moment of falling asleep.
#[test]
fn no_commit_is_slept_through() {
    for_each_server(async |database| {
        let (reader, writer) = (database.store(2).await?, database.store(2).await?);
        for round in 0..60_u64 {
            let seen = head(&reader).await?;
            let publish = async {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..round * 100 + 1))).await; // pacing: the race itself
                writer.publish_alone(event("k")).await
            };
            let (slept, published) = futures::future::join(sleep_until_a_row(&reader, seen), publish).await;
            published?;
            assert!(slept? < PROMPTLY, "round {round}");
        }
        Ok(())
    });
}

/// The request dies with the last sleeper: commits are free again a second later.
#[test]
fn writers_notify_only_while_somebody_sleeps() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let seen = head(&store).await?;
        store.doze(seen, Duration::from_millis(1)).await?;
        let mut connection = database.connect().await?;
        let asleep = "SELECT (pg_sequence_last_value('eventloom.outbox_asleep')
                               > extract(epoch FROM clock_timestamp()) * 1000)::int::bigint";
        assert_eq!(number(&mut connection, asleep).await?, 1);
        until(
            "nobody sleeps",
            async || Ok(number(&mut connection, asleep).await? == 0),
        )
        .await?;
        let mut listener = PgListener::connect_with(&database.pool(1).await?).await?;
        listener.listen("eventloom_outbox").await?;
        run(&mut connection, INSERT).await?;
        run(&mut connection, "NOTIFY eventloom_outbox, 'of the test'").await?;
        assert_eq!(
            listener.recv().await?.payload(),
            "of the test",
            "the insert before it has notified nobody"
        );
        Ok(())
    });
}

/// A rolled-back transaction wakes nobody for ever, and its hole is passed.
#[test]
fn a_hole_is_passed() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        tx.rollback().await?;
        let page = store.read_after(Position::START, ReadLimits::default()).await?;
        assert!(page.rows.is_empty());
        assert_eq!(page.scanned_to, head(&store).await?);
        Ok(())
    });
}

/// Without a connection that listens: behind a pooler.
#[test]
fn a_pooled_reader_polls() {
    for_each_server(async |database| {
        let store = Postgres::builder(database.pool(2).await?).pooled().open().await?;
        assert!(store.tables() != &eventloom_postgres::Tables::default());
        let seen = head(&store).await?;
        let publish = async { store.publish_alone(event("k")).await };
        let (slept, published) = futures::future::join(sleep_until_a_row(&store, seen), publish).await;
        published?;
        assert!(slept? < PROMPTLY);
        listeners(&database, 0).await
    });
}

/// The listening connection is ended while somebody sleeps on it.
#[test]
fn a_lost_ear_is_replaced() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let seen = head(&store).await?;
        let trouble = async {
            listeners(&database, 1).await?;
            let mut connection = database.connect().await?;
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE query LIKE 'LISTEN%' AND datname = current_database()";
            assert_eq!(number(&mut connection, sql).await?, 1);
            listeners(&database, 1).await?;
            run(&mut connection, INSERT).await?;
            Ok::<_, anyhow::Error>(())
        };
        let (slept, trouble) = futures::future::join(sleep_until_a_row(&store, seen), trouble).await;
        trouble?;
        slept?;
        Ok(())
    });
}
