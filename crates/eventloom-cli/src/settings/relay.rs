//! The settings of `relay`.

use super::{
    Settings,
    key::{Key, number, switch},
};
use crate::{failure::Failure, figures};
use eventloom::{ConsumerName, SchemaName, Start, Topic};
use std::time::Duration;

/// What the command line says of a relay. What is left out comes from the environment, then from the table `[relay]` of
/// the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct RelayFlags {
    /// The target: postgres://USER@HOST/DATABASE, sqlite://PATH, a plain path, or null: to confirm everything and throw
    /// it away [env: EVENTLOOM_RELAY_TO]
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Schema of the target's tables on Postgres, `eventloom` unless said otherwise [env: EVENTLOOM_RELAY_TO_SCHEMA]
    #[arg(long, value_name = "NAME")]
    to_schema: Option<String>,
    /// The connection to the target leads through a pooler in transaction mode [env: EVENTLOOM_RELAY_TO_POOLED]
    #[arg(long)]
    to_pooled: bool,
    /// Name of the relay, `relay` unless said otherwise; instances of one name share the work [env: EVENTLOOM_RELAY_NAME]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only this topic; can be repeated. All of them unless given [env: EVENTLOOM_RELAY_TOPICS, with commas]
    #[arg(long, value_name = "TOPIC")]
    topic: Vec<String>,
    /// Where a new relay begins: earliest (unless said otherwise), latest, after a position, or at a time
    /// (2026-11-30T15:14:00Z, 10m). One that exists goes on where it is [env: EVENTLOOM_RELAY_FROM]
    #[arg(long, value_name = "PLACE", allow_negative_numbers = true)]
    from: Option<String>,
    /// Messages that are handed over together at most, 1 to 10,000; 1000 unless said otherwise [env: EVENTLOOM_RELAY_BATCH]
    #[arg(long, value_name = "N")]
    batch: Option<String>,
    /// Batches at once, 1 to 64; 4 unless said otherwise [env: EVENTLOOM_RELAY_IN_FLIGHT]
    #[arg(long, value_name = "N")]
    in_flight: Option<String>,
    /// How long lanes stay with an instance that is gone, 300ms to 1h; 20s unless said otherwise
    /// [env: EVENTLOOM_RELAY_LEASE]
    #[arg(long, value_name = "DURATION")]
    lease: Option<String>,
    /// How long the target may take to confirm a batch; half of the lease, and at most that
    /// [env: EVENTLOOM_RELAY_CONFIRM_WITHIN]
    #[arg(long, value_name = "DURATION")]
    confirm_within: Option<String>,
    /// Keep events in the log for so long after every reader has passed them, or `forever`; 0s unless said otherwise
    /// [env: EVENTLOOM_RELAY_KEEP_LOG]
    #[arg(long, value_name = "DURATION")]
    keep_log: Option<String>,
    /// Answer /metrics, /health/live and /health/ready here: a port of this machine, or HOST:PORT
    /// [env: EVENTLOOM_RELAY_LISTEN]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
}

/// A relay as it was asked for.
#[derive(Debug)]
pub(crate) struct RelaySettings {
    pub(crate) name: ConsumerName,
    pub(crate) to: String,
    pub(crate) to_schema: Option<SchemaName>,
    pub(crate) to_pooled: bool,
    pub(crate) topics: Vec<Topic>,
    pub(crate) from: Start,
    pub(crate) batch: u32,
    pub(crate) in_flight: u32,
    pub(crate) lease: Duration,
    pub(crate) confirm_within: Option<Duration>,
    /// `None`: for ever.
    pub(crate) keep_log: Option<Duration>,
    /// Where metrics and health can be asked for.
    pub(crate) listen: Option<String>,
}

impl Settings {
    /// What is wrong with what environment and file say of a relay. The target may come later, by a flag.
    pub(crate) fn check_relay(&self) -> Result<(), Failure> {
        let to = self.values.said(Key::RelayTo).is_none().then(|| "null:".to_owned());
        let flags = RelayFlags {
            to,
            ..RelayFlags::default()
        };
        self.relay(&flags).map(drop)
    }

