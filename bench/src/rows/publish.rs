//! A transaction with a business row and an event, against the same with a plain INSERT into a twin table.
//!
//! The twin has the columns and the primary key of the outbox, and neither fence nor lane index: what a team would write
//! by hand, and what loses rows.

use crate::{
    Bench,
    counters::Counters,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    rounds::alternate,
};
use anyhow::Result;
use eventloom::{Event, Topic, postgres::prelude::*};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::{borrow::Cow, time::Instant};
use uuid::Uuid;

pub(crate) const NAME: &str = "publish";
pub(crate) const ABOUT: &str = "a transaction with a business row and publish, on Postgres, against a twin table";

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

const SET_UP: &[&str] = &[
    "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)",
    "CREATE TABLE twin (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id uuid NOT NULL, topic text NOT NULL, type text NOT NULL, key text,
        source text, subject text, time timestamptz NOT NULL DEFAULT now(), data json, data_bytes bytea,
        datacontenttype text, dataschema text, schemaversion int NOT NULL DEFAULT 1,
        correlationid text, causationid text, traceparent text, tracestate text, headers json, origin uuid,
        recorded_at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE checked (LIKE twin INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES,
        lane smallint NOT NULL GENERATED ALWAYS AS
            (('x' || left(md5(coalesce(key, id::text)), 8))::bit(32)::bigint % 64) STORED,
        CHECK (octet_length(topic) BETWEEN 1 AND 249
            AND translate(topic, 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-', '') = ''),
        CHECK (type <> ''), CHECK (octet_length(key) <= 2048),
        CHECK (time BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 00:00Z'),
        CHECK (json_typeof(headers) = 'object'), CHECK (data IS NULL OR data_bytes IS NULL))",
];

/// Tables to compare with: what a team would make, and one that promises of its rows what the outbox does.
const TWINS: [(&str, &str, bool); 2] = [
    (
        "INSERT INTO twin (id, topic, type, key, data, schemaversion) VALUES ($1, $2, $3, $4, $5::json, $6)",
        "the same with an INSERT into a twin table without fence, lane, checks and lane index",
        true,
    ),
    (
        "INSERT INTO checked (id, topic, type, key, data, schemaversion) VALUES ($1, $2, $3, $4, $5::json, $6)",
        "the same with an INSERT into a twin table with lane (generated) and checks, without fence and lane index",
        false,
    ),
];

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for tasks in [1, 16, 64] {
        let scratch = Scratch::new(bench.store, tasks + 2).await?;
        scratch.run(SET_UP).await?;
        let each = (bench.amount(12_000, 400) / tasks).clamp(1, 1500);
        // Every lane once for nothing: connections, statements and tables are warm then.
        for lane in 0..LANES {
            run(&scratch, lane, tasks, each / 4 + 1).await?;
        }
        let measured = alternate::<Sample, LANES>(bench.rounds, async |lane, _| {
            scratch.settle().await?;
            let before = scratch.snapshot().await?;
            let value = run(&scratch, lane, tasks, each).await?;
            let counters = scratch.since(&before, tasks * each).await?;
            Ok(Sample { value, counters })
        });
        let [ours, twins @ ..] = measured.await?;
        scratch.drop().await?;
        let counted = round_trips(bench, tasks).await?;
        for (nth, ((_, against, is_aim), twin)) in TWINS.iter().zip(&twins).enumerate() {
            let figure = Figure::new(
                NAME,
                "transaction with a business row and `publish`",
                *against,
                twin,
                &ours,
            )
            .tasks(tasks)
            .counted(&counted[nth + 1], &counted[0]);
            let aimed = *is_aim && tasks > 1;
            figures.push(figure.aim(if aimed { Aim::AtLeast(0.85) } else { Aim::Told }));
        }
    }
    Ok(figures)
}

/// Lane 0 is Eventloom's, the others are the twins'.
const LANES: usize = 1 + TWINS.len();

async fn run(scratch: &Scratch, lane: usize, tasks: u32, each: u32) -> Result<f64> {
    match lane.checked_sub(1) {
        None => by_eventloom(&scratch.pool, tasks, each).await,
        Some(twin) => by_hand(&scratch.pool, TWINS[twin].0, tasks, each).await,
    }
}

async fn round_trips(bench: &Bench<'_>, tasks: u32) -> Result<Vec<Counters>> {
    let scratch = Scratch::counted(bench.store, tasks + 2).await?;
    scratch.run(SET_UP).await?;
    let mut counted = Vec::new();
    for lane in 0..LANES {
        let each = bench.amount(30, 2);
        run(&scratch, lane, tasks, bench.amount(30, 2)).await?;
        let before = scratch.snapshot().await?;
        run(&scratch, lane, tasks, each).await?;
        counted.push(scratch.since(&before, tasks * each).await?);
    }
    scratch.drop().await?;
    Ok(counted)
}

fn order(task: u32, n: u32) -> OrderPlaced {
    OrderPlaced {
        customer: format!("customer-{task}-{}", n % 50),
        cents: i64::from(n),
        note: "one hundred bytes or so of payload, as events have".to_owned(),
    }
}

/// Transactions a second.
async fn by_hand(pool: &PgPool, insert: &'static str, tasks: u32, each: u32) -> Result<f64> {
    let begun = Instant::now();
    try_join_all((0..tasks).map(|task| async move {
        for n in 0..each {
            let event = order(task, n);
            let mut tx = pool.begin().await?;
            business_row(&mut tx, &event).await?;
            sqlx::query(insert)
                .bind(Uuid::now_v7())
                .bind("orders")
                .bind("order.placed")
                .bind(&event.customer)
                .bind(serde_json::to_string(&event)?)
                .bind(1)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(f64::from(tasks * each) / begun.elapsed().as_secs_f64())
}

async fn by_eventloom(pool: &PgPool, tasks: u32, each: u32) -> Result<f64> {
    let begun = Instant::now();
    try_join_all((0..tasks).map(|task| async move {
        for n in 0..each {
            let event = order(task, n);
            let mut tx = pool.begin().await?;
            business_row(&mut tx, &event).await?;
            publish(&mut *tx, ORDERS, &event).await?;
            tx.commit().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(f64::from(tasks * each) / begun.elapsed().as_secs_f64())
}

async fn business_row(connection: &mut sqlx::PgConnection, event: &OrderPlaced) -> Result<()> {
    sqlx::query("INSERT INTO business (customer, cents) VALUES ($1, $2)")
        .bind(&event.customer)
        .bind(event.cents)
        .execute(connection)
        .await?;
    Ok(())
}
