//! The reference flow of Eventloom: real purchases, from a commit to effects that happen once, whatever is killed.
//!
//! Read it in the order of the story:
//!
//! 1. `arguments`: what can be asked for; `input`: the purchases; `event`: the fact that an order was placed;
//! 2. `store`: what this service asks of its database, as a trait, with SQLite and Postgres behind it;
//! 3. `place`: **business row and event in one transaction**;
//! 4. `consume`: **three groups that follow the log**, and `mail`, the outside that one of them calls;
//! 5. `run`: where a run stands, begun or gone on with; `board`: progress on the screen;
//! 6. `together`: everything in this process; `apart`: everything in processes of its own, with kills;
//! 7. `report`: rates, and the ledger, which is another program (`orders-ledger`).

mod apart;
mod arguments;
mod board;
mod consume;
mod event;
mod input;
mod mail;
mod place;
mod report;
mod run;
mod signals;
mod store;
mod together;

use anyhow::Context as _;
use arguments::{Arguments, Role};
use clap::Parser;
use orders_ledger::Database;
use run::{Folder, Run};
use std::process::ExitCode;
use store::{Shop, postgres, sqlite};

/// Connections to Postgres, with everything in one process.
const CONNECTIONS: u32 = 16;
/// Connections of each of the processes of `--kill`.
const CONNECTIONS_APART: u32 = 6;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role.clone() {
        Some(role) => serve(&arguments, &role).await,
        None => tell(arguments).await,
    };
    done.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("orders: {}", in_the_servers_words(&error));
        ExitCode::FAILURE
    })
}

/// Whoever closes the pipe has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(kind)
}

/// The driver adds where in the server's source an error was raised, which helps nobody here.
fn in_the_servers_words(error: &anyhow::Error) -> String {
    let text = eventloom::chain(error.as_ref()).to_string();
    let of_server = error
        .chain()
        .find_map(|link| match link.downcast_ref::<sqlx::Error>()? {
            sqlx::Error::Database(database) => Some(database),
            _ => None,
        });
    match of_server {
        Some(database) => text
            .replace(&database.to_string(), database.message())
            .replace("error returned from database: ", ""),
        None => text,
    }
}

/// The whole story: place, follow, ledger.
async fn tell(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let database = arguments.database()?;
    let folder = Folder::claim(arguments.folder())?;
    if arguments.fresh {
        folder.clear()?;
    }
    log_to(&folder)?;
    let fresh = arguments.fresh;
    match &database {
        Database::Sqlite(path) => beside(sqlite::prepare(path).await?, arguments, folder).await,
        Database::Postgres(url) => beside(postgres::prepare(url, CONNECTIONS, fresh).await?, arguments, folder).await,
    }
}

/// The same with the database that the groups follow: the shop's own, unless there is a broker.
async fn beside<S: Shop>(shop: S, arguments: Arguments, folder: Folder) -> anyhow::Result<ExitCode> {
    match arguments.broker()? {
        None => {
            let market = shop.clone();
            told(Run::begin(shop, market, arguments, folder).await?).await
        }
        Some(Database::Sqlite(path)) => {
            if arguments.fresh {
                sqlite::remove(&path)?;
            }
            let market = sqlite::prepare(&path).await?;
            told(Run::begin(shop, market, arguments, folder).await?).await
        }
        Some(Database::Postgres(url)) => {
            let market = postgres::prepare(&url, CONNECTIONS, arguments.fresh).await?;
            told(Run::begin(shop, market, arguments, folder).await?).await
        }
    }
}

async fn told<S: Shop, B: Shop>(run: Run<S, B>) -> anyhow::Result<ExitCode> {
    let outcome = match run.kills {
        Some(kills) => apart::run(&run, kills).await?,
        None => together::run(&run).await?,
    };
    report::report(&run, outcome).await
}

/// One process of `--kill`: a placer, or an instance of a group.
async fn serve(arguments: &Arguments, role: &Role) -> anyhow::Result<ExitCode> {
    let folder = Folder::of(arguments.folder());
    log_to(&folder)?;
    match arguments.database()? {
        Database::Sqlite(path) => serve_beside(sqlite::open(&path).await?, arguments, &folder, role).await,
        Database::Postgres(url) => {
            serve_beside(postgres::open(&url, CONNECTIONS_APART).await?, arguments, &folder, role).await
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn serve_beside<S: Shop>(shop: S, arguments: &Arguments, folder: &Folder, role: &Role) -> anyhow::Result<()> {
    match arguments.broker()? {
        None => apart::serve(shop.clone(), shop, arguments, folder, role).await,
        Some(Database::Sqlite(path)) => apart::serve(shop, sqlite::open(&path).await?, arguments, folder, role).await,
        Some(Database::Postgres(url)) => {
            let market = postgres::open(&url, CONNECTIONS_APART).await?;
            apart::serve(shop, market, arguments, folder, role).await
        }
    }
}

/// Traces go to a file, since the bars have the screen. `ORDERS_LOG=eventloom=debug` says more.
fn log_to(folder: &Folder) -> anyhow::Result<()> {
    let path = folder.log_file();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}; give another folder with --data", path.display()))?;
    let filter = tracing_subscriber::EnvFilter::try_from_env("ORDERS_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| "warn,sqlx=error".into()))
        .with_ansi(false)
        .with_writer(std::sync::Mutex::new(file))
        .init();
    Ok(())
}
