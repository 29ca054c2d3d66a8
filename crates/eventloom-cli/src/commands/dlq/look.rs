//! `dlq list` and `dlq show`.

use super::{consumer, consumer_before_ids, letters};
use crate::{
    commands::consumer::registered,
    event::EventJson,
    failure::{Exit, Failure},
    figures::{age, moment, rfc3339, since},
    open::{With, Work},
    output::{Output, plain, shortened, table, talk},
    settings::Settings,
    terminal,
};
use eventloom::{
    ConsumerName, DeadLetter, LetterFilter, Payload,
    ports::{Backend, HeldState},
};
use serde::Serialize;

const ERROR_CHARACTERS: usize = 100;
const ERROR_CHARACTERS_LEAST: usize = 30;
/// Of a key or a type in the table, which is as wide as its widest.
const NAME_CHARACTERS: usize = 40;

const LIST: &str = "\
Examples:
  eventloom dlq list --consumer invoicing
  eventloom dlq list --consumer invoicing --state all --key order-17
  eventloom dlq list --consumer invoicing -q | xargs eventloom dlq redrive invoicing";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum State {
    Dead,
    Waiting,
    All,
}

/// List dead letters, or what waits for its next attempt or behind its key
#[derive(Debug, clap::Args)]
#[command(after_help = LIST)]
pub(crate) struct List {
    /// Only of this consumer
    #[arg(value_name = "CONSUMER", value_parser = consumer, conflicts_with = "consumer")]
    of: Option<ConsumerName>,
    /// The same as an option
    #[arg(long, value_name = "NAME", value_parser = consumer)]
    consumer: Option<ConsumerName>,
    /// Only of this key
    #[arg(long)]
    key: Option<String>,
    /// Dead ones, waiting ones, or all that is held
    #[arg(long, value_enum, default_value_t = State::Dead)]
    state: State,
    /// At most so many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Print each letter as a line of JSON, complete
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print ids alone; with the consumer before them where several are listed
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) struct Listing<'a> {
    pub(crate) list: List,
    pub(crate) settings: &'a Settings,
}

impl Work for Listing<'_> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let list = &self.list;
        let whose = list.of.as_ref().or(list.consumer.as_ref());
        if let Some(name) = whose {
            registered(&store, name, self.settings).await?;
        }
        let state = match list.state {
            State::Dead => Some(HeldState::Dead),
            State::Waiting => Some(HeldState::Waiting),
            State::All => None,
        };
        let mut filter = LetterFilter::default();
        (filter.consumer, filter.state, filter.key) = (whose.cloned(), state, list.key.clone());
        let (found, more) = letters(&store, filter, list.limit).await?;
        let mut output = Output::new();
        if list.json {
            found
                .iter()
                .try_for_each(|letter| output.json(&LetterJson::of(letter)))?;
        } else if list.quiet {
            for letter in &found {
                match whose {
                    Some(_) => output.line(&letter.message.envelope.id)?,
                    None => output.line(&format!("{} {}", letter.consumer, letter.message.envelope.id))?,
                }
            }
        } else if !found.is_empty() {
            let header = [
                "CONSUMER",
                "ID",
                "STATE",
                "TYPE",
                "KEY",
                "ATTEMPTS",
                "LAST FAILURE",
                "ERROR",
            ];
            output.line(&table(&header, rows(&found)))?;
        }
        output.flush()?;
        if !list.json && !list.quiet {
            self.say_more(&found, more);
        }
        Ok(Exit::Done)
    }
}

impl Listing<'_> {
    fn nothing(&self) -> String {
        let what = match self.list.state {
            State::Dead => "there are no dead letters",
            State::Waiting => "there are no waiting messages",
            State::All => "nothing is held",
        };
        let whose = self.list.of.as_ref().or(self.list.consumer.as_ref());
        let of = whose.map_or(String::new(), |name| format!(" of {name}"));
        let with = self
            .list
            .key
            .as_ref()
            .map_or(String::new(), |key| format!(" with key {key:?}"));
        format!("{what}{of}{with}")
    }

    fn say_more(&self, found: &[DeadLetter], more: bool) {
        if more {
            talk(&format!(
                "there are more; --limit {} shows more",
                self.list.limit.saturating_mul(10)
            ));
        }
        match found
            .iter()
            .find(|letter| letter.state == HeldState::Dead)
            .or(found.first())
        {
            None => talk(&self.nothing()),
            Some(letter) => {
                let show = format!("dlq show {} {}", letter.consumer, plain(&letter.message.envelope.id));
                talk(&format!("next: {}", self.settings.command(&show)));
            }
        }
    }
}

/// One row a letter; on a terminal the errors are cut to what is left of its width.
fn rows(letters: &[DeadLetter]) -> Vec<Vec<String>> {
    let mut rows: Vec<_> = letters.iter().map(row).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0) + 2;
    let before: usize = (0..7).map(width).sum();
    let room = terminal::width().map_or(ERROR_CHARACTERS, |columns| columns.saturating_sub(before + 1));
    for (row, letter) in rows.iter_mut().zip(letters) {
        let error = letter.error.as_deref().unwrap_or("(waits behind its key)");
        row.push(shortened(&plain(error), room.max(ERROR_CHARACTERS_LEAST)).into_owned());
    }
    rows
}

