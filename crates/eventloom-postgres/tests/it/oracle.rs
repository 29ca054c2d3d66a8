//! The log oracle: hostile writers, and readers who must deliver exactly what was committed, in order.
//!
//! `EVENTLOOM_ORACLE_SECONDS` runs it for longer. The two broken readers beside the good ones prove that the oracle sees
//! what it is there to see: each must be caught, or the run says nothing.

use crate::servers::{Database, for_each_server, number, run, until};
use anyhow::Result;
use eventloom_core::{
    NewEvent, Position, Topic,
    ports::{Log, Outbox, ReadLimits},
};
use eventloom_postgres::{Postgres, Tables};
use futures::future::{join_all, try_join_all};
use sqlx::{Connection, PgConnection, Row, postgres::PgConnectOptions};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

const WRITERS: usize = 16;
/// Runs until both broken readers were caught.
const RUNS_MAX: usize = 5;

const NAIVE: &str = "SELECT position FROM eventloom.outbox WHERE position > $1 ORDER BY position LIMIT 500";
const IN_ONE_STATEMENT: &str = "
    WITH h AS MATERIALIZED (SELECT horizon FROM eventloom.outbox_horizon())
    SELECT o.position FROM h JOIN eventloom.outbox o ON o.position > $1 AND o.position <= h.horizon
     ORDER BY o.position LIMIT 500";

fn seconds() -> u64 {
    std::env::var("EVENTLOOM_ORACLE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(6)
}

#[derive(Default)]
struct Run {
    /// Writers stop.
    over: AtomicBool,
    /// Readers stop when they have caught up.
    closing: AtomicBool,
    acknowledged: AtomicUsize,
}

impl Run {
    fn over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }
}

async fn pause(micros_max: u64) {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..micros_max))).await; // pacing: hostile delays of writers
}

/// One transaction of a hostile writer. `Ok` counts the rows that were acknowledged.
async fn write(connection: &mut PgConnection) -> Result<usize, sqlx::Error> {
    let row = format!(
        "INSERT INTO eventloom.outbox (topic, type, key) VALUES ('orders', 'order.placed', 'k{}')",
        fastrand::u32(0..500)
    );
    match fastrand::u32(0..10) {
        0 => {
            run(connection, &row).await?;
            return Ok(1);
        }
        1 => {
            let mut copy = connection
                .copy_in_raw("COPY eventloom.outbox (topic, type, key) FROM STDIN")
                .await?;
            copy.send("orders\tcopied\ta\norders\tcopied\tb\n".as_bytes()).await?;
            pause(3000).await;
            copy.finish().await?;
            return Ok(2);
        }
        _ => {}
    }
    let mut rows = 0;
    let mut tx = connection.begin().await?;
    for _ in 0..fastrand::u32(1..4) {
        match fastrand::u32(0..4) {
            0 => {
                run(&mut tx, "SAVEPOINT undone").await?;
                run(&mut tx, &row).await?;
                pause(1000).await;
                run(&mut tx, "ROLLBACK TO SAVEPOINT undone").await?;
            }
            1 => {
                let events = [(); 3].map(|()| NewEvent::untyped(Topic::new("orders"), "order.placed").with_key("k"));
                let published = Postgres::append(&Tables::default(), &mut tx, &events).await;
                published.map_err(|error| sqlx::Error::Protocol(error.to_string()))?;
                rows += 3;
            }
            _ => {
                run(&mut tx, &row).await?;
                rows += 1;
            }
        }
        pause(4000).await;
    }
    if fastrand::u32(0..6) == 0 {
        tx.rollback().await?;
        return Ok(0);
    }
    tx.commit().await?;
    Ok(rows)
}

async fn writer(options: PgConnectOptions, state: Arc<Run>) -> Result<()> {
    let options = options.application_name("oracle writer");
    let mut connection = PgConnection::connect_with(&options).await?;
    while !state.over() {
        match write(&mut connection).await {
            Ok(rows) => drop(state.acknowledged.fetch_add(rows, Ordering::SeqCst)),
            // Its backend was ended.
            Err(_) => connection = PgConnection::connect_with(&options).await?,
        }
    }
    Ok(())
}

async fn terminator(database: Database, state: Arc<Run>) -> Result<()> {
    let mut connection = database.connect().await?;
    while !state.over() {
        pause(60_000).await;
        let one = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
            WHERE application_name = 'oracle writer' AND datname = current_database() ORDER BY random() LIMIT 1) one";
        number(&mut connection, one).await?;
    }
    Ok(())
}

/// Follows the log with our own reader; every now and then another process goes on from its cursor.
async fn reader(database: Database, state: Arc<Run>, delivered: Arc<AtomicUsize>) -> Result<Vec<i64>> {
    let mut seen = Vec::new();
    let mut cursor = Position::START;
    let mut store = database.store(2).await?;
    loop {
        let closing = state.closing();
        if fastrand::u32(0..200) == 0 {
            store = database.store(2).await?;
        }
        let limits = ReadLimits::default().rows_max(fastrand::u32(1..500));
        let page = store.read_after(cursor, limits).await?;
        seen.extend(page.rows.iter().map(|row| row.position.0));
        delivered.store(seen.len(), Ordering::SeqCst);
        cursor = page.scanned_to;
        if page.rows.is_empty() {
            if closing {
                return Ok(seen);
            }
            store.doze(cursor, Duration::from_millis(20)).await?;
        }
    }
}

