//! One lane that begins anew among lanes at the head, against a raw read of that lane.

use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    progress::Progress,
    rounds::alternate,
};
use anyhow::{Result, ensure};
use eventloom::{Event, Topic, postgres::prelude::*};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

pub(crate) const NAME: &str = "lane-behind";
pub(crate) const ABOUT: &str = "one lane reset to the beginning of 1,000,000 rows, against a raw read of that lane";

const FACTS: Topic = Topic::new("facts");
const LANE: i16 = 17;
/// Rows of one INSERT of the set-up.
const PIECE: u32 = 50_000;

#[derive(Serialize, Deserialize)]
struct Fact {
    n: i64,
}

impl Event for Fact {
    const TYPE: &'static str = "fact";
}

struct Pass {
    progress: Progress,
    first: Arc<OnceLock<Instant>>,
}

impl Handle<Postgres> for Pass {
    type Event = Fact;
    type Output = ();
    type Error = Infallible;

    async fn handle(&self, _event: Fact, _cx: &mut Context<'_>) -> Result<(), Infallible> {
        self.first.get_or_init(Instant::now);
        self.progress.one_more();
        Ok(())
    }
}

const FILL: &str = r#"INSERT INTO eventloom.outbox (topic, type, key, data)
    SELECT 'facts', 'fact', 'key-' || n, format('{"n":%s,"note":"one hundred bytes or so of payload, as events have"}', n)::json
      FROM generate_series($1::bigint, $2::bigint) AS n"#;
/// In order, as the index gives it; what a consumer needs of a row.
const RAW: &str =
    "SELECT position, id::text, topic, type, key, source, subject, time, data::text, data_bytes, schemaversion,
                          correlationid, causationid, traceparent, tracestate, headers::text
                     FROM eventloom.outbox WHERE lane = $1 AND position > $2 ORDER BY lane, position LIMIT 1000";

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let rows = bench.amount(1_000_000, 20_000);
    let scratch = Scratch::new(bench.store, 8).await?;
    for first in (0..rows).step_by(PIECE as usize) {
        let last = (first + PIECE).min(rows) - 1;
        sqlx::query(FILL)
            .bind(i64::from(first))
            .bind(i64::from(last))
            .execute(&scratch.pool)
            .await?;
    }
    sqlx::query("VACUUM ANALYZE eventloom.outbox")
        .execute(&scratch.pool)
        .await?;
    let of_lane: i64 = sqlx::query_scalar("SELECT count(*) FROM eventloom.outbox WHERE lane = $1")
        .bind(LANE)
        .fetch_one(&scratch.pool)
        .await?;
    let of_lane = u32::try_from(of_lane)?;
    for inbox in [true, false] {
        replay(&scratch, &format!("warm-{inbox}"), of_lane, inbox).await?;
    }
    let [raw, with, without] = alternate::<Sample, 3>(bench.rounds, async |lane, round| {
        scratch.settle().await?;
        let before = scratch.snapshot().await?;
        let name = format!("lane-{lane}-{round}");
        let mut sample = match lane {
            0 => raw(&scratch, of_lane).await?,
            _ => replay(&scratch, &name, of_lane, lane == 1).await?,
        };
        sample.counters.extend(scratch.since(&before, of_lane).await?);
        Ok(sample)
    })
    .await?;
    scratch.drop().await?;
    let what = "one lane of 64 reset to the beginning of 1,000,000 rows";
    let against = "a raw read of that lane";
    let no_inbox = format!("{what}, without inbox");
    Ok(vec![
        Figure::new(NAME, what, against, &raw, &with).aim(Aim::AtLeast(0.4)),
        Figure::new(NAME, no_inbox, against, &raw, &without),
    ])
}

/// Rows a second.
async fn raw(scratch: &Scratch, wanted: u32) -> Result<Sample> {
    let begun = Instant::now();
    let mut session = scratch.pool.acquire().await?;
    let (mut position, mut read) = (0_i64, 0);
    loop {
        let before = read;
        let mut page = sqlx::query(RAW).bind(LANE).bind(position).fetch(&mut *session);
        while let Some(row) = page.try_next().await? {
            position = row.try_get(0)?;
            let _: String = row.try_get(1)?;
            let data: String = row.try_get(8)?;
            let _: Fact = serde_json::from_str(&data)?;
            read += 1;
        }
        if read == before {
            break;
        }
    }
    ensure!(read == wanted, "{read} rows of {wanted} were read");
    Ok(Sample::from(f64::from(wanted) / begun.elapsed().as_secs_f64()))
}

/// Messages a second of the lane, from when the instance is at work until the last one is committed.
async fn replay(scratch: &Scratch, name: &str, wanted: u32, inbox: bool) -> Result<Sample> {
    let (progress, first) = (Progress::default(), Arc::new(OnceLock::new()));
    let pass = Pass {
        progress: progress.clone(),
        first: first.clone(),
    };
    let consumer = Consumer::new(name).topic(FACTS).start_at(Start::Latest).handle(pass);
    let consumer = if inbox { consumer } else { consumer.without_inbox() };
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .consumer(consumer)
        .start()
        .await?;
    Progress::ready(&service).await?;
    // As a reset does, for one lane: the place and the epoch, so that its owner begins anew.
    let begun = Instant::now();
    sqlx::query(
        "UPDATE eventloom.cursors SET position = 0, batch_end = 0, epoch = epoch + 1 WHERE reader = $1 AND lane = $2",
    )
    .bind(name)
    .bind(LANE)
    .execute(&scratch.pool)
    .await?;
    progress.done(&service, wanted).await?;
    // How soon an owner notices a reset is a matter of its lease, not of reading.
    let from = first.get().copied().unwrap_or(begun);
    let mut sample = Sample::from(f64::from(wanted) / from.elapsed().as_secs_f64());
    let noticed = from.duration_since(begun).as_secs_f64() * 1e3;
    sample.counters.insert("ms until the reset was noticed", noticed);
    service.shutdown(Duration::from_secs(30)).await?;
    Ok(sample)
}
