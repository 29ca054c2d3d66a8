//! The processes that are killed: placers, consumers, and short errands of an operator.

use crate::{
    business::{Business, Opening},
    consume::{self, Consuming},
    place::{self, Placing},
    relay::{self, Relaying},
    script,
    site::{Site, StoreKind},
};
use anyhow::Result;
use clap::Subcommand;
use eventloom::{
    ConsumerName, OwnerId,
    ports::{Scope, Transaction},
    postgres::Postgres,
    sqlite::Sqlite,
};
use std::{io::Write, path::PathBuf, time::Duration};
use tokio::io::AsyncReadExt;

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
    /// Hands them to another store.
    Relay(Relaying),
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
        Part::Place(placing) => place::run::<S>(&site, &placing).await,
        Part::Consume(consuming) => consume::run::<S>(site, consuming).await,
        Part::Relay(relaying) => relay::actor::run::<S>(site, relaying).await,
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
    let opening = Opening {
        connections: 6,
        pooled,
        schema: None,
    };
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
pub(crate) async fn told_to_end() {
    let mut rest = [0; 64];
    while !matches!(tokio::io::stdin().read(&mut rest).await, Ok(0) | Err(_)) {}
}