/// Follows the log as others do, with the query that they ship.
async fn broken_reader(database: Database, state: Arc<Run>, sql: &'static str) -> Result<Vec<i64>> {
    let mut connection = database.connect().await?;
    let mut seen: Vec<i64> = Vec::new();
    loop {
        let closing = state.closing();
        let last = seen.last().copied().unwrap_or_default();
        let rows = sqlx::query(sql).bind(last).fetch_all(&mut connection).await?;
        seen.extend(rows.iter().map(|row| row.get::<i64, _>(0)));
        if rows.is_empty() && closing {
            return Ok(seen);
        }
        tokio::task::yield_now().await;
    }
}

/// A transaction that has written and stands idle, in another database of the same server.
async fn idle_elsewhere(database: &Database) -> Result<(PgConnection, Database)> {
    let direct = database.direct();
    let elsewhere = Database::create(&direct, &direct).await?;
    let mut connection = elsewhere.connect().await?;
    run(
        &mut connection,
        "CREATE TABLE busy (n int); BEGIN; INSERT INTO busy VALUES (1)",
    )
    .await?;
    Ok((connection, elsewhere))
}

/// One run; how many rows the broken readers lost.
async fn oracle(database: &Database) -> Result<[usize; 2]> {
    let state = Arc::new(Run::default());
    let delivered = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
    let (idle, elsewhere) = idle_elsewhere(database).await?;
    let good = delivered
        .clone()
        .map(|delivered| tokio::spawn(reader(database.clone(), state.clone(), delivered)));
    let broken = [NAIVE, IN_ONE_STATEMENT].map(|sql| tokio::spawn(broken_reader(database.clone(), state.clone(), sql)));
    let writers = (0..WRITERS).map(|_| tokio::spawn(writer(database.direct(), state.clone())));
    let writers: Vec<_> = writers.collect();
    let terminator = tokio::spawn(terminator(database.clone(), state.clone()));
    tokio::time::sleep(Duration::from_secs(seconds())).await; // pacing: the length of the run
    state.over.store(true, Ordering::SeqCst);
    for ended in join_all(writers).await {
        ended??;
    }
    terminator.await??;

    let mut connection = database.connect().await?;
    let committed: Vec<i64> = sqlx::query_scalar("SELECT position FROM eventloom.outbox ORDER BY position")
        .fetch_all(&mut connection)
        .await?;
    let acknowledged = state.acknowledged.load(Ordering::SeqCst);
    assert!(
        committed.len() >= acknowledged && acknowledged > 1000,
        "{} of {acknowledged}",
        committed.len()
    );
    let most = committed.len() * 95 / 100;
    until("95 % are delivered beside the idle transaction", async || {
        Ok(delivered
            .iter()
            .all(|delivered| delivered.load(Ordering::SeqCst) >= most))
    })
    .await?;
    drop(idle);
    elsewhere.drop().await?;
    state.closing.store(true, Ordering::SeqCst);

    for reader in try_join_all(good).await? {
        let seen = reader?;
        assert!(seen.is_sorted_by(|one, next| one < next), "out of order or twice");
        let missing: BTreeSet<_> = committed.iter().collect::<BTreeSet<_>>();
        let missing: Vec<_> = missing.difference(&seen.iter().collect()).copied().collect();
        assert!(
            missing.is_empty(),
            "{} of {} rows were lost: {missing:?}",
            missing.len(),
            committed.len()
        );
        assert_eq!(seen.len(), committed.len(), "rows that were never committed");
    }
    lanes_hold_the_same(database, &committed).await?;
    let lost = try_join_all(broken)
        .await?
        .into_iter()
        .map(|seen| Ok(committed.len() - seen?.len()));
    let lost: Vec<usize> = lost.collect::<Result<_>>()?;
    println!(
        "{} committed, lost: naive {}, in one statement {}",
        committed.len(),
        lost[0],
        lost[1]
    );
    Ok([lost[0], lost[1]])
}

/// Lane by lane, lanes without rows too.
async fn lanes_hold_the_same(database: &Database, committed: &[i64]) -> Result<()> {
    let store = database.store(1).await?;
    let horizon = store.horizon().await?.position;
    let mut seen = Vec::new();
    for lane in eventloom_core::LaneCount::default().all() {
        let mut cursor = Position::START;
        while cursor < horizon {
            let limits = ReadLimits::default().rows_max(300);
            let page = store.read_lane(lane, cursor, horizon, limits).await?;
            assert!(page.rows.iter().all(|row| row.lane == lane));
            seen.extend(page.rows.iter().map(|row| row.position.0));
            cursor = page.scanned_to;
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, committed);
    Ok(())
}

#[test]
fn what_is_committed_is_delivered_once_in_order() {
    for_each_server(async |database| {
        let mut lost = [0, 0];
        for _ in 0..RUNS_MAX {
            // Each run begins with an empty log, or its readers would first read that of the one before.
            let mut connection = database.connect().await?;
            run(&mut connection, "DROP SCHEMA eventloom CASCADE").await?;
            eventloom_postgres::migrate(&database.pool(1).await?, Default::default()).await?;
            let caught = oracle(&database).await?;
            lost = [lost[0] + caught[0], lost[1] + caught[1]];
            if lost.iter().all(|lost| *lost > 0) {
                return Ok(());
            }
        }
        anyhow::bail!("the oracle did not catch the broken readers: {lost:?}")
    });
}
