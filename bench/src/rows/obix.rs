//! The relay's drain against the listener and the subscriber of another crate, which is built in a workspace of its own.

use super::relay::{FILL, drain};
use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    rounds::alternate,
};
use anyhow::{Context, Result};
use eventloom::Null;
use std::path::{Path, PathBuf};
use tokio::process::Command;

pub(crate) const NAME: &str = "obix";
pub(crate) const ABOUT: &str = "the relay's drain, against obix 0.16";

/// Where `cargo xtask bench` builds it.
fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("obix/target/release/bench-obix")
}

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let program = std::env::var_os("BENCH_OBIX").map_or_else(program, PathBuf::from);
    if !program.exists() {
        println!("left out: {NAME}: build it with `cargo build --release --manifest-path bench/obix/Cargo.toml`");
        return Ok(Vec::new());
    }
    let rows = bench.amount(500_000, 5000);
    let scratch = Scratch::new(bench.store, 8).await?;
    sqlx::query(FILL).bind(i64::from(rows)).execute(&scratch.pool).await?;
    scratch.run(&["VACUUM ANALYZE eventloom.outbox"]).await?;
    let lanes = alternate::<[f64; 2], 2>(bench.rounds, async |lane, round| {
        scratch.settle().await?;
        Ok(match lane {
            0 => theirs(bench, &program, rows).await?,
            _ => [drain(&scratch, &format!("drain-{round}"), Null::new(), rows).await?; 2],
        })
    });
    let [theirs, ours] = lanes.await?;
    let samples = |lane: &[[f64; 2]], which: usize| lane.iter().map(|both| both[which].into()).collect::<Vec<Sample>>();
    scratch.drop().await?;
    let what = "relay drain into a null broker";
    let figure = |against: &str, which: usize| {
        Figure::new(NAME, what, against, &samples(&theirs, which), &samples(&ours, which))
    };
    Ok(vec![
        figure("the subscriber of obix 0.16 that stores its position", 1).aim(Aim::AtLeast(4.0)),
        figure("the listener of obix 0.16, which stores none", 0),
    ])
}

/// In a database of its own: events a second of its listener, and of its subscriber.
async fn theirs(bench: &Bench<'_>, program: &Path, rows: u32) -> Result<[f64; 2]> {
    let scratch = Scratch::new(bench.store, 1).await?;
    let output = Command::new(program)
        .arg(scratch.url(bench.store)?)
        .arg(rows.to_string())
        .output()
        .await?;
    scratch.drop().await?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rates: Vec<f64> = text.split_whitespace().filter_map(|rate| rate.parse().ok()).collect();
    let said = || format!("bench-obix: {text}{}", String::from_utf8_lossy(&output.stderr));
    <[f64; 2]>::try_from(rates).ok().with_context(said)
}
