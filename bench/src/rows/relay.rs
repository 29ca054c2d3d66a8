//! Draining the log into a broker that confirms at once, and into one that confirms after 2 ms, against locking, reading and
//! deleting by hand.

use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    rounds::alternate,
};
use anyhow::{Result, ensure};
use eventloom::{Null, OffsetDateTime, Relay, ports::Broker, postgres::prelude::*};
use sqlx::{FromRow, PgPool, Row as _, postgres::PgRow};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use uuid::Uuid;

pub(crate) const NAME: &str = "relay";
pub(crate) const ABOUT: &str = "draining the log into a broker, against SKIP LOCKED and DELETE by hand";

pub(super) const FILL: &str = "INSERT INTO eventloom.outbox (topic, type, key, data)
    SELECT 'orders', 'order.placed', 'customer-' || n % 10000,
           json_build_object('order', n, 'customer', 'customer-' || n % 10000, 'total_cents', n % 5000, 'note', repeat('x', 30))
      FROM generate_series(1, $1) n";
const TWIN: &[&str] = &["CREATE TABLE twin (LIKE eventloom.outbox INCLUDING DEFAULTS, PRIMARY KEY (position))"];
const REFILL: &[&str] = &[
    "TRUNCATE twin",
    "INSERT INTO twin SELECT * FROM eventloom.outbox",
    "VACUUM ANALYZE twin",
];
const TAKE: &str = "DELETE FROM twin WHERE position IN (
        SELECT position FROM twin ORDER BY position LIMIT 1000 FOR UPDATE SKIP LOCKED)
    RETURNING position, id, topic, type, key, source, subject, time, data::text, data_bytes, datacontenttype, dataschema,
              schemaversion, correlationid, causationid, traceparent, tracestate, headers::text, origin";
const WHAT: &str = "relay drain into a null broker";

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let rows = bench.amount(500_000, 5000);
    let scratch = Scratch::new(bench.store, 8).await?;
    sqlx::query(FILL).bind(i64::from(rows)).execute(&scratch.pool).await?;
    scratch.run(TWIN).await?;
    scratch.run(&["VACUUM ANALYZE eventloom.outbox"]).await?;
    drain(&scratch, "warm", Null::new(), rows).await?;
    let lanes = alternate::<Sample, 3>(bench.rounds, async |lane, round| {
        if lane == 0 {
            scratch.run(REFILL).await?;
        }
        scratch.settle().await?;
        let before = scratch.snapshot().await?;
        let name = format!("lane-{lane}-{round}");
        let value = match lane {
            0 => by_hand(&scratch.pool, rows).await?,
            1 => drain(&scratch, &name, Null::new(), rows).await?,
            _ => {
                drain(
                    &scratch,
                    &name,
                    Null::new().confirms_after(Duration::from_millis(2)),
                    rows,
                )
                .await?
            }
        };
        let counters = scratch.since(&before, rows).await?;
        Ok(Sample { value, counters })
    });
    let [by_hand, at_once, later] = lanes.await?;
    let dead: i64 = sqlx::query_scalar("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox'")
        .fetch_one(&scratch.pool)
        .await?;
    ensure!(dead == 0, "{dead} dead tuples in the log");
    scratch.drop().await?;
    let against = "FOR UPDATE SKIP LOCKED and DELETE by hand, 1000 at a time";
    Ok(vec![
        Figure::new(NAME, WHAT, against, &by_hand, &at_once).aim(Aim::AtLeast(1.8)),
        Figure::new(
            NAME,
            "relay drain into a broker that confirms after 2 ms",
            against,
            &by_hand,
            &later,
        )
        .aim(Aim::AtLeast(1.8)),
    ])
}

/// Messages a second: from the start of the relay until the last one is confirmed and committed.
pub(super) async fn drain(scratch: &Scratch, name: &str, broker: impl Broker, rows: u32) -> Result<f64> {
    let begun = Instant::now();
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .relay(Relay::new(name, broker))
        .start()
        .await?;
    loop {
        let health = service.health().await;
        if health.consumers[0].handled >= u64::from(rows) {
            break;
        }
        ensure!(begun.elapsed() < Duration::from_secs(300), "{name} hangs: {health:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rate = f64::from(rows) / begun.elapsed().as_secs_f64();
    service.shutdown(Duration::from_secs(30)).await?;
    Ok(rate)
}

/// A row as a hand-written relay would have it.
#[allow(dead_code)] // decoded, as a relay must
struct Taken {
    position: i64,
    id: Uuid,
    key: Option<String>,
    topic: String,
    event_type: String,
    time: OffsetDateTime,
    data: Option<String>,
    data_bytes: Option<Vec<u8>>,
    headers: Option<String>,
    texts: [Option<String>; 8],
    schemaversion: i32,
    origin: Option<Uuid>,
}

impl FromRow<'_, PgRow> for Taken {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let mut texts: [Option<String>; 8] = Default::default();
        for (text, column) in texts.iter_mut().zip([5, 6, 10, 11, 13, 14, 15, 16]) {
            *text = row.try_get(column)?;
        }
        Ok(Taken {
            position: row.try_get(0)?,
            id: row.try_get(1)?,
            topic: row.try_get(2)?,
            event_type: row.try_get(3)?,
            key: row.try_get(4)?,
            time: row.try_get(7)?,
            data: row.try_get(8)?,
            data_bytes: row.try_get(9)?,
            headers: row.try_get(17)?,
            texts,
            schemaversion: row.try_get(12)?,
            origin: row.try_get(18)?,
        })
    }
}

async fn by_hand(pool: &PgPool, rows: u32) -> Result<f64> {
    let begun = Instant::now();
    let mut taken = 0;
    loop {
        let mut tx = pool.begin().await?;
        let some: Vec<Taken> = sqlx::query_as(TAKE).fetch_all(&mut *tx).await?;
        if some.is_empty() {
            break;
        }
        taken += some.len();
        black_box(&some);
        tx.commit().await?;
    }
    ensure!(taken == rows as usize, "{taken} of {rows} rows");
    Ok(f64::from(rows) / begun.elapsed().as_secs_f64())
}
