//! `dlq redrive` and `dlq delete`: both change states alone; the consumer's own instances do the handling.

use super::{consumer_before_ids, letters};
use crate::{
    ask::Consent,
    commands::consumer::registered,
    failure::{Exit, Failure},
    figures::{counted, thousands},
    open::{With, Work},
    output::{Output, plain, talk},
    settings::Settings,
};
use eventloom::{
    ConsumerName, LetterFilter, Redrive,
    ports::{Backend, HeldState, ReaderStatus},
};

/// Ids that one statement deletes.
const DELETED_AT_ONCE: usize = 500;
/// Ids that a dry run names; the rest is a number.
const NAMED_MOST: usize = 1000;

/// Which dead letters of a consumer are meant.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Logical ids of dead letters
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All of this key
    #[arg(long)]
    key: Option<String>,
    /// All of the consumer
    #[arg(long)]
    all: bool,
}

impl Which {
    /// Ids of the dead letters that are meant, and of those given that are none.
    async fn found<S: Backend>(&self, store: &S, name: &ConsumerName) -> Result<(Vec<String>, Vec<String>), Failure> {
        if self.ids.is_empty() {
            let mut filter = LetterFilter::default().consumer(name.clone()).state(HeldState::Dead);
            filter.key = self.key.clone();
            let (found, _) = letters(store, filter, usize::MAX - 1).await?;
            return Ok((
                found.into_iter().map(|letter| letter.message.envelope.id).collect(),
                Vec::new(),
            ));
        }
        let (mut dead, mut others) = (Vec::new(), Vec::new());
        for id in &self.ids {
            let letter = store.letter(name, id).await?;
            let is_dead = letter.is_some_and(|letter| letter.state == HeldState::Dead);
            if is_dead {
                dead.push(id.clone())
            } else {
                others.push(id.clone())
            }
        }
        Ok((dead, others))
    }

    fn words(&self, count: usize) -> String {
        let letters = counted(count as u64, "dead letter");
        match &self.key {
            Some(key) => format!("{letters} of key {}", plain(key)),
            None if self.all && count > 1 => format!("all {letters}"),
            None => letters,
        }
    }
}

/// Send dead letters again: they are tried at once, with fresh attempts, those of a key in order
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "eventloom dlq redrive [OPTIONS] <CONSUMER> <ID>...|--key <KEY>|--all",
    after_help = "\
Examples:
  eventloom dlq redrive invoicing 0193a3f2-…
  eventloom dlq redrive invoicing --key order-17
  eventloom dlq redrive invoicing --all --dry-run

The consumer's running instances handle them; nothing is handled here. What fails again is dead again."
)]
pub(crate) struct Redriving {
    #[command(flatten)]
    verb: Verb,
}

/// Give dead letters up for good; what waits behind them flows on
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "eventloom dlq delete [OPTIONS] <CONSUMER> <ID>...|--key <KEY>|--all",
    after_help = "\
Examples:
  eventloom dlq show invoicing 0193a3f2-… --json > kept.json
  eventloom dlq delete invoicing 0193a3f2-…
  eventloom dlq delete invoicing --key order-17 --dry-run

A message that still waits is left alone. What is deleted is gone: no copy is kept."
)]
pub(crate) struct Deleting {
    #[command(flatten)]
    verb: Verb,
}

#[derive(Debug, clap::Args)]
struct Verb {
    /// The consumer
    #[arg(value_parser = consumer_before_ids)]
    consumer: ConsumerName,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    consent: Consent,
    /// Print the number alone
    #[arg(long, short)]
    quiet: bool,
}

impl Verb {
    /// What is meant, after a yes; `asks`: also where every id was given by hand. `None`: there is nothing to do, or only telling was asked for.
    async fn agreed<S: Backend>(
        &self,
        store: &S,
        verb: &str,
        asks: bool,
        settings: &Settings,
    ) -> Result<Option<(ReaderStatus, Vec<String>)>, Failure> {
        let status = registered(store, &self.consumer, settings).await?;
        let (ids, others) = self.which.found(store, &self.consumer).await?;
        for id in &others {
            talk(&format!(
                "{} is no dead letter of {} and is left alone",
                plain(id),
                self.consumer
            ));
        }
        if ids.is_empty() && !others.is_empty() {
            return Err(
                Failure::new(format!("none of these is a dead letter of {}", self.consumer))
                    .next(settings.command(&format!("dlq list --consumer {}", self.consumer))),
            );
        }
        if ids.is_empty() {
            self.done(0, &format!("{} has no such dead letters", self.consumer))?;
            return Ok(None);
        }
        let words = self.which.words(ids.len());
        if self.consent.dry_run {
            let mut output = Output::new();
            ids.iter().take(NAMED_MOST).try_for_each(|id| output.line(id))?;
            output.flush()?;
            talk(&format!(
                "dry run: would {verb} {words} of {}; nothing was changed",
                self.consumer
            ));
            return Ok(None);
        }
        if asks || self.which.ids.is_empty() {
            self.consent.ask(&format!("{verb} {words} of {}", self.consumer))?;
        }
        Ok(Some((status, ids)))
    }

    fn done(&self, count: u64, words: &str) -> Result<(), Failure> {
        if !self.quiet {
            talk(words);
            return Ok(());
        }
        let mut output = Output::new();
        output.line(&count.to_string())?;
        output.flush()
    }
}

impl Work for With<'_, Redriving> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let verb = &self.command.verb;
        let Some((status, ids)) = verb.agreed(&store, "redrive", false, self.settings).await? else {
            return Ok(Exit::Done);
        };
        let name = &verb.consumer;
        let mut count = 0;
        match (&verb.which.key, verb.which.all) {
            (Some(key), _) => count = store.redrive(name, &Redrive::Key(key.clone()), None).await?,
            (None, true) => count = store.redrive(name, &Redrive::All, None).await?,
            (None, false) => {
                for id in ids {
                    count += store.redrive(name, &Redrive::One(id), None).await?;
                }
            }
        }
        let runs = status.lanes.iter().any(|lane| lane.owner.is_some());
        let when = match (runs, status.paused) {
            (_, true) => {
                let resume = self.settings.command(&format!("consumer resume {name}"));
                format!("they wait until somebody resumes it: {resume}")
            }
            (true, false) => "its instances try them now".to_owned(),
            (false, false) => "they wait until an instance of it is started: nobody runs it".to_owned(),
        };
        verb.done(count, &format!("redriven {} of {name}; {when}", thousands(count)))?;
        Ok(Exit::Done)
    }
}

impl Work for With<'_, Deleting> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let verb = &self.command.verb;
        let Some((_, ids)) = verb.agreed(&store, "delete", true, self.settings).await? else {
            return Ok(Exit::Done);
        };
        let name = &verb.consumer;
        let mut count = 0;
        for ids in ids.chunks(DELETED_AT_ONCE) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            count += store.delete_letters(name, &ids, None).await?;
        }
        verb.done(
            count,
            &format!(
                "deleted {} of {name}; what waited behind them flows on",
                thousands(count)
            ),
        )?;
        Ok(Exit::Done)
    }
}
