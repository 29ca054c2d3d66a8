//! `eventloom status`: how far the log and its readers are, what stands in the way, and the command that helps.

mod json;
mod lanes;
mod report;
mod text;

pub(crate) use json::ReaderJson;
pub(crate) use lanes::Lanes;
pub(crate) use report::Report;

use crate::{
    commands::relays,
    failure::{Exit, Failure},
    figures,
    open::{Work, with_store},
    output::Output,
    settings::Settings,
    stop::Stop,
    terminal,
};
use eventloom::{
    ConsumerName, LetterFilter,
    ports::{Backend, HeldState, ReaderStatus},
};
use std::time::Duration;

/// Waiting messages that are looked at for an error. Those that failed come before those that wait behind them.
const WAITING_LOOKED_AT: u32 = 20;
/// A screen that changes faster is not read.
const WATCH_LEAST: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "\
Examples:
  eventloom status
  eventloom status --watch 2s
  eventloom status --json | jq '.readers[] | select(.dead > 0) | .name'
  eventloom status -q || page-somebody

Lag counts the rows of the log above a reader's cursors, of whatever topic, up to 100,000.
With -q nothing is printed but the names of what needs somebody, and the exit
code is 3 when there is any.";

/// Show the log, its readers and their lag, what holds them back, and what to do next
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Print one object of JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print only the names of what needs somebody; exit with 3 when there is any
    #[arg(long, short)]
    quiet: bool,
    /// Show it again and again, until Ctrl-C
    #[arg(long, value_name = "DURATION", value_parser = figures::parse_duration)]
    watch: Option<Duration>,
}

pub(crate) async fn run(arguments: Arguments, settings: &Settings) -> Result<Exit, Failure> {
    with_store(settings, Looking { arguments, settings }).await
}

/// All readers. The store tells the last error of the dead alone; what only waits for its next attempt tells its own here.
async fn readers<S: Backend>(store: &S) -> Result<Vec<ReaderStatus>, Failure> {
    let mut readers = store.readers(None).await?;
    for reader in &mut readers {
        if reader.last_error.is_some() || reader.waiting == 0 {
            continue;
        }
        let Ok(name) = ConsumerName::parse(&reader.name) else {
            continue;
        };
        let mut filter = LetterFilter::default().consumer(name).state(HeldState::Waiting);
        filter.limit = Some(WAITING_LOOKED_AT);
        let waiting = store.letters(&filter).await?;
        let failed = waiting.into_iter().filter(|letter| letter.error.is_some());
        let last = failed.max_by_key(|letter| letter.last_failed_at);
        reader.last_error = last.and_then(|letter| letter.error);
    }
    Ok(readers)
}

impl Report {
    /// Looks at a store.
    pub(crate) async fn read<S: Backend>(store: &S) -> Result<Report, Failure> {
        let readers = readers(store).await?;
        let relays = relays::among(store, &readers).await?;
        Ok(Report::of(store.place(), store.log_status().await?, readers, &relays))
    }
}

struct Looking<'a> {
    arguments: Arguments,
    settings: &'a Settings,
}

impl Work for Looking<'_> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let Some(every) = self.arguments.watch else {
            return self.show(&store).await;
        };
        let mut stop = Stop::new()?;
        tokio::select! {
            done = self.watch(&store, every) => done,
            () = stop.asked() => Ok(Exit::Done),
        }
    }
}

impl Looking<'_> {
    async fn watch<S: Backend>(&self, store: &S, every: Duration) -> Result<Exit, Failure> {
        while !terminal::is_closed() {
            self.show(store).await?;
            tokio::time::sleep(every.max(WATCH_LEAST)).await;
        }
        Ok(Exit::Done)
    }

    async fn show<S: Backend>(&self, store: &S) -> Result<Exit, Failure> {
        let report = Report::read(store).await?;
        let mut output = Output::new();
        if self.arguments.watch.is_some() {
            output.clear()?;
        }
        let mut exit = Exit::Done;
        if self.arguments.json {
            output.json(&json::of(&report, self.settings))?;
        } else if self.arguments.quiet {
            for name in report.need_somebody() {
                output.line(name)?;
                exit = Exit::FoundWrong;
            }
        } else {
            for line in text::lines(&report, self.settings) {
                output.line(&line)?;
            }
        }
        output.flush()?;
        Ok(exit)
    }
}
