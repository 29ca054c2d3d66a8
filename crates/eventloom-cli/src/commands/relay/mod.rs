//! `eventloom relay`: a daemon that hands the events of one database to another.

mod confirmed;
mod report;
mod target;

use crate::{
    failure::{Exit, Failure},
    figures,
    open::{self, NotOpen},
    place::Place,
    settings::{RelayFlags, RelaySettings, Settings},
    stop::Stop,
};
use confirmed::{Confirmed, Counted};
use eventloom::{Endpoint, Eventloom, Null, Relay, Service, StartError, chain, ports::Backend};
use report::Report;
use std::{future::Future, time::Duration};
use target::{Lazy, Opens, Target};

/// How long what is under way may take once it was asked to stop.
const DRAIN_WITHIN: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MOST: Duration = Duration::from_secs(5);
/// Connections to the source beside one for each batch: the scan, what keeps the lanes, pruning, and the report.
const CONNECTIONS_BESIDE: u32 = 4;

const EXAMPLES: &str = "\
Examples:
  eventloom relay --store sqlite://shop.db --to postgres://events@db.internal/hub
  eventloom relay --to hub.db --topic orders --topic payments --from latest
  eventloom relay --to null: --from latest --json
  eventloom relay --to hub.db --listen 9464

It runs until SIGTERM or Ctrl-C, finishes what is under way (30 s at most), and
says what it did. A database that is down, at the start or later, is waited for.
It stops with exit code 1 when one of the two was restored from a backup, and
says what to do. What every reader has passed is pruned; --keep-log keeps it.";

/// Hand the events of this database to another one, in order for each key, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    relay: RelayFlags,
    /// How often to say how far it is; every 30 s, and every second on a terminal
    #[arg(long, value_name = "DURATION", value_parser = figures::parse_duration)]
    report_every: Option<Duration>,
    /// Print what happens as lines of JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Say nothing but what is wrong
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: &Settings) -> Result<Exit, Failure> {
    let wanted = settings.relay(&arguments.relay)?;
    let target = Target::of(&wanted, settings)?;
    // Before anything is started: it installs the recorder of metrics, and an address that is taken is told at once.
    let endpoint = match &wanted.listen {
        Some(address) => Some(Endpoint::bind(address).await.map_err(|error| {
            Failure::new(chain(&error).to_string())
                .next("give another address with --listen, such as 9465 or 127.0.0.1:0")
        })?),
        None => None,
    };
    let report = Report::new(&wanted.name, arguments.json, arguments.quiet, arguments.report_every);
    let daemon = Daemon {
        wanted,
        settings,
        report,
        stop: Stop::new()?,
        confirmed: Confirmed::default(),
        endpoint,
    };
    match target {
        Target::Null => daemon.run_to(Null::new(), "null:").await,
        Target::Sqlite(target) => daemon.run_to_database(target).await,
        Target::Postgres(target) => daemon.run_to_database(target).await,
    }
}

/// A relay that is about to run.
struct Daemon<'a> {
    wanted: RelaySettings,
    settings: &'a Settings,
    report: Report,
    stop: Stop,
    confirmed: Confirmed,
    endpoint: Option<Endpoint>,
}

