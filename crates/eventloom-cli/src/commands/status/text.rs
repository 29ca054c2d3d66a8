//! The screen of `status`: one line for the log and each reader, more where there is something to say.

use super::report::{Reader, Report};
use crate::{
    figures::{age, bounded, since, thousands},
    output::{plain, shortened},
    settings::Settings,
    terminal,
};

/// The names' column, and the indent of what belongs to a name.
const NAME: usize = 13;
const ERROR_CHARACTERS: usize = 160;

pub(crate) fn lines(report: &Report, settings: &Settings) -> Vec<String> {
    let name = report
        .readers
        .iter()
        .map(|reader| reader.status.name.len() + 2)
        .fold(NAME, usize::max);
    let mut lines = log(report, name);
    let cells: Vec<[String; 5]> = report.readers.iter().map(cells).collect();
    let widths: Vec<usize> = (0..5)
        .map(|i| cells.iter().map(|cells| cells[i].chars().count()).max().unwrap_or(0))
        .collect();
    for (reader, cells) in report.readers.iter().zip(&cells) {
        let mut line = format!("{:name$}", reader.status.name);
        for (cell, width) in cells.iter().zip(&widths) {
            line += &format!("{cell:width$}   ");
        }
        lines.push(line);
        lines.extend(held(reader).map(|text| format!("{:name$}{text}", "")));
    }
    if report.readers.is_empty() {
        lines.push("no consumer is registered yet".to_owned());
    }
    lines.extend(report.next(settings).into_iter().map(|next| format!("next: {next}")));
    lines
}

fn log(report: &Report, name: usize) -> Vec<String> {
    let log = &report.log;
    let mut line = format!(
        "{:name$}head {}   horizon {}   {} held back",
        "outbox",
        thousands(log.head.0),
        thousands(log.horizon.0),
        thousands(report.held_back())
    );
    if log.pruned_to.0 > 0 {
        line += &format!("   pruned to {}", thousands(log.pruned_to.0));
    }
    line += &format!("   {}", plain(&report.place));
    let mut lines = vec![line];
    if let Some(blocker) = &log.held_by {
        let who = match blocker.pid {
            Some(pid) => format!("pid {pid} ({})", application(&blocker.application)),
            None => "a prepared transaction".to_owned(),
        };
        let query = plain(blocker.query.trim());
        let query = if query.is_empty() {
            String::new()
        } else {
            format!(": {}", shortened(&query, ERROR_CHARACTERS))
        };
        lines.push(format!(
            "{:name$}held back by {who}, open for {}{query}",
            "",
            age(blocker.open_for)
        ));
    }
    lines
}

fn application(name: &str) -> String {
    if name.is_empty() {
        "no application name".to_owned()
    } else {
        plain(name).into_owned()
    }
}

fn cells(reader: &Reader) -> [String; 5] {
    let (status, lanes) = (&reader.status, &reader.lanes);
    let hints = if reader.hints.is_empty() {
        String::new()
    } else {
        format!("! {}", reader.hints.join(", "))
    };
    let owners = match (lanes.owned(), hints.as_str()) {
        (0, hints) => hints.to_owned(),
        (_, "") => lanes.by_host(),
        (_, hints) => format!("{}   {hints}", lanes.by_host()),
    };
    [
        reader.kind().to_owned(),
        format!("lag {}", bounded(status.lag_messages)),
        format!("oldest {}", status.oldest.map_or("-".to_owned(), age)),
        lanes.count(),
        plain(&owners).into_owned(),
    ]
}

