//! `eventloom consumer …`: which consumers there are, and where they stand.

use super::status::{ReaderJson, Report};
use crate::{
    ask::Consent,
    failure::{Exit, Failure},
    figures::{self, age, bounded, counted, thousands},
    open::{With, Work, with_store},
    output::{Output, plain, table, talk},
    settings::Settings,
};
use eventloom::{
    ConsumerName, OffsetDateTime, Position, Start,
    ports::{Backend, ReaderStatus, RegisterError},
};

const RESET: &str = "\
Examples:
  eventloom consumer reset invoicing --since 2026-11-30T02:00:00Z --dry-run
  eventloom consumer reset invoicing --earliest --forget-handled --yes

Going back delivers again; what the inbox knows as handled has no second effect,
unless --forget-handled. Going forward passes over what lies between. Held
messages stay as they are. Running instances notice at their next commit, drop
what they were doing, and go on from the new place.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    List(List),
    Pause(Pause),
    Resume(Resume),
    Reset(Reset),
    Drop(Drop),
}

/// List consumers and relays with their lag and what they hold
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Print each consumer as a line of JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print names alone
    #[arg(long, short)]
    quiet: bool,
}

/// Stop delivery to a consumer; what runs is finished, and the log is kept for it
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    named: Named,
}

/// Start delivery to a paused consumer again
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    named: Named,
}

/// Put a consumer at another place of the log
#[derive(Debug, clap::Args)]
#[command(after_help = RESET, group = clap::ArgGroup::new("place").required(true))]
pub(crate) struct Reset {
    #[command(flatten)]
    named: Named,
    /// To the oldest event that is left
    #[arg(long, group = "place")]
    earliest: bool,
    /// After everything that there is
    #[arg(long, group = "place")]
    latest: bool,
    /// After this position
    #[arg(long, value_name = "POSITION", group = "place")]
    after: Option<i64>,
    /// To the first event that was inserted then: 2026-11-30T15:14:00Z, 2026-11-30, or how long ago (10m)
    #[arg(long, value_name = "TIME", value_parser = figures::parse_moment, group = "place")]
    since: Option<OffsetDateTime>,
    /// All of these in one: earliest, latest, a position, or a time
    #[arg(long, value_name = "PLACE", value_parser = figures::parse_start, allow_negative_numbers = true, group = "place")]
    to: Option<Start>,
    /// Forget what was handled, so that it is handled again
    #[arg(long)]
    forget_handled: bool,
    #[command(flatten)]
    consent: Consent,
}

/// Remove a consumer with its cursors, its inbox and its held messages
#[derive(Debug, clap::Args)]
pub(crate) struct Drop {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The consumer
    #[arg(value_parser = |text: &str| ConsumerName::parse(text))]
    consumer: ConsumerName,
    /// Say nothing
    #[arg(long, short)]
    quiet: bool,
}

impl Named {
    fn talk(&self, text: &str) {
        if !self.quiet {
            talk(text);
        }
    }
}

pub(crate) async fn run(verb: Verb, settings: &Settings) -> Result<Exit, Failure> {
    match verb {
        Verb::List(list) => with_store(settings, list).await,
        Verb::Pause(Pause { named }) => {
            let command = Pausing { named, paused: true };
            with_store(settings, With { command, settings }).await
        }
        Verb::Resume(Resume { named }) => {
            let command = Pausing { named, paused: false };
            with_store(settings, With { command, settings }).await
        }
        Verb::Reset(command) => with_store(settings, With { command, settings }).await,
        Verb::Drop(command) => with_store(settings, With { command, settings }).await,
    }
}

/// The consumer as it is, or who was probably meant.
pub(crate) async fn registered<S: Backend>(
    store: &S,
    name: &ConsumerName,
    settings: &Settings,
) -> Result<ReaderStatus, Failure> {
    let mut readers = store.readers(None).await?;
    match readers.iter().position(|reader| reader.name == name.as_str()) {
        Some(found) => Ok(readers.swap_remove(found)),
        None => {
            let failure = Failure::new(format!("no consumer {name} is registered at {}", store.place()));
            let names = readers.iter().map(|reader| reader.name.as_str());
            Err(match figures::nearest(name.as_str(), names) {
                Some(nearest) => failure.next(format!("did you mean {nearest}?")),
                None => failure.next(settings.command("consumer list")),
            })
        }
    }
}

impl Work for List {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let report = Report::read(&store).await?;
        let mut output = Output::new();
        if self.json {
            report
                .readers
                .iter()
                .try_for_each(|reader| output.json(&ReaderJson::of(reader)))?;
        } else if self.quiet {
            report
                .readers
                .iter()
                .try_for_each(|reader| output.line(&reader.status.name))?;
        } else if report.readers.is_empty() {
            talk(&format!("no consumer is registered at {}", report.place));
        } else {
            let rows = report.readers.iter().map(|reader| {
                let status = &reader.status;
                vec![
                    status.name.clone(),
                    reader.kind().to_owned(),
                    if status.paused { "paused" } else { "active" }.to_owned(),
                    bounded(status.lag_messages),
                    status.oldest.map_or("-".to_owned(), age),
                    bounded(status.held_keys),
                    bounded(status.waiting),
                    bounded(status.dead),
                    reader.lanes.count(),
                    plain(&reader.lanes.by_host()).into_owned(),
                ]
            });
            let header = [
                "CONSUMER",
                "KIND",
                "STATE",
                "LAG",
                "OLDEST",
                "HELD KEYS",
                "WAITING",
                "DEAD",
                "LANES",
                "OWNERS",
            ];
            output.line(&table(&header, rows.collect()))?;
        }
        output.flush()?;
        Ok(Exit::Done)
    }
}

