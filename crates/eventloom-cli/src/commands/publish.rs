//! `eventloom publish`: one event, in a transaction of its own.

use crate::{
    failure::{Exit, Failure},
    open::{Work, with_store},
    output::{Output, talk},
    settings::Settings,
};
use eventloom::{NewEvent, Payload, Publish, Topic, Uuid, ports::Backend};
use serde_json::value::RawValue;
use std::{
    io::{self, Read},
    path::PathBuf,
};

const EXAMPLES: &str = "\
Examples:
  eventloom publish orders order.placed --key order-17 --data '{\"total\": \"12.50\"}'
  jq .order day.json | eventloom publish orders order.placed --key order-17 -
  eventloom publish scans scan.taken --data-file scan.png --content-type image/png

After an answer was lost, publish again with the same --id: consumers handle an
id once.";

/// Publish one event in a transaction of its own, and print its id
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where it goes
    #[arg(value_parser = |text: &str| Topic::parse(text))]
    topic: Topic,
    /// What happened, such as order.placed
    #[arg(value_name = "TYPE")]
    event_type: String,
    /// Read the payload from stdin, as --data-file - does
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true, group = "payload")]
    stdin: Option<String>,
    /// The payload
    #[arg(long, value_name = "JSON", group = "payload", allow_hyphen_values = true)]
    data: Option<String>,
    /// Read the payload from a file; - is stdin
    #[arg(long, value_name = "FILE", group = "payload")]
    data_file: Option<PathBuf>,
    /// Media type of the payload. Any other than JSON is stored as bytes; JSON is what it must be without one
    #[arg(long, value_name = "TYPE", requires = "payload")]
    content_type: Option<String>,
    /// What must stay in order: events of one key are handled in the order of their inserts
    #[arg(long)]
    key: Option<String>,
    /// A further header; may be given again
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Logical id, on which consumers dedup; a fresh one unless given
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    /// CloudEvents subject
    #[arg(long)]
    subject: Option<String>,
    /// CloudEvents source
    #[arg(long, value_name = "URI")]
    source: Option<String>,
    /// Print the id and nothing else
    #[arg(long, short)]
    quiet: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a header is written NAME=VALUE".to_owned()),
    }
}

pub(crate) async fn run(arguments: Arguments, settings: &Settings) -> Result<Exit, Failure> {
    let payload = payload(&arguments)?;
    with_store(
        settings,
        Publishing {
            event: event(&arguments, payload),
            quiet: arguments.quiet,
        },
    )
    .await
}

/// Everything is checked before the store is asked.
fn payload(arguments: &Arguments) -> Result<Option<Payload>, Failure> {
    let (bytes, from) = match (&arguments.data, &arguments.data_file, &arguments.stdin) {
        (Some(data), ..) => (data.clone().into_bytes(), "--data".to_owned()),
        (_, Some(file), _) if file.as_os_str() != "-" => {
            let bytes = std::fs::read(file);
            let failed = |error| Failure::new(format!("cannot read {}: {error}", file.display()));
            (bytes.map_err(failed)?, file.display().to_string())
        }
        (None, None, None) => return Ok(None),
        _ => {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| Failure::new(format!("cannot read stdin: {error}")))?;
            (bytes, "stdin".to_owned())
        }
    };
    if arguments
        .content_type
        .as_deref()
        .is_some_and(|media_type| !is_json(media_type))
    {
        return Ok(Some(Payload::Binary(bytes)));
    }
    let refused = |why: String| {
        Failure::new(format!("{from} is not valid JSON: {why}"))
            .next("mend it, or say with --content-type what else it is; it is then stored as bytes")
    };
    let text = String::from_utf8(bytes).map_err(|error| refused(error.to_string()))?;
    serde_json::from_str::<&RawValue>(&text).map_err(|error| refused(error.to_string()))?;
    Ok(Some(Payload::Json(text)))
}

/// `application/json`, `application/vnd.shop+json; charset=utf-8`.
fn is_json(media_type: &str) -> bool {
    let essence = media_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

fn event(arguments: &Arguments, payload: Option<Payload>) -> NewEvent {
    let mut event = NewEvent::untyped(arguments.topic.clone(), arguments.event_type.clone());
    if let Some(payload) = payload {
        event = event.with_payload(payload);
    }
    if let Some(media_type) = &arguments.content_type {
        event = event.with_datacontenttype(media_type);
    }
    if let Some(key) = &arguments.key {
        event = event.with_key(key);
    }
    if let Some(id) = arguments.id {
        event = event.with_id(id);
    }
    if let Some(subject) = &arguments.subject {
        event = event.with_subject(subject);
    }
    if let Some(source) = &arguments.source {
        event = event.with_source(source);
    }
    arguments
        .headers
        .iter()
        .fold(event, |event, (name, value)| event.with_header(name, value))
}

struct Publishing {
    event: NewEvent,
    quiet: bool,
}

impl Work for Publishing {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let (id, what) = (
            self.event.id(),
            format!("{} to {}", self.event.event_type(), self.event.topic()),
        );
        store.publish_row(self.event).await.map_err(|error| match error {
            error if error.may_have_happened() => {
                Failure::of(&error).next(format!("publish it again with --id {id}: consumers handle an id once"))
            }
            error => error.into(),
        })?;
        let mut output = Output::new();
        output.line(&id.to_string())?;
        output.flush()?;
        if !self.quiet {
            talk(&format!("published {what} at {}", store.place()));
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types() {
        let types = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.shop+json", true),
            ("text/plain", false),
            ("image/png", false),
        ];
        for (media_type, json) in types {
            assert_eq!(is_json(media_type), json, "{media_type}");
        }
    }
}