/// What is set aside, and why.
fn held(reader: &Reader) -> impl Iterator<Item = String> {
    let status = &reader.status;
    let mut line = String::new();
    if status.held_keys + status.waiting + status.dead > 0 {
        line = format!(
            "held keys {}   waiting {}   dead {}",
            bounded(status.held_keys),
            bounded(status.waiting),
            bounded(status.dead)
        );
    }
    let error = status.last_error.as_deref().map(|error| {
        let error = plain(error.trim());
        let room = terminal::width().map_or(ERROR_CHARACTERS, |columns| columns.saturating_sub(NAME + 14).max(40));
        format!("last error: {}", shortened(&error, room))
    });
    if let Some(first) = status.first_dead_at {
        line += &format!("   first dead letter {} ago", age(since(first)));
    }
    [Some(line).filter(|line| !line.is_empty()), error]
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use eventloom::{
        Lane, OffsetDateTime, Position, Uuid,
        ports::{Blocker, LaneStatus, LogStatus, ReaderStatus},
    };
    use std::{collections::BTreeSet, time::Duration};

    fn reader(name: &str, owner: impl Fn(i16) -> Option<&'static str>) -> ReaderStatus {
        let lanes = (0..64).map(|lane| LaneStatus::new(Lane(lane), Position(9), owner(lane).map(str::to_owned)));
        let mut reader = ReaderStatus::new(name);
        reader.lanes = lanes.collect();
        reader
    }

    fn screen(log: LogStatus, readers: Vec<ReaderStatus>) -> String {
        let settings = Settings::of_store("shop.db");
        let relays = BTreeSet::from(["mailer".to_owned()]);
        let lines = lines(&Report::of("db:5432/shop".to_owned(), log, readers, &relays), &settings);
        lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn at_three_in_the_morning() {
        let mut blocker = Blocker::new("nightly", Duration::from_secs(252));
        (blocker.pid, blocker.query) = (Some(4711), "UPDATE\n  orders".to_owned());
        let mut log = LogStatus::new(Uuid::nil(), Position(9_412_884), Position(9_000_000));
        (log.horizon, log.held_by) = (Position(9_412_882), Some(blocker));
        let mut invoicing = reader("invoicing", |_| Some("host-a-11-00aa00aa"));
        (invoicing.lag_messages, invoicing.oldest) = (18_204, Some(Duration::from_secs(252)));
        (invoicing.held_keys, invoicing.waiting, invoicing.dead) = (3, 12, 3);
        invoicing.first_dead_at = Some(OffsetDateTime::now_utc() - Duration::from_secs(7261));
        invoicing.last_error = Some("InvoiceError: tax table has no row for 'XK'".to_owned());
        let relay = reader("mailer", |lane| {
            Some(if lane < 32 {
                "host-a-11-00aa00aa"
            } else {
                "host-b-2-00aa00ab"
            })
        });
        let mut paused = reader("revenue", |_| None);
        (paused.paused, paused.lag_messages) = (true, 100_000);
        let expected = "\
outbox       head 9,412,884   horizon 9,412,882   2 held back   pruned to 9,000,000   db:5432/shop
             held back by pid 4711 (nightly), open for 4m12s: UPDATE   orders
invoicing    consumer   lag 18,204     oldest 4m12s   64/64 lanes   host-a 64   ! one host has everything
             held keys 3   waiting 12   dead 3   first dead letter 2h1m ago
             last error: InvoiceError: tax table has no row for 'XK'
mailer       relay      lag 0          oldest -       64/64 lanes   host-a 32 · host-b 32
revenue      consumer   lag 100,000+   oldest -       0/64 lanes    ! paused, nobody runs it
next: let that transaction end, or end it: psql -c 'SELECT pg_terminate_backend(4711)' (it is rolled back)
next: eventloom dlq list --consumer invoicing
next: eventloom consumer resume revenue
";
        assert_eq!(screen(log, vec![invoicing, relay, paused]), expected);
    }

    #[test]
    fn what_waits_after_a_failure() {
        let log = LogStatus::new(Uuid::nil(), Position(3), Position(0));
        let mut invoicing = reader("invoicing", |_| Some("host-a-11-00aa00aa"));
        (invoicing.held_keys, invoicing.waiting) = (1, 2);
        invoicing.last_error = Some("InvoiceError: no such table".to_owned());
        let expected = "\
outbox       head 3   horizon 3   0 held back   db:5432/shop
invoicing    consumer   lag 0   oldest -   64/64 lanes   host-a 64
             held keys 1   waiting 2   dead 0
             last error: InvoiceError: no such table
next: eventloom dlq list --consumer invoicing --state all
";
        assert_eq!(screen(log, vec![invoicing]), expected);
    }

    #[test]
    fn nothing_to_do() {
        let log = LogStatus::new(Uuid::nil(), Position(3), Position(0));
        let some = |lane| (lane > 0).then_some("host-a-11-00aa00aa");
        let expected = "\
outbox       head 3   horizon 3   0 held back   db:5432/shop
invoicing    consumer   lag 0   oldest -   63/64 lanes   host-a 63   ! 1 lane has no owner
";
        assert_eq!(screen(log, vec![reader("invoicing", some)]), expected);
    }
}
