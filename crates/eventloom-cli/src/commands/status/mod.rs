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
use eventloom::ports::Backend;
use std::time::Duration;

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

impl Report {
    /// Looks at a store.
    pub(crate) async fn read<S: Backend>(store: &S) -> Result<Report, Failure> {
        let readers = store.readers(None).await?;
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
