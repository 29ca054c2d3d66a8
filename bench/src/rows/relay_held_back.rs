//! The relay's drain while others hold transactions open: one that has written, in another database, and one at REPEATABLE
//! READ in this one, for a minute. Without them it is measured before and after, since the machine drifts meanwhile.

use super::relay::{FILL, drain};
use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
};
use anyhow::{Result, ensure};
use eventloom::Null;
use std::time::{Duration, Instant};

pub(crate) const NAME: &str = "relay_held_back";
pub(crate) const ABOUT: &str = "the relay's drain beside idle transactions, against without them";

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let rows = bench.amount(500_000, 5000);
    let scratch = Scratch::new(bench.store, 8).await?;
    let elsewhere = Scratch::new(bench.store, 1).await?;
    sqlx::query(FILL).bind(i64::from(rows)).execute(&scratch.pool).await?;
    scratch.run(&["VACUUM ANALYZE eventloom.outbox"]).await?;
    drain(&scratch, "warm", Null::new(), rows).await?;
    let free = async |when: &str| {
        let mut rates = Vec::new();
        for round in 0..bench.rounds {
            scratch.settle().await?;
            rates.push(drain(&scratch, &format!("{when}-{round}"), Null::new(), rows).await?);
        }
        anyhow::Ok(rates)
    };
    let before = free("before").await?;
    let writing = {
        let mut tx = elsewhere.pool.begin().await?;
        sqlx::query("INSERT INTO eventloom.outbox (topic, type) VALUES ('idle', 'idle')")
            .execute(&mut *tx)
            .await?;
        tx
    };
    let beside = scratch.direct(bench.store).await?;
    let mut reading = beside.begin().await?;
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM eventloom.readers")
        .execute(&mut *reading)
        .await?;
    let begun = Instant::now();
    let mut held = Vec::new();
    let open_for = Duration::from_secs(bench.amount(60, 1).into());
    while held.len() < bench.rounds as usize || begun.elapsed() < open_for {
        scratch.settle().await?;
        let name = format!("held-{}", held.len());
        held.push(Sample::from(drain(&scratch, &name, Null::new(), rows).await?));
        ensure!(begun.elapsed() < open_for * 20, "the drains take far too long");
    }
    reading.rollback().await?;
    writing.rollback().await?;
    beside.close().await;
    scratch.run(&["VACUUM eventloom.cursors"]).await?;
    let after = free("after").await?;
    let free = before.iter().zip(after).map(|(before, after)| (before + after) / 2.0);
    let free: Vec<Sample> = free.map(Sample::from).collect();
    scratch.drop().await?;
    elsewhere.drop().await?;
    // The last rounds: what piles up behind the open snapshot is there by then.
    let last = held.split_off(held.len() - bench.rounds as usize);
    let against = "the same without an idle writer in another database and a snapshot held open in this one";
    Ok(vec![
        Figure::new(
            NAME,
            "relay drain into a null broker, last rounds of a minute",
            against,
            &free,
            &last,
        )
        .aim(Aim::AtLeast(0.95)),
    ])
}