fn row(letter: &DeadLetter) -> Vec<String> {
    let envelope = &letter.message.envelope;
    vec![
        letter.consumer.clone(),
        plain(&envelope.id).into_owned(),
        state(letter).to_owned(),
        shortened(&plain(&envelope.event_type), NAME_CHARACTERS).into_owned(),
        shortened(&plain(envelope.key.as_deref().unwrap_or("-")), NAME_CHARACTERS).into_owned(),
        letter.attempts.to_string(),
        letter
            .last_failed_at
            .map_or("-".to_owned(), |at| age(since(at)) + " ago"),
    ]
}

fn state(letter: &DeadLetter) -> &'static str {
    match (letter.state, letter.redrives > 0) {
        (HeldState::Waiting, true) => "redriven",
        (state, _) => state.as_str(),
    }
}

/// Show one held message with its payload and its last error
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// The consumer
    #[arg(value_parser = consumer_before_ids)]
    consumer: ConsumerName,
    /// Logical id of the message
    id: String,
    /// Print one object of JSON
    #[arg(long)]
    json: bool,
}

impl Work for With<'_, Show> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let Show { consumer, id, json } = self.command;
        let Some(letter) = store.letter(&consumer, &id).await? else {
            registered(&store, &consumer, self.settings).await?;
            let list = format!("dlq list --consumer {consumer} --state all");
            return Err(
                Failure::new(format!("{consumer} holds no message {}", plain(&id))).next(self.settings.command(&list))
            );
        };
        let mut output = Output::new();
        if json {
            output.json(&LetterJson::of(&letter))?;
        } else {
            describe(&letter, &mut output)?;
        }
        output.flush()?;
        Ok(Exit::Done)
    }
}

fn describe(letter: &DeadLetter, output: &mut Output) -> Result<(), Failure> {
    let envelope = &letter.message.envelope;
    let when = |time| format!("{} ({} ago)", moment(time), age(since(time)));
    let queued = if letter.queued {
        ", its key waits with it"
    } else {
        ", it stands alone"
    };
    let due = letter.due_at.map(|due| format!("tried again at {}", moment(due)));
    let fields = [
        ("consumer", Some(letter.consumer.clone())),
        ("id", Some(envelope.id.clone())),
        ("state", Some(format!("{}{queued}", state(letter)))),
        ("due", due),
        ("attempts", Some(letter.attempts.to_string())),
        ("first failure", letter.first_failed_at.map(when)),
        ("last failure", letter.last_failed_at.map(when)),
        ("held since", Some(when(letter.held_at))),
        ("held by", Some(letter.held_by.clone())),
        (
            "position",
            Some(format!("{} in lane {}", letter.message.position, letter.message.lane)),
        ),
        ("topic", Some(envelope.topic.clone())),
        (
            "type",
            Some(format!("{} (version {})", envelope.event_type, envelope.schemaversion)),
        ),
        ("key", envelope.key.clone()),
        ("source", envelope.source.clone()),
        ("subject", envelope.subject.clone()),
        ("time", Some(moment(envelope.time))),
        ("content type", envelope.datacontenttype.clone()),
        ("data schema", envelope.dataschema.clone()),
        ("correlation", envelope.correlationid.clone()),
        ("causation", envelope.causationid.clone()),
        ("trace", envelope.traceparent.clone()),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            output.line(&format!("{name:15}{}", plain(&value)))?;
        }
    }
    for (name, value) in &envelope.headers {
        output.line(&format!("{:15}{}: {}", "header", plain(name), plain(value)))?;
    }
    let error = letter.error.as_deref().unwrap_or("none: it waits behind its key");
    for (line, name) in error.lines().zip(std::iter::once("error").chain(std::iter::repeat(""))) {
        output.line(&format!("{name:15}{}", plain(line)))?;
    }
    match &envelope.payload {
        None => output.line("no payload"),
        Some(Payload::Binary(bytes)) if std::str::from_utf8(bytes).is_err() => output.line(&format!(
            "{} bytes that are no text; --json prints them in base64",
            bytes.len()
        )),
        Some(payload) => {
            output.line("")?;
            let text = String::from_utf8_lossy(payload.bytes());
            text.lines().try_for_each(|line| output.line(&plain(line)))
        }
    }
}

/// A held message in JSON.
#[derive(Serialize)]
struct LetterJson<'a> {
    consumer: &'a str,
    id: &'a str,
    state: &'static str,
    queued: bool,
    redriven: bool,
    attempts: u32,
    due_at: Option<String>,
    error: Option<&'a str>,
    fingerprint: Option<&'a str>,
    first_failed_at: Option<String>,
    last_failed_at: Option<String>,
    held_at: String,
    held_by: &'a str,
    message: EventJson<'a>,
}

impl<'a> LetterJson<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        LetterJson {
            consumer: &letter.consumer,
            id: &letter.message.envelope.id,
            state: letter.state.as_str(),
            queued: letter.queued,
            redriven: letter.redrives > 0,
            attempts: letter.attempts,
            due_at: letter.due_at.map(rfc3339),
            error: letter.error.as_deref(),
            fingerprint: letter.fingerprint.as_deref(),
            first_failed_at: letter.first_failed_at.map(rfc3339),
            last_failed_at: letter.last_failed_at.map(rfc3339),
            held_at: rfc3339(letter.held_at),
            held_by: &letter.held_by,
            message: EventJson::of(&letter.message),
        }
    }
}
