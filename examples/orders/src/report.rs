//! What is said at the end: rates, kills, and the ledger.

use crate::{
    board::Rate,
    consume::{Group, MAILS_IN_FLIGHT},
    mail::MailCount,
    run::{Run, standing_of},
    store::Shop,
};
use orders_ledger::{Input, examine, grouped, print};
use std::{io::Write, process::ExitCode};

/// How a run ended.
pub(crate) enum End {
    /// Everything was placed and handled.
    Done,
    /// By a signal, with this exit code.
    Stopped(u8),
    /// Nothing moved any more.
    Stalled(String),
}

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) rates: Vec<Rate>,
    /// How many of each kind were killed.
    pub(crate) killed: Vec<(&'static str, u32)>,
}

/// Prints it. The exit code says whether the ledger balances.
pub(crate) async fn report<S: Shop, B: Shop>(run: &Run<S, B>, outcome: Outcome) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    writeln!(out)?;
    rates(&outcome, &mut out)?;
    match &outcome.end {
        End::Done => {}
        End::Stopped(code) => {
            let standing = standing_of(&run.shop, &run.market).await?;
            let mailed = MailCount::of(&run.mailbox).look()?;
            let done = [standing.placed, standing.totals, standing.revenue, mailed];
            let left = (run.purchases as u64).saturating_sub(done.into_iter().min().unwrap_or(0));
            writeln!(out, "Stopped; {} are left, start it again to go on.", grouped(left))?;
            return Ok(ExitCode::from(*code));
        }
        End::Stalled(why) => writeln!(out, "Given up: {why}. This is what there is.")?,
    }
    writeln!(out)?;
    let input = match &run.arguments.input {
        Some(path) => Input::read(path)?,
        None => Input::of_gzip(crate::input::CDNOW)?,
    };
    let ledger = examine(&run.database, &run.effects, run.folder.path(), &input).await?;
    print(&ledger, &mut out)?;
    let again = ledger.mail_raw.saturating_sub(ledger.mail_distinct);
    let in_flight = u64::from(MAILS_IN_FLIGHT) * u64::from(mailers_killed(&outcome));
    // What was killed before this start is not known, so nothing can be said then.
    let too_many = run.is_new && again > in_flight;
    if too_many {
        writeln!(
            out,
            "{} mails were sent again, and only {} can have been in flight when mailers were killed.",
            grouped(again),
            grouped(in_flight)
        )?;
    }
    let fine = matches!(outcome.end, End::Done) && ledger.is_clean() && !too_many;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn mailers_killed(outcome: &Outcome) -> u32 {
    outcome
        .killed
        .iter()
        .filter(|(kind, _)| *kind == Group::Mailer.name())
        .map(|(_, count)| count)
        .sum()
}

fn rates(outcome: &Outcome, out: &mut impl Write) -> std::io::Result<()> {
    for rate in outcome.rates.iter().filter(|rate| rate.count > 0) {
        let (count, seconds) = (grouped(rate.count), rate.took.as_secs_f64());
        writeln!(
            out,
            "{:>8} {count:>9} in {seconds:>5.1} s {:>10}",
            rate.name,
            rate.per_second()
        )?;
    }
    if !outcome.killed.is_empty() {
        let all: u32 = outcome.killed.iter().map(|(_, count)| count).sum();
        let name = |kind: &str| if kind == "placed" { "placer" } else { kind }.to_owned();
        let each = outcome
            .killed
            .iter()
            .map(|(kind, count)| format!("{} {count}", name(kind)));
        let each = each.collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "  killed {all:>9} processes with SIGKILL ({each}); each was started again"
        )?;
    }
    Ok(())
}
