//! Rows of figures: ratios of rounds, and what they were made of.

use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// One round: what was done by hand and by Eventloom, in units a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Round {
    pub(crate) floor_per_second: f64,
    pub(crate) eventloom_per_second: f64,
}

impl Round {
    fn ratio(self) -> f64 {
        self.eventloom_per_second / self.floor_per_second
    }
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) against: String,
    pub(crate) tasks: u32,
    /// The ratio that the median has to reach; `None`: told only.
    pub(crate) at_least: Option<f64>,
    pub(crate) rounds: Vec<Round>,
}

impl Row {
    fn ratios(&self) -> (f64, f64, f64) {
        let mut ratios: Vec<f64> = self.rounds.iter().map(|round| round.ratio()).collect();
        ratios.sort_by(f64::total_cmp);
        match ratios.as_slice() {
            [] => (f64::NAN, f64::NAN, f64::NAN),
            [lowest, .., highest] => (ratios[ratios.len() / 2], *lowest, *highest),
            [only] => (*only, *only, *only),
        }
    }

    fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Prints the table for people.
pub(crate) fn print(rows: &[Row]) {
    println!(
        "| what | against, in the same run | tasks | median (min to max) | at least | reached | by hand /s | eventloom /s |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        let (median, lowest, highest) = row.ratios();
        let wanted = row
            .at_least
            .map_or_else(|| "told only".to_owned(), |ratio| format!("{ratio:.2}"));
        let reached = row
            .at_least
            .map_or("", |ratio| if median >= ratio { "yes" } else { "no" });
        println!(
            "| {} | {} | {} | {median:.2} ({lowest:.2} to {highest:.2}) | {wanted} | {reached} | {:.0} | {:.0} |",
            row.what,
            row.against,
            row.tasks,
            row.median(|round| round.floor_per_second),
            row.median(|round| round.eventloom_per_second),
        );
    }
}

/// Writes the figures as JSON.
pub(crate) fn write(rows: &[Row], file: &Path) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, serde_json::to_string_pretty(rows)?)?;
    Ok(())
}
