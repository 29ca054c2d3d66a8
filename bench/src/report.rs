//! Figures for people, and as JSON.

use crate::figure::{Aim, Figure, Lane, Unit};
use anyhow::Result;
use std::path::Path;

/// Tells one figure in a few lines: the ratio and whether it is reached, what both did, and the counters.
pub(crate) fn tell(figure: &Figure) {
    let tasks = figure
        .tasks
        .map_or_else(String::new, |tasks| format!(", {tasks} tasks"));
    println!("  {}{tasks}", figure.what);
    println!("    {} against {}: {}", ratio(figure), figure.against, verdict(figure));
    println!(
        "    {} by hand, {} Eventloom",
        value(figure, &figure.by_hand),
        value(figure, &figure.eventloom)
    );
    let mut names: Vec<&str> = Vec::new();
    names.extend(figure.by_hand.counters.keys());
    names.extend(figure.eventloom.counters.keys());
    names.sort_unstable();
    names.dedup();
    for name in names {
        let told = |lane: &Lane| lane.counters.get(name).map_or_else(|| "-".to_owned(), |n| number(*n));
        println!(
            "    {name}: {} by hand, {} Eventloom",
            told(&figure.by_hand),
            told(&figure.eventloom)
        );
    }
}

/// The table, as the README has it.
pub(crate) fn print(figures: &[Figure]) {
    println!("| what | against, in the same run | tasks | ratio | aim | reached | by hand | Eventloom |");
    println!("|---|---|---|---|---|---|---|---|");
    for figure in figures {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            figure.what,
            figure.against,
            figure.tasks.map_or_else(String::new, |tasks| tasks.to_string()),
            ratio(figure),
            aim(figure.aim),
            figure
                .reached
                .map_or("", |reached| if reached { "yes" } else { "**no**" }),
            value(figure, &figure.by_hand),
            value(figure, &figure.eventloom),
        );
    }
}

/// Writes the figures as JSON.
pub(crate) fn write(figures: &[Figure], file: &Path) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, serde_json::to_string_pretty(figures)?)?;
    Ok(())
}

fn ratio(figure: &Figure) -> String {
    format!("{:.2} ({:.2} to {:.2})", figure.median, figure.lowest, figure.highest)
}

fn aim(aim: Aim) -> String {
    match aim {
        Aim::AtLeast(ratio) => format!("≥ {ratio}"),
        Aim::AtMost(ratio) => format!("≤ {ratio}"),
        Aim::Told => "told only".to_owned(),
    }
}

fn verdict(figure: &Figure) -> String {
    let wanted = aim(figure.aim);
    match (figure.aim, figure.reached) {
        (Aim::AtLeast(ratio) | Aim::AtMost(ratio), Some(false)) => {
            let by = (figure.median / ratio - 1.0).abs() * 100.0;
            format!("{wanted}, falls short by {by:.0} %")
        }
        (Aim::Told, _) => wanted,
        _ => format!("{wanted}, reached"),
    }
}

fn value(figure: &Figure, lane: &Lane) -> String {
    match figure.unit {
        Unit::PerSecond => format!("{:.0}/s", lane.median()),
        Unit::Milliseconds => format!("{:.2} ms", lane.median()),
        Unit::Mebibytes => format!("{:.0} MiB", lane.median()),
        Unit::Percent => format!("{:.2} %", lane.median()),
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
