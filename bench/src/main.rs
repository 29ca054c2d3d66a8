//! Side-by-side measurements: each figure is a ratio of what Eventloom does to what is done by hand, in the same run.
//!
//! Lanes alternate within a round, so that what the machine does meanwhile meets all of them; a figure tells the median,
//! the lowest and the highest ratio of its rounds. Absolute rates are printed beside it, and belong to this machine alone.

mod child;
mod counters;
mod database;
mod figure;
mod file;
mod fill;
mod progress;
mod report;
mod rounds;
mod rows;
mod wire;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Measures Eventloom against the same work done by hand, on a Postgres that nobody else uses meanwhile.
#[derive(Parser)]
struct Arguments {
    /// Postgres to measure on; databases are made there and dropped again.
    #[arg(long, env = "EVENTLOOM_TEST_PG15")]
    store: String,
    /// Where files of SQLite are made and deleted again: on the disk that is to be measured.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// Rounds of each row.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// A smoke test: one round with little work. Its figures mean nothing.
    #[arg(long)]
    short: bool,
    /// Where the figures go as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Only this row; may be said several times.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// What a process of the bench's own does.
    #[arg(long = "as", hide = true)]
    part: Option<child::Part>,
    /// Names the rows, and measures nothing.
    #[arg(long)]
    list: bool,
}

/// What a row is measured with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench<'a> {
    /// Postgres, with a database that others are made from.
    pub(crate) store: &'a str,
    /// A folder on the disk that is to be measured.
    pub(crate) folder: &'a Path,
    pub(crate) rounds: u32,
    short: bool,
}

impl Bench<'_> {
    /// This much work, or little of it in the smoke test.
    pub(crate) fn amount(&self, full: u32, short: u32) -> u32 {
        if self.short { short } else { full }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(part) = arguments.part {
        return child::run(part, &arguments.store).await;
    }
    if arguments.list {
        for row in rows::ROWS {
            println!("{:<16} {}", row.name, row.about);
        }
        return Ok(());
    }
    if let Some(unknown) = arguments.only.iter().find(|name| rows::named(name).is_none()) {
        bail!("no row is named {unknown:?}; --list names them");
    }
    let bench = Bench {
        store: &arguments.store,
        folder: &arguments.folder,
        rounds: if arguments.short { 1 } else { arguments.rounds.max(1) },
        short: arguments.short,
    };
    let (mut figures, mut failed) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for row in rows::ROWS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == row.name) {
            continue;
        }
        let row_begun = Instant::now();
        // One row that fails must not take the figures of the others along.
        match (row.run)(&bench).await {
            Ok(measured) => {
                println!("{} ({:.0} s)", row.name, row_begun.elapsed().as_secs_f64());
                for figure in &measured {
                    report::tell(figure);
                    if !figure.has_numbers() {
                        failed.push(format!("{}: no number for {:?}", row.name, figure.against));
                    }
                }
                figures.extend(measured);
            }
            Err(error) => {
                println!("{}: failed: {error:?}", row.name);
                failed.push(format!("{}: {error:#}", row.name));
            }
        }
        report::write(&figures, &arguments.json)?;
    }
    println!();
    report::print(&figures);
    println!(
        "{} figures in {:.0} s, written to {}",
        figures.len(),
        begun.elapsed().as_secs_f64(),
        arguments.json.display()
    );
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}
