//! Resident memory of a process that relays: many small rows, then large ones, then a few that are too large to be sent.

use crate::{
    Bench,
    child::Process,
    database::Scratch,
    figure::{Aim, Figure, Sample, Unit},
};
use anyhow::{Result, ensure};
use std::time::Duration;

pub(crate) const NAME: &str = "memory";
pub(crate) const ABOUT: &str =
    "resident memory of a relay: 5,000,000 small rows, 20,000 of up to 100 KiB, three of 50 MiB";

const SMALL: &str = "INSERT INTO eventloom.outbox (topic, type, key, data)
    SELECT 'small', 'small', 'key-' || n % 10000, json_build_object('pad', repeat('x', 85)) FROM generate_series(1, $1) n";
const LARGE: &str = "INSERT INTO eventloom.outbox (topic, type, key, data)
    SELECT 'large', 'large', 'key-' || n % 1000,
           json_build_object('pad', (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1 + n % 3200)))
      FROM generate_series(1, $1) n";
const HUGE: &str = "INSERT INTO eventloom.outbox (topic, type, key, data_bytes)
    SELECT 'huge', 'huge', 'huge-' || n, decode(repeat('00', $1::int), 'hex') FROM generate_series(1, 3) n";
/// Lanes that hold nothing follow, too.
const PASSED: &str = "SELECT min(position) FROM eventloom.cursors WHERE reader = 'relay'";
const WITHIN: Duration = Duration::from_secs(600);

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let scratch = Scratch::new(bench.store, 4).await?;
    let (small, large) = (bench.amount(5_000_000, 20_000), bench.amount(20_000, 200));
    let huge = i64::from(bench.amount(50 << 20, 2 << 20));
    fill(&scratch, SMALL, small, 500_000).await?;
    let after_small = head(&scratch).await?;
    fill(&scratch, LARGE, large, 1000).await?;
    let after_large = head(&scratch).await?;
    fill(&scratch, SMALL, 1000, 1000).await?;
    sqlx::query(HUGE).bind(huge).execute(&scratch.pool).await?;
    fill(&scratch, SMALL, 1000, 1000).await?;
    let all = head(&scratch).await?;
    let mut relay = Process::start("relay", &scratch.url(bench.store)?)?;
    let mut most = Vec::new();
    for position in [after_small, after_large, all] {
        relay
            .until("all of a kind is relayed", WITHIN, async || {
                let passed: Option<i64> = sqlx::query_scalar(PASSED).fetch_one(&scratch.pool).await?;
                Ok(passed.is_some_and(|passed| passed >= position))
            })
            .await?;
        most.push(relay.memory_most()?);
    }
    let held: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM eventloom.held WHERE state = 'dead' AND octet_length(data_bytes) = $1",
    )
    .bind(huge)
    .fetch_one(&scratch.pool)
    .await?;
    ensure!(held == 3, "{held} of 3 rows that are too large are held, whole");
    relay.end().await?;
    scratch.drop().await?;
    let limit = [Sample::from(64.0)];
    let figure = |what: &str, value: f64| {
        Figure::new(NAME, what, "64 MiB", &limit, &[Sample::from(value)])
            .unit(Unit::Mebibytes)
            .aim(Aim::AtMost(1.0))
    };
    Ok(vec![
        figure("resident memory of the relay after small rows", most[0]),
        figure("the same after rows of up to 100 KiB", most[1]),
        figure(
            "the same after three rows of 50 MiB that are held without being fetched",
            most[2],
        ),
    ])
}

async fn fill(scratch: &Scratch, statement: &'static str, rows: u32, at_once: u32) -> Result<()> {
    for part in (0..rows).step_by(at_once as usize) {
        let some = i64::from((rows - part).min(at_once));
        sqlx::query(statement).bind(some).execute(&scratch.pool).await?;
    }
    Ok(())
}

async fn head(scratch: &Scratch) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT max(position) FROM eventloom.outbox")
        .fetch_one(&scratch.pool)
        .await?)
}
