//! Stand-alone publishing on SQLite, against one transaction a row by hand on one connection. Both flush at each commit.
//!
//! The twin has the columns of the outbox and its primary key, and no checks.

use crate::{
    Bench,
    figure::{Aim, Figure, Sample},
    file::{Disk, ScratchFile},
    rounds::alternate,
};
use anyhow::Result;
use eventloom::{Event, Publish, Topic};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::{
    ConnectOptions, Connection, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use std::{borrow::Cow, time::Instant};
use tokio::sync::Mutex;
use uuid::Uuid;

pub(crate) const NAME: &str = "publish-sqlite";
pub(crate) const ABOUT: &str = "stand-alone store.publish on SQLite, against one transaction a row by hand";

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: i64,
    note: String,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.customer))
    }
}

const TWIN: &str = "CREATE TABLE twin (
    position INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, topic TEXT NOT NULL, type TEXT NOT NULL, key TEXT,
    source TEXT, subject TEXT, time INTEGER NOT NULL DEFAULT (unixepoch()), data TEXT, data_bytes BLOB,
    datacontenttype TEXT, dataschema TEXT, schemaversion INTEGER NOT NULL DEFAULT 1, correlationid TEXT, causationid TEXT,
    traceparent TEXT, tracestate TEXT, headers TEXT, origin TEXT, recorded_at INTEGER NOT NULL DEFAULT (unixepoch()))";
const INSERT: &str = "INSERT INTO twin (id, topic, type, key, data, schemaversion) VALUES (?, ?, ?, ?, ?, ?)";

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (tasks, at_least) in [(1, 0.9), (16, 5.0), (64, 5.0)] {
        let file = ScratchFile::new(bench.folder).await?;
        let by_hand = SqliteConnectOptions::new()
            .filename(file.beside("by-hand.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = by_hand.connect().await?;
        sqlx::query(TWIN).execute(&mut connection).await?;
        let connection = Mutex::new(connection);
        let each = (bench.amount(if tasks == 1 { 4000 } else { 20_000 }, 320) / tasks).max(1);
        let by_hand_each = (each / if tasks == 1 { 1 } else { 4 }).max(1);
        let run = async |lane: usize| {
            let each = if lane == 1 { each } else { by_hand_each };
            let disk = Disk::now()?;
            let begun = Instant::now();
            match lane {
                0 => hand_over(&connection, tasks, each, false).await?,
                1 => by_eventloom(&file, tasks, each).await?,
                _ => hand_over(&connection, tasks, each, true).await?,
            }
            let value = f64::from(tasks * each) / begun.elapsed().as_secs_f64();
            let counters = disk.since(tasks * each)?;
            anyhow::Ok(Sample { value, counters })
        };
        // Once for nothing: files, connections and statements are warm then.
        for lane in 0..3 {
            run(lane).await?;
        }
        let [single, ours, explicit] = alternate::<Sample, 3>(bench.rounds, async |lane, _| run(lane).await).await?;
        connection.into_inner().close().await?;
        file.delete().await?;
        let what = "stand-alone `store.publish`, SQLite";
        figures.push(
            Figure::new(
                NAME,
                what,
                "one INSERT by hand on one connection, a transaction each",
                &single,
                &ours,
            )
            .tasks(tasks)
            .aim(Aim::AtLeast(at_least)),
        );
        let against = "the same by hand with BEGIN IMMEDIATE and COMMIT around it";
        figures.push(Figure::new(NAME, what, against, &explicit, &ours).tasks(tasks));
    }
    Ok(figures)
}

fn order(task: u32, n: u32) -> OrderPlaced {
    OrderPlaced {
        customer: format!("customer-{task}-{}", n % 50),
        cents: i64::from(n),
        note: "one hundred bytes or so of payload, as events have".to_owned(),
    }
}

async fn by_eventloom(file: &ScratchFile, tasks: u32, each: u32) -> Result<()> {
    try_join_all((0..tasks).map(|task| async move {
        for n in 0..each {
            file.store.publish(ORDERS, &order(task, n)).await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(())
}

/// Tasks hand the connection over to each other. Alone, an INSERT is a transaction: the fewest calls that there can be.
async fn hand_over(connection: &Mutex<SqliteConnection>, tasks: u32, each: u32, explicit: bool) -> Result<()> {
    try_join_all((0..tasks).map(|task| async move {
        for n in 0..each {
            let mut connection = connection.lock().await;
            if explicit {
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
                insert(&mut tx, &order(task, n)).await?;
                tx.commit().await?;
            } else {
                insert(&mut connection, &order(task, n)).await?;
            }
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(())
}

async fn insert(connection: &mut SqliteConnection, order: &OrderPlaced) -> Result<()> {
    sqlx::query(INSERT)
        .bind(Uuid::now_v7().to_string())
        .bind("orders")
        .bind("order.placed")
        .bind(&order.customer)
        .bind(serde_json::to_string(order)?)
        .bind(1)
        .execute(connection)
        .await?;
    Ok(())
}
