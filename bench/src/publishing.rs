//! A transaction with a business row and an event, against the same with a plain INSERT into a twin table.
//!
//! The twin has the columns and the primary key of the outbox, and neither fence nor lane index: what a team would write
//! by hand, and what loses rows.

use crate::{
    Size,
    database::Scratch,
    table::{Round, Row},
};
use anyhow::Result;
use eventloom::{Event, Topic, postgres::prelude::*};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::{borrow::Cow, time::Instant};
use uuid::Uuid;

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

pub(crate) async fn rows(url: &str, size: Size) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (tasks, at_least) in [(1, None), (16, Some(0.85)), (64, Some(0.85))] {
        let scratch = Scratch::new(url, tasks + 2).await?;
        scratch.run(SET_UP).await?;
        let each = (if tasks == 1 { 1500 } else { 12_000 / tasks }) / size.divide;
        let each = each.max(1);
        // Every lane once for nothing: connections, statements and tables are warm then.
        for (insert, _, _) in TWINS {
            by_hand(&scratch.pool, insert, tasks, each / 4 + 1).await?;
        }
        by_eventloom(&scratch.pool, tasks, each / 4 + 1).await?;
        for (insert, against, is_aim) in TWINS {
            let mut rounds = Vec::new();
            for round in 0..size.rounds {
                scratch.settle().await?;
                let first_by_hand = round % 2 == 0;
                let mut floor = 0.0;
                if first_by_hand {
                    floor = by_hand(&scratch.pool, insert, tasks, each).await?;
                }
                let ours = by_eventloom(&scratch.pool, tasks, each).await?;
                if !first_by_hand {
                    floor = by_hand(&scratch.pool, insert, tasks, each).await?;
                }
                rounds.push(Round {
                    floor_per_second: floor,
                    eventloom_per_second: ours,
                });
            }
            rows.push(Row {
                what: "transaction with a business row and publish".to_owned(),
                against: against.to_owned(),
                tasks,
                at_least: at_least.filter(|_| is_aim),
                rounds,
            });
        }
        scratch.drop().await?;
    }
    Ok(rows)
}

fn event(task: u32, n: u32) -> OrderPlaced {
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
            let event = event(task, n);
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
            let event = event(task, n);
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