    /// The relay that flags, environment and file ask for.
    pub(crate) fn relay(&self, flags: &RelayFlags) -> Result<RelaySettings, Failure> {
        let mut values = self.values.clone();
        let flags = flags.clone();
        let topics = (!flags.topic.is_empty()).then(|| flags.topic.join(","));
        let to_pooled = flags.to_pooled.then(|| "true".to_owned());
        for (key, text) in [
            (Key::RelayTo, flags.to),
            (Key::RelayToSchema, flags.to_schema),
            (Key::RelayToPooled, to_pooled),
            (Key::RelayName, flags.name),
            (Key::RelayTopics, topics),
            (Key::RelayFrom, flags.from),
            (Key::RelayBatch, flags.batch),
            (Key::RelayInFlight, flags.in_flight),
            (Key::RelayLease, flags.lease),
            (Key::RelayConfirmWithin, flags.confirm_within),
            (Key::RelayKeepLog, flags.keep_log),
            (Key::RelayListen, flags.listen),
        ] {
            values.flag(key, text)?;
        }
        let to = values.said(Key::RelayTo).ok_or_else(|| {
            Failure::usage("no target is given").next(
                "give --to postgres://USER@HOST/DATABASE or --to sqlite://PATH, set EVENTLOOM_RELAY_TO, or write to = \
                 \"…\" under [relay] in eventloom.toml",
            )
        })?;
        let schema_is_named = values.said(Key::RelayToSchema).is_some();
        let to_schema = values.read(Key::RelayToSchema, |text| SchemaName::parse(text))?;
        Ok(RelaySettings {
            name: values
                .read(Key::RelayName, |text| ConsumerName::parse(text))?
                .ok_or_else(|| Failure::usage("a relay needs a name"))?,
            to: to.text.clone(),
            to_schema: to_schema.filter(|_| schema_is_named),
            to_pooled: values.read(Key::RelayToPooled, switch)?.unwrap_or_default(),
            topics: values.read(Key::RelayTopics, topics_of)?.unwrap_or_default(),
            from: values
                .read(Key::RelayFrom, figures::parse_start)?
                .unwrap_or(Start::Earliest),
            batch: values.read(Key::RelayBatch, within(1, 10_000))?.unwrap_or(1000),
            in_flight: values.read(Key::RelayInFlight, within(1, 64))?.unwrap_or(4),
            lease: values.read(Key::RelayLease, lease)?.unwrap_or(Duration::from_secs(20)),
            confirm_within: values.read(Key::RelayConfirmWithin, figures::parse_duration)?,
            keep_log: values.read(Key::RelayKeepLog, keeping)?.flatten(),
            listen: values.said(Key::RelayListen).map(|said| said.text.clone()),
        })
    }
}

fn topics_of(text: &str) -> Result<Vec<Topic>, String> {
    let topics = text.split(',').map(str::trim).filter(|topic| !topic.is_empty());
    topics
        .map(|topic| Topic::parse(topic).map_err(|error| error.to_string()))
        .collect()
}

fn lease(text: &str) -> Result<Duration, String> {
    let found = figures::parse_duration(text)?;
    match (Duration::from_millis(300)..=Duration::from_secs(3600)).contains(&found) {
        true => Ok(found),
        false => Err(format!("{text} is not between 300ms and 1h")),
    }
}

fn within(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> {
    move |text| {
        let found = number(text)?;
        match (least..=most).contains(&found) {
            true => Ok(found),
            false => Err(format!(
                "{} is not between {least} and {}",
                figures::thousands(found),
                figures::thousands(most)
            )),
        }
    }
}

fn keeping(text: &str) -> Result<Option<Duration>, String> {
    match text.trim() {
        "forever" => Ok(None),
        text => figures::parse_duration(text).map(Some),
    }
}
