//! A process with a relay and three consumers, while nothing happens: what it asks of the database, and what it takes of a
//! core.

use crate::{
    Bench,
    child::Process,
    database::Scratch,
    figure::{Aim, Figure, Sample, Unit},
};
use anyhow::Result;
use std::time::{Duration, Instant};

pub(crate) const NAME: &str = "idle";
pub(crate) const ABOUT: &str =
    "an idle process with a relay and three consumers: queries a second, and its part of a core";

const OWNED: &str = "SELECT count(*) FROM eventloom.cursors WHERE owner IS NOT NULL";
const WITHIN: Duration = Duration::from_secs(60);

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let scratch = Scratch::counted(bench.store, 2).await?;
    let mut process = Process::start("relay-and-consumers", &scratch.url(bench.store)?)?;
    // Straight to the server, so that these looks are not counted.
    let beside = scratch.direct(bench.store).await?;
    process
        .until("it owns its lanes", WITHIN, async || {
            Ok(sqlx::query_scalar::<_, i64>(OWNED).fetch_one(&beside).await? == 4 * 64)
        })
        .await?;
    // pacing: until what a start costs is over, and what is done the less often the longer nothing happens
    tokio::time::sleep(Duration::from_secs(bench.amount(150, 1).into())).await;
    let (asked, cpu, begun) = (scratch.round_trips(), process.cpu()?, Instant::now());
    // pacing: the time that is measured
    tokio::time::sleep(Duration::from_secs(bench.amount(60, 5).into())).await;
    let seconds = begun.elapsed().as_secs_f64();
    let queries = (scratch.round_trips() - asked) / seconds;
    // A tick of the clock is the least that can be told.
    let core = (process.cpu()? - cpu).as_secs_f64().max(0.001) / seconds * 100.0;
    process.end().await?;
    beside.close().await;
    scratch.drop().await?;
    let figure = |what: &str, limit: f64, value: f64, unit: Unit| {
        Figure::new(
            NAME,
            what,
            format!("{limit}"),
            &[Sample::from(limit)],
            &[Sample::from(value)],
        )
        .unit(unit)
        .aim(Aim::AtMost(1.0))
    };
    Ok(vec![
        figure("round trips a second of an idle process", 2.0, queries, Unit::PerSecond),
        figure("its part of a core, in percent", 1.0, core, Unit::Percent),
    ])
}