struct Pausing {
    named: Named,
    paused: bool,
}

impl Work for With<'_, Pausing> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let With { command, settings } = self;
        let name = &command.named.consumer;
        let before = registered(&store, name, settings).await?;
        if !store.pause(name, command.paused).await? {
            return Err(gone(name));
        }
        command
            .named
            .talk(&match (before.paused == command.paused, command.paused) {
                (true, true) => format!("{name} is paused already"),
                (true, false) => format!("{name} was not paused"),
                (false, true) => format!("{name} is paused: what runs is finished, nothing new is delivered"),
                (false, false) => format!("{name} goes on, {} behind", counted(before.lag_messages, "message")),
            });
        Ok(Exit::Done)
    }
}

impl Reset {
    fn start(&self) -> Start {
        if let Some(to) = self.to {
            return to;
        }
        match (self.earliest, self.after, self.since) {
            (true, ..) => Start::Earliest,
            (_, Some(after), _) => Start::After(Position(after)),
            (_, _, Some(since)) => Start::Since(since),
            _ => Start::Latest,
        }
    }
}

impl Work for With<'_, Reset> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let With { command, settings } = self;
        let name = &command.named.consumer;
        let before = registered(&store, name, settings).await?;
        let to = command.start();
        let position = place_of(&store, to).await?;
        let forgetting = if command.forget_handled {
            ", and forget what it has handled"
        } else {
            ""
        };
        let place = thousands(position.0);
        let lowest = before.lanes.iter().map(|lane| lane.position).min().unwrap_or_default();
        let highest = before.lanes.iter().map(|lane| lane.position).max().unwrap_or_default();
        let now = match lowest == highest {
            true => format!("at {}", thousands(lowest.0)),
            false => format!("between {} and {}", thousands(lowest.0), thousands(highest.0)),
        };
        let what = format!("put {name} (now {now}) after position {place}{forgetting}");
        let pruned_to = store.log_status().await?.pruned_to;
        if pruned_to.0 > 0 && position <= pruned_to && to != Start::Latest {
            command.named.talk(&format!(
                "rows up to {} were pruned: they cannot be delivered again. Services keep them \
                 longer with Eventloom::keep_log, relays with --keep-log",
                thousands(pruned_to.0)
            ));
        }
        if let Some(exit) = command.consent.only_told(&format!("would {what}")) {
            return Ok(exit);
        }
        command.consent.ask(&what)?;
        match store.reset(name, to, command.forget_handled, None).await? {
            Some(position) => command
                .named
                .talk(&format!("{name} goes on after position {}", thousands(position.0))),
            None => return Err(gone(name)),
        }
        Ok(Exit::Done)
    }
}

/// Where a reset will lead, as far as that can be said before.
async fn place_of<S: Backend>(store: &S, to: Start) -> Result<Position, Failure> {
    Ok(match to {
        Start::Earliest => store.log_status().await?.pruned_to,
        Start::Latest => store.horizon().await?.handed_out,
        Start::Since(time) => store.position_at(time).await?,
        Start::After(asked) => {
            let log = store.log_status().await?;
            if asked < log.pruned_to {
                return Err(RegisterError::Pruned {
                    asked,
                    pruned_to: log.pruned_to,
                }
                .into());
            }
            if asked > log.head {
                return Err(Failure::new(format!(
                    "position {} lies above the head of the log, {}: what comes in between would never be delivered",
                    thousands(asked.0),
                    thousands(log.head.0)
                ))
                .next("give a position of the log, or --latest"));
            }
            asked
        }
    })
}

impl Work for With<'_, Drop> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let With { command, settings } = self;
        let name = &command.named.consumer;
        let before = registered(&store, name, settings).await?;
        let what = format!(
            "drop {name} with its cursors, its inbox, {} and {}",
            counted(before.waiting, "waiting message"),
            counted(before.dead, "dead letter")
        );
        let running = before.lanes.iter().filter(|lane| lane.owner.is_some()).count();
        if running > 0 {
            command.named.talk(&format!(
                "{name} is running: instances own {running} of its lanes and will stop working"
            ));
        }
        if let Some(exit) = command.consent.only_told(&format!("would {what}")) {
            return Ok(exit);
        }
        command.consent.ask(&what)?;
        match store.drop_reader(name).await? {
            true => command.named.talk(&format!("{name} is dropped")),
            false => return Err(gone(name)),
        }
        Ok(Exit::Done)
    }
}

fn gone(name: &ConsumerName) -> Failure {
    Failure::new(format!("{name} was dropped by somebody else meanwhile"))
}
