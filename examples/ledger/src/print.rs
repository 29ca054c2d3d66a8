//! The ledger for people.

use crate::balance::Ledger;
use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_HORIZONTAL_ONLY};
use std::io::{self, Write};

/// Findings that are shown; the others are counted.
const FINDINGS_SHOWN: usize = 10;
/// Cells of the longest bar.
const BAR_CELLS: f64 = 48.0;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Writes the ledger to a terminal, a file or a test.
pub fn print(ledger: &Ledger, out: &mut impl Write) -> io::Result<()> {
    let (committed, customers) = (grouped(ledger.committed), grouped(ledger.customers));
    writeln!(
        out,
        "Ledger of {}: {committed} orders of {customers} customers",
        ledger.input_name
    )?;
    writeln!(out, "{}", table(ledger))?;
    sums(ledger, out)?;
    writeln!(out)?;
    chart(ledger, out)?;
    writeln!(out)?;
    verdict(ledger, out)
}

fn table(ledger: &Ledger) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "group",
        "committed",
        "handled",
        "held",
        "missing",
        "duplicated",
        "out of order",
    ]);
    for group in &ledger.groups {
        let number = |value: u64| Cell::new(grouped(value)).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(group.name),
            number(ledger.committed),
            number(group.handled),
            number(group.held),
            number(group.missing),
            number(group.duplicated),
            group
                .out_of_order
                .map_or_else(|| Cell::new("-").set_alignment(CellAlignment::Right), number),
        ]);
    }
    table
}

fn sums(ledger: &Ledger, out: &mut impl Write) -> io::Result<()> {
    let beside = |cents: i64| {
        if cents == ledger.input_cents {
            "equal"
        } else {
            "NOT EQUAL"
        }
    };
    let width = dollars(ledger.input_cents)
        .len()
        .max(dollars(ledger.totals_cents).len())
        + 1;
    writeln!(
        out,
        "plain sum over the input   {:>width$}",
        dollars(ledger.input_cents)
    )?;
    let rows = [
        ("customer totals", ledger.totals_cents),
        ("monthly revenue", ledger.revenue_cents),
    ];
    for (name, cents) in rows {
        writeln!(out, "{name:<25}  {:>width$}  {}", dollars(cents), beside(cents))?;
    }
    let (raw, distinct) = (ledger.mail_raw, ledger.mail_distinct);
    let repeated = match raw.saturating_sub(distinct) {
        0 => "none sent twice".to_owned(),
        more => format!(
            "{} sent again under the same key after a kill, where the receiver drops them",
            grouped(more)
        ),
    };
    writeln!(
        out,
        "mail lines                 {:>width$}  {} distinct: {repeated}",
        grouped(raw),
        grouped(distinct)
    )
}

fn chart(ledger: &Ledger, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "Revenue by month")?;
    let most = ledger.revenue.iter().map(|month| month.cents).max().unwrap_or(0).max(1);
    let width = dollars(most).len();
    for month in &ledger.revenue {
        let cells = (month.cents.max(0) as f64 / most as f64 * BAR_CELLS * 8.0).round() as usize;
        let bar = format!("{}{}", "█".repeat(cells / 8), EIGHTHS[cells % 8]);
        writeln!(out, "  {}  {:>width$}  {bar}", month.month, dollars(month.cents))?;
    }
    Ok(())
}

fn verdict(ledger: &Ledger, out: &mut impl Write) -> io::Result<()> {
    if ledger.is_clean() {
        let held: u64 = ledger.groups.iter().map(|group| group.held).sum();
        return match held {
            0 => writeln!(
                out,
                "Nothing is missing, nothing happened twice, every customer's orders came in order."
            ),
            _ => writeln!(
                out,
                "Nothing is missing, doubled or out of order, but {} messages are held.",
                grouped(held)
            ),
        };
    }
    if ledger.unplaced() > 0 {
        let (unplaced, purchases) = (grouped(ledger.unplaced()), grouped(ledger.purchases));
        writeln!(
            out,
            "{unplaced} of {purchases} purchases are not placed yet, and what is missing may be on its way."
        )?;
        writeln!(out, "`cargo run --release -p orders` goes on where it was.")?;
    }
    for finding in ledger.findings.iter().take(FINDINGS_SHOWN) {
        writeln!(out, "  {finding}")?;
    }
    match ledger.findings.len().saturating_sub(FINDINGS_SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {} more", grouped(more as u64)),
    }
}

/// `69,659`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `$1,234.56`.
pub fn dollars(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}${}.{:02}", grouped(cents / 100), cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        let cases = [
            (0, "$0.00"),
            (1177, "$11.77"),
            (250_031_563, "$2,500,315.63"),
            (-5, "-$0.05"),
        ];
        for (cents, wanted) in cases {
            assert_eq!(dollars(cents), wanted);
        }
    }
}
