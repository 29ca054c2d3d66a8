//! The processes that are killed: placers, consumers, and short errands of an operator.

use crate::{
    business::{Business, Opening},
    handlers::{Caller, Follower, Ledger, Stage},
    script,
    site::{Site, StoreKind},
    workload::{ATTEMPTS_MAX, FOLLOWED, ORDERS, Placed, kind_of},
};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use eventloom::{
    Backoff, Clock, Consumer, ConsumerName, Eventloom, NewEvent, OffsetDateTime, OwnerId, Publish, Service, TokioClock,
    ports::{Scope, Transaction},
    postgres::Postgres,
    sqlite::Sqlite,
};
use std::{collections::HashMap, io::Write, path::PathBuf, sync::Arc, time::Duration};
use tokio::io::AsyncReadExt;

/// Calls to the outside at once, for each instance.
pub(crate) const CALLS_MAX: u32 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The store's URL.
    #[arg(long)]
    store: String,
    /// The folder of flags and files.
    #[arg(long)]
    folder: PathBuf,
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, Subcommand)]
enum Part {
    /// Places orders until it is told to stop.
    Place(Placing),
    /// Handles them.
    Consume(Consuming),
    /// Does everything once, for the runs that end it at a named step.
    Script(script::Options),
    /// Prunes the log once.
    Prune,
    /// Lets a key go, as whoever has emptied its queue does.
    LetGo {
        /// The consumer.
        consumer: String,
        /// The key.
        key: String,
    },
    /// Gives dead letters of a consumer up.
    Delete {
        /// The consumer.
        consumer: String,
        /// The letters.
        ids: Vec<String>,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Placing {
    #[arg(long)]
    seed: u64,
    /// Which of the placers this is, and how many there are: the keys are split among them.
    #[arg(long)]
    part: u64,
    #[arg(long)]
    parts: u64,
    #[arg(long)]
    keys: u64,
    /// Milliseconds between transactions.
    #[arg(long, default_value_t = 10)]
    pace_ms: u64,
}

/// How consumers are set up.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Consuming {
    /// Which groups this process is an instance of.
    #[arg(long, value_delimiter = ',')]
    pub(crate) groups: Vec<String>,
    #[arg(long, default_value_t = 1200)]
    pub(crate) lease_ms: u64,
    #[arg(long, default_value_t = 64)]
    pub(crate) batch_max: u32,
    /// How far this process's clock runs ahead.
    #[arg(long, default_value_t = 0)]
    pub(crate) ahead_s: i64,
    /// The cursor alone protects.
    #[arg(long)]
    pub(crate) without_inbox: bool,
    /// As behind a pooler: former owners' backends are not ended.
    #[arg(long)]
    pub(crate) pooled: bool,
    /// Handlers stand at gates.
    #[arg(long)]
    pub(crate) gated: bool,
    /// Attempts before a message is dead.
    #[arg(long, default_value_t = ATTEMPTS_MAX)]
    pub(crate) attempts: u32,
    /// One transaction, or call, at a time.
    #[arg(long)]
    pub(crate) single: bool,
    /// Nothing is pruned.
    #[arg(long)]
    pub(crate) keep_log: bool,
}

/// Runs one part until it ends, or until the process that started it is gone.
pub(crate) async fn run(options: Options) -> Result<()> {
    let filter = std::env::var("EVENTLOOM_LOG").unwrap_or_else(|_| "warn".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let site = Site::new(options.store, &options.folder)?;
    match (site.store()?, options.part) {
        (StoreKind::Postgres, part) => run_on::<Postgres>(site, part).await,
        (StoreKind::Sqlite, part) => run_on::<Sqlite>(site, part).await,
    }
}

async fn run_on<S: Business>(site: Site, part: Part) -> Result<()> {
    match part {
        Part::Place(placing) => place::<S>(&site, &placing).await,
        Part::Consume(consuming) => consume::<S>(site, consuming).await,
        Part::Script(options) => script::run::<S>(site, options).await,
        Part::Prune => {
            let store = open::<S>(&site, false).await?;
            while store.prune(Duration::ZERO, 1000, None).await?.more {}
            Ok(())
        }
        Part::LetGo { consumer, key } => {
            let store = open::<S>(&site, false).await?;
            let (consumer, owner) = (
                ConsumerName::parse(consumer)?,
                OwnerId::new("operator", std::process::id()),
            );
            let scope = Scope {
                reader: &consumer,
                owner: &owner,
                limit: Duration::from_secs(60),
            };
            let mut tx = store.begin(scope).await?;
            store.let_go(&mut tx, &consumer, &key, None).await?;
            Ok(tx.commit().await?)
        }
        Part::Delete { consumer, ids } => {
            let store = open::<S>(&site, false).await?;
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let deleted = store
                .delete_letters(&ConsumerName::parse(consumer)?, &ids, None)
                .await?;
            tell(&format!("deleted {deleted}"));
            Ok(())
        }
    }
}

/// A line for the process that started this one.
pub(crate) fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    // When nobody listens any more, this process is about to end anyway.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Opens the store, waiting for one that is down.
pub(crate) async fn open<S: Business>(site: &Site, pooled: bool) -> Result<S> {
    let opening = Opening { connections: 6, pooled };
    let mut tries = 0;
    loop {
        match S::open(site, opening).await {
            Ok(store) => return Ok(store),
            Err(error) if tries < 200 => {
                tries += 1;
                eprintln!("waiting for the store: {error:#}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Completes when standard input ends: the process that started this one is gone, or says that it is time.
async fn told_to_end() {
    let mut rest = [0; 64];
    while !matches!(tokio::io::stdin().read(&mut rest).await, Ok(0) | Err(_)) {}
}

async fn place<S: Business>(site: &Site, placing: &Placing) -> Result<()> {
    let store: S = open(site, false).await?;
    let mut rng = fastrand::Rng::new();
    let mine: Vec<String> = (0..placing.keys)
        .filter(|key| key % placing.parts == placing.part)
        .map(|key| format!("key-{key}"))
        .collect();
    let mut last: HashMap<String, i64> = HashMap::new();
    tell("ready");
    let placed = async {
        while !site.stop().exists() {
            if site.pause().exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            if rng.u32(..100) < 5 {
                solo(&store, placing, &mut rng).await?;
            } else {
                several(&store, placing, &mine, &mut last, &mut rng).await?;
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..=placing.pace_ms * 2))).await;
        }
        Ok(())
    };
    tokio::select! {
        placed = placed => placed,
        () = told_to_end() => Ok(()),
    }
}

/// One to four orders in a transaction. What was acknowledged is told; after an error it is looked up what happened.
async fn several<S: Business>(
    store: &S,
    placing: &Placing,
    keys: &[String],
    last: &mut HashMap<String, i64>,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let mut orders = Vec::new();
    for _ in 0..rng.usize(1..=4) {
        let key = keys[rng.usize(..keys.len())].clone();
        let before = match last.get(&key) {
            Some(before) => *before,
            None => last_placed(store, &key).await?,
        };
        let seq = before + 1;
        last.insert(key.clone(), seq);
        orders.push(Placed {
            kind: kind_of(placing.seed, &key, seq),
            key,
            seq,
        });
    }
    tell("begin");
    match store.place_orders(&orders).await {
        Ok(()) => {
            let told: Vec<String> = orders
                .iter()
                .map(|order| format!("{}:{}", order.key, order.seq))
                .collect();
            tell(&format!("ack {}", told.join(" ")));
        }
        Err(error) => {
            eprintln!("not placed, or not known: {error:#}");
            tell("lost");
            for order in &orders {
                last.remove(&order.key);
            }
        }
    }
    Ok(())
}

async fn last_placed<S: Business>(store: &S, key: &str) -> Result<i64> {
    let mut tries = 0;
    loop {
        match store.last_placed(key).await {
            Ok(last) => return Ok(last),
            Err(error) if tries < 200 => {
                tries += 1;
                eprintln!("cannot look up {key}: {error:#}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One event published alone, under the same id until it is known to be in the log.
async fn solo<S: Business>(store: &S, placing: &Placing, rng: &mut fastrand::Rng) -> Result<()> {
    let key = format!("solo-{:x}", rng.u64(..));
    let order = Placed {
        kind: kind_of(placing.seed, &key, 1),
        key,
        seq: 1,
    };
    let row = NewEvent::of(ORDERS, &order)?;
    tell(&format!("begin {}", order.key));
    for _ in 0..200 {
        match store.publish_row(row.clone()).await {
            Ok(()) => {
                tell(&format!("ack {}:1", order.key));
                return Ok(());
            }
            Err(error) => {
                eprintln!("published again: {error:#}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    bail!("a single event could not be published")
}

/// A clock that runs ahead of everybody else's, so that its process takes live owners for dead ones.
struct Ahead(i64);

impl Clock for Ahead {
    fn bind(&self) -> Option<OffsetDateTime> {
        Some(OffsetDateTime::now_utc() + Duration::from_secs(self.0.unsigned_abs()))
    }

    fn sleep(&self, duration: Duration) -> eventloom_core::BoxFuture<'static, ()> {
        TokioClock.sleep(duration)
    }
}

/// A consumer of the runs by its name.
pub(crate) fn consumer<S: Business>(name: &str, stage: &Arc<Stage>, options: &Consuming) -> Result<Consumer<S>> {
    let stage = stage.clone();
    let consumer = Consumer::new(name)
        .lease(Duration::from_millis(options.lease_ms))
        .batch_max(options.batch_max)
        .attempts(options.attempts)
        .backoff(Backoff {
            first: Duration::from_millis(40),
            most: Duration::from_millis(400),
        });
    let consumer = match name {
        "ledger" | "hot" => consumer.topic(ORDERS).handle(Ledger {
            stage,
            hot: name == "hot",
        }),
        "caller" => consumer.topic(ORDERS).in_flight(CALLS_MAX).effect(Caller { stage }),
        "follower" => consumer.topic(FOLLOWED).handle(Follower),
        _ => bail!("there is no group {name:?}"),
    };
    let consumer = if options.single {
        consumer.in_flight(1)
    } else {
        consumer
    };
    Ok(if options.without_inbox {
        consumer.without_inbox()
    } else {
        consumer
    })
}

/// Starts the groups of a process.
pub(crate) async fn start<S: Business>(site: &Site, store: S, options: &Consuming) -> Result<Service<S>> {
    let stage = Arc::new(Stage {
        site: site.clone(),
        gated: options.gated,
    });
    let mut service = Eventloom::new(store);
    if options.keep_log {
        service = service.keep_log(None);
    }
    if options.ahead_s != 0 {
        service = service.clock(Ahead(options.ahead_s));
    }
    for name in &options.groups {
        service = service.consumer(consumer(name, &stage, options)?);
    }
    service.start().await.context("starting the consumers")
}

async fn consume<S: Business>(site: Site, options: Consuming) -> Result<()> {
    let store: S = open(&site, options.pooled).await?;
    tell("opened");
    let service = start(&site, store, &options).await?;
    tell("ready");
    let reports = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            report(&service).await;
        }
    };
    tokio::select! {
        () = reports => {}
        () = told_to_end() => {}
    }
    report(&service).await;
    service.shutdown(Duration::from_secs(10)).await?;
    tell("done");
    Ok(())
}

/// Counts since the start of this process, summed over its groups.
async fn report<S: Business>(service: &Service<S>) {
    let health = service.health().await;
    let sum = |of: fn(&eventloom::ConsumerHealth) -> u64| health.consumers.iter().map(of).sum::<u64>();
    tell(&format!(
        "health {} {} {} {} {} {}",
        sum(|consumer| consumer.handled),
        sum(|consumer| consumer.suspects),
        sum(|consumer| consumer.duplicates),
        sum(|consumer| consumer.conflicts),
        sum(|consumer| consumer.fenced),
        sum(|consumer| consumer.lanes as u64),
    ));
}