impl Daemon<'_> {
    /// Looks at the target first: what is wrong with it for good is told at once.
    async fn run_to_database<O: Opens>(mut self, target: Lazy<O>) -> Result<Exit, Failure> {
        use eventloom::ports::Broker as _;
        let place = target.place();
        let opened = tokio::select! {
            opened = target.open() => opened.map(drop),
            () = self.stop.asked() => return self.report.stopped_early(),
        };
        match opened {
            Ok(()) => {}
            Err(error) if error.is_down => self.report.waiting("target", &error.failure.in_one_line())?,
            Err(error) => return Err(error.failure.of_which("the target")),
        }
        self.run_to(target, &place).await
    }

    async fn run_to(mut self, broker: impl eventloom::ports::Broker, place: &str) -> Result<Exit, Failure> {
        let counted = Counted {
            broker,
            confirmed: self.confirmed.clone(),
        };
        let relay = self.relay(counted);
        let connections = self.wanted.in_flight + CONNECTIONS_BESIDE;
        let settings = self.settings;
        match settings.place()? {
            Place::Sqlite(path) => {
                let open = || open::sqlite(&path, connections, settings);
                let Some(store) = self.patiently(open).await? else {
                    return self.report.stopped_early();
                };
                let done = self.serve(store.clone(), relay, place).await;
                store.close().await;
                done
            }
            Place::Postgres(options) => {
                let open = || open::postgres((*options).clone(), connections, settings);
                let Some((store, pool)) = self.patiently(open).await? else {
                    return self.report.stopped_early();
                };
                let done = self.serve(store, relay, place).await;
                open::close(&pool).await;
                done
            }
        }
    }

    fn relay(&self, broker: impl eventloom::ports::Broker) -> Relay {
        let wanted = &self.wanted;
        let mut relay = Relay::new(wanted.name.as_str(), broker)
            .start_at(wanted.from)
            .batch_max(wanted.batch)
            .in_flight(wanted.in_flight)
            .lease(wanted.lease);
        if let Some(limit) = wanted.confirm_within {
            relay = relay.confirm_within(limit);
        }
        wanted.topics.iter().cloned().fold(relay, Relay::topic)
    }

    /// Opens the source, and waits for one that is down. `None`: it was asked to stop before.
    async fn patiently<T, Fut: Future<Output = Result<T, NotOpen>>>(
        &mut self,
        open: impl Fn() -> Fut,
    ) -> Result<Option<T>, Failure> {
        let mut retry = RETRY_FIRST;
        loop {
            let opened = tokio::select! {
                opened = open() => opened,
                () = self.stop.asked() => return Ok(None),
            };
            match opened {
                Ok(store) => return Ok(Some(store)),
                Err(error) if error.is_down => self.report.waiting("source", &error.failure.in_one_line())?,
                Err(error) => return Err(error.failure),
            }
            tokio::select! {
                () = tokio::time::sleep(retry) => retry = (retry * 2).min(RETRY_MOST),
                () = self.stop.asked() => return Ok(None),
            }
        }
    }

    async fn serve<S: Backend>(mut self, store: S, relay: Relay, place: &str) -> Result<Exit, Failure> {
        let mut eventloom = Eventloom::new(store.clone())
            .keep_log(self.wanted.keep_log)
            .relay(relay);
        if let Some(endpoint) = self.endpoint.take() {
            eventloom = eventloom.beside(endpoint);
        }
        let service = tokio::select! {
            started = eventloom.start() => started.map_err(not_started)?,
            () = self.stop.asked() => return self.report.stopped_early(),
        };
        self.report.started(&store.place(), place, &self.wanted)?;
        let ended = self.watch(&service, &store).await;
        let drained = tokio::select! {
            drained = service.shutdown(DRAIN_WITHIN) => drained.map_err(|error| chain(&error).to_string()),
            // Whoever asks twice does not want to wait.
            () = self.stop.asked() => Err("asked to stop twice: what was under way is sent again".to_owned()),
        };
        self.report
            .stopped(self.confirmed.messages(), &store, drained.as_ref().err())
            .await?;
        ended
    }

    /// Reports until it is asked to stop, or somebody has to look.
    async fn watch<S: Backend>(&mut self, service: &Service<S>, store: &S) -> Result<Exit, Failure> {
        let mut looks = tokio::time::interval(self.report.look_every());
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.asked() => return Ok(Exit::Done),
                (_, why) = service.alarmed() => {
                    self.report.alarm(&why)?;
                    return Err(self.alarm(&why));
                }
                _ = looks.tick() => self.report.look(self.confirmed.messages(), &service.health().await, store).await?,
            }
        }
    }

    /// The library names commands without knowing on which store this program was asked to work.
    fn alarm(&self, why: &str) -> Failure {
        let name = &self.wanted.name;
        let failure = Failure::new(why);
        if why.contains("migrate --promoted") {
            failure.next(self.settings.command("migrate --promoted"))
        } else if why.contains("consumer reset") {
            let to = if why.contains("--to earliest") {
                "earliest"
            } else {
                "PLACE"
            };
            failure.next(self.settings.command(&format!("consumer reset {name} --to {to}")))
        } else {
            failure
        }
    }
}

/// What could never work was said on the command line, or in its stead.
fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Register { source, .. } => source.into(),
        error => Failure::usage(chain(&error).to_string()),
    }
}
