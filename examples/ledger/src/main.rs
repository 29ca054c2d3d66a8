//! The ledger alone: `cargo run -p orders-ledger -- --data target/orders`.

use clap::Parser;
use orders_ledger::{DATABASE_FILE, Database, Input, examine, print};
use std::{path::PathBuf, process::ExitCode};

/// Holds what the orders example did against its input, by plain SQL and with no code of Eventloom.
///
/// Exit code 0: nothing is missing, duplicated or out of order. 1: something is, or the run has not ended.
#[derive(Debug, Parser)]
#[command(name = "orders-ledger", version)]
struct Arguments {
    /// Data folder of the run; the same as was given to `orders`.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "target/orders",
        default_value_if("store", clap::builder::ArgPredicate::IsPresent, "target/orders-postgres")
    )]
    data: PathBuf,
    /// A postgres:// URL when the run was on Postgres; the SQLite file in the data folder otherwise.
    #[arg(long, value_name = "URL", env = "ORDERS_STORE", hide_env_values = true)]
    store: Option<String>,
    /// The --broker of the run, when it had one.
    #[arg(long, value_name = "URL", env = "ORDERS_BROKER", hide_env_values = true)]
    broker: Option<String>,
    /// The input when another one than the carried CDNOW file was placed.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever closes the pipe has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orders-ledger: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    error.downcast_ref::<std::io::Error>().is_some_and(kind)
}

async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let input = match &arguments.input {
        Some(path) => Input::read(path)?,
        None => Input::of_gzip(include_bytes!("../../orders/data/cdnow.txt.gz"))?,
    };
    let database = match arguments.store {
        Some(url) => Database::Postgres(url),
        None => Database::Sqlite(arguments.data.join(DATABASE_FILE)),
    };
    let effects = match arguments.broker {
        Some(url) if url.starts_with("postgres") => Database::Postgres(url),
        Some(path) => Database::Sqlite(path.strip_prefix("sqlite://").unwrap_or(&path).into()),
        None => database.clone(),
    };
    let ledger = examine(&database, &effects, &arguments.data, &input).await?;
    print(&ledger, &mut std::io::stdout().lock())?;
    Ok(ledger.is_clean())
}
