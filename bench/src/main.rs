//! Side-by-side measurements: each row is a ratio of what Eventloom does to what is done by hand, in the same run.
//!
//! Lanes alternate within a round, so that what the machine does meanwhile meets both; a row tells the median, the lowest
//! and the highest ratio of its rounds. Absolute rates are printed beside it, and belong to this machine alone.

mod consuming;
mod database;
mod publishing;
mod table;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use table::Row;

/// Measures Eventloom against the same work done by hand, on a Postgres that nobody else uses meanwhile.
#[derive(Parser)]
struct Arguments {
    /// Postgres to measure on; databases are made there and dropped again.
    #[arg(long, env = "EVENTLOOM_TEST_PG15")]
    store: String,
    /// Rounds of each row.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// A smoke test: one round with little work. Its figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// How much work a lane does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    rounds: u32,
    /// Divides every amount.
    divide: u32,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let size = match arguments.short {
        true => Size { rounds: 1, divide: 20 },
        false => Size {
            rounds: arguments.rounds.max(1),
            divide: 1,
        },
    };
    let wanted = |name: &str| arguments.only.as_deref().is_none_or(|only| name.contains(only));
    let mut rows: Vec<Row> = Vec::new();
    if wanted("publish") {
        rows.extend(publishing::rows(&arguments.store, size).await.context("publishing")?);
    }
    if wanted("consume") {
        rows.extend(consuming::rows(&arguments.store, size).await.context("consuming")?);
    }
    table::print(&rows);
    table::write(&rows, &arguments.json)?;
    println!("{} rows measured, written to {}", rows.len(), arguments.json.display());
    Ok(())
}
