//! What can be asked for on the command line.

use anyhow::bail;
use clap::{Parser, Subcommand};
use orders_ledger::{DATABASE_FILE, Database};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  cargo run --release -p orders                              on SQLite
  cargo run --release -p orders -- --kill 20                 processes, 20 killed
  cargo run --release -p orders -- --store postgres://postgres@localhost/shop
  cargo run --release -p orders -- --broker other.db          by relay to another database
  cargo run -p orders-ledger -- --data target/orders         the ledger alone

Exit codes:
  0          the ledger balances
  1          something is missing, duplicated or out of order, or the run failed
  130, 143   stopped by Ctrl-C or SIGTERM; started again, it goes on";

/// Places real purchases as orders, lets three consumer groups follow, and shows the ledger.
///
/// Each purchase of the CDNOW file becomes a row in `orders` and an event
/// `order.placed`, in one transaction. The key of the event is the customer, so
/// a customer's orders stay in order. Three groups follow, each at its own pace:
///
///   totals    count, sum and running digest of each customer, by +=
///   revenue   revenue of each month, by +=
///   mailer    one line an order into a file that stands for the outside, under
///             an idempotency key
///
/// Nothing keeps effects from happening twice but Eventloom. At the end a ledger,
/// which is another program without any code of Eventloom, says whether an order
/// is missing, was handled twice, or out of order.
///
/// Ctrl-C, SIGTERM or SIGKILL it at any time: started again, it goes on.
#[derive(Debug, Parser)]
#[command(name = "orders", bin_name = "orders", version, verbatim_doc_comment, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// A postgres:// URL to run on Postgres. It makes the schemas `eventloom` and `orders_example` there.
    ///
    /// Without it: one SQLite file in the data folder.
    #[arg(long, value_name = "URL", env = "ORDERS_STORE", hide_env_values = true)]
    store: Option<String>,
    /// A database of another service: a postgres:// URL or the path of a SQLite file. A relay hands the events over to it,
    /// and the three groups follow its log and keep their tables there. Without it they follow the shop's own log.
    #[arg(long, value_name = "URL", env = "ORDERS_BROKER", hide_env_values = true)]
    broker: Option<String>,
    /// Folder for the SQLite file, the mailer's file and the log. On Postgres `target/orders-postgres` unless given.
    #[arg(
        long,
        value_name = "DIR",
        default_value_if("store", clap::builder::ArgPredicate::IsPresent, "target/orders-postgres"),
        default_value = "target/orders"
    )]
    data: PathBuf,
    /// Another file of purchases: `customer yyyymmdd number_of_cds dollar_value`, one a line; .gz is decompressed.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Only the first N purchases of the input.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Orders that share a transaction when they are placed, at most.
    ///
    /// A shop would place one at a time; with 1 that is what happens, at the pace of the disk.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) batch: u16,
    /// Begins anew: deletes this example's files in the data folder, and on Postgres the schema `orders_example` and
    /// the consumers `totals`, `revenue` and `mailer`. Nothing else is touched, and nothing is asked.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Runs two placers and two instances of each group as processes of their own, and kills N of them with SIGKILL at
    /// random moments on the way; each is started again.
    #[arg(long, value_name = "N")]
    pub(crate) kill: Option<u32>,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// What one process of `--kill` does. It stops when its standard input ends, so none outlives its parent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Subcommand)]
pub(crate) enum Role {
    /// Places the orders of one part of the customers.
    #[command(hide = true)]
    Place {
        /// Which part, from 0.
        part: u64,
        /// Of how many.
        parts: u64,
    },
    /// An instance of the relay.
    #[command(hide = true)]
    Relay,
    /// An instance of one consumer group.
    #[command(hide = true)]
    Consume {
        /// Its name.
        group: crate::consume::Group,
    },
}

impl Arguments {
    pub(crate) fn folder(&self) -> PathBuf {
        self.data.clone()
    }

    pub(crate) fn database(&self) -> anyhow::Result<Database> {
        match self.store.as_deref() {
            None => Ok(Database::Sqlite(self.data.join(DATABASE_FILE))),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Database::Postgres(url.to_owned()))
            }
            Some(_) => bail!(
                "--store takes postgres://user@host/database; leave it out to run on a SQLite file in the folder of --data"
            ),
        }
    }

    /// The database whose log the groups follow, where it is another one than the shop's.
    pub(crate) fn broker(&self) -> anyhow::Result<Option<Database>> {
        let Some(text) = self.broker.as_deref() else {
            return Ok(None);
        };
        let path = text.strip_prefix("sqlite://").unwrap_or(text);
        match path.split_once("://") {
            Some(("postgres" | "postgresql", _)) => Ok(Some(Database::Postgres(text.to_owned()))),
            Some(_) => bail!("--broker takes postgres://user@host/database, sqlite://PATH or a path"),
            None if path.is_empty() => bail!("--broker is empty; it takes postgres://user@host/database or a path"),
            None => Ok(Some(Database::Sqlite(path.into()))),
        }
    }

    /// The arguments of a child, but for its role. URLs may hold passwords, so they go by the environment.
    pub(crate) fn of_child(&self) -> (Vec<std::ffi::OsString>, Vec<(&'static str, String)>) {
        let mut arguments = vec!["--data".into(), self.data.clone().into_os_string()];
        arguments.extend(["--batch".into(), self.batch.to_string().into()]);
        if let Some(input) = &self.input {
            arguments.extend(["--input".into(), input.clone().into_os_string()]);
        }
        if let Some(limit) = self.limit {
            arguments.extend(["--limit".into(), limit.to_string().into()]);
        }
        let variables = [("ORDERS_STORE", &self.store), ("ORDERS_BROKER", &self.broker)];
        let variables = variables
            .into_iter()
            .filter_map(|(name, url)| Some((name, url.clone()?)));
        (arguments, variables.collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn folders_follow_the_store() {
        let folder = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap().folder();
        assert_eq!(folder("orders"), PathBuf::from("target/orders"));
        assert_eq!(
            folder("orders --store postgres://h/d"),
            PathBuf::from("target/orders-postgres")
        );
        assert_eq!(folder("orders --store postgres://h/d --data x"), PathBuf::from("x"));
    }
}
