//! The command line: nouns and verbs, and the options that all of them share.

use crate::{
    commands::{config, consumer, dlq, migrate, paper, publish, relay, status, tail},
    failure::Exit,
    secrets, terminal,
};
use clap::{Parser, Subcommand};
use std::{io::Write, path::PathBuf};

const EXAMPLES: &str = "\
Examples:
  eventloom migrate --store sqlite://shop.db
  export EVENTLOOM_STORE=postgres://shop@db.internal/shop
  eventloom status
  eventloom tail orders --follow
  eventloom dlq list --consumer invoicing
  eventloom relay --to postgres://events@db.internal/hub

Exit codes: 0 done, 1 failed, 2 usage, 3 found something wrong (status -q).
EVENTLOOM_LOG=debug shows on stderr what the library does.";

/// The event side of a service's database: look at its log and consumers, mend what failed,
/// and hand its events on.
#[derive(Debug, Parser)]
#[command(name = "eventloom", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the store is. What is left out comes from the environment, then from the file.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArguments {
    /// The store: sqlite://PATH, a plain path, or postgres://USER@HOST/DATABASE [env: EVENTLOOM_STORE]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Schema of the tables on Postgres, `eventloom` unless said otherwise [env: EVENTLOOM_SCHEMA]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// The connection leads through a pooler in transaction mode, such as PgBouncer [env: EVENTLOOM_POOLED]
    #[arg(long, global = true)]
    pub(crate) pooled: bool,
    /// The settings file; ./eventloom.toml where it is there [env: EVENTLOOM_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Migrate(migrate::Arguments),
    Status(status::Arguments),
    Tail(tail::Arguments),
    Publish(publish::Arguments),
    Relay(relay::Arguments),
    /// Look at consumers, and change where they stand
    #[command(subcommand)]
    Consumer(consumer::Verb),
    /// Look at messages that were set aside, and send them again or give them up
    #[command(subcommand)]
    Dlq(dlq::Verb),
    /// Look at the settings in force
    #[command(subcommand)]
    Config(config::Verb),
    Completions(paper::Completions),
    Man(paper::Man),
}

/// Reads the command line. Help and what is wrong with it are printed here; clap quotes the argument that it does not
/// understand, and that may be a URL with its password.
pub(crate) fn read() -> Result<Arguments, Exit> {
    Arguments::try_parse().map_err(|error| {
        let colour = terminal::is_coloured(error.use_stderr());
        let text = if colour {
            error.render().ansi().to_string()
        } else {
            error.render().to_string()
        };
        let text = match error.use_stderr() {
            true => secrets::of_command_line(&text),
            false => text,
        };
        // Nobody may be reading any more.
        let _ = match error.use_stderr() {
            true => std::io::stderr().write_all(text.as_bytes()),
            false => std::io::stdout().write_all(text.as_bytes()),
        };
        match error.exit_code() {
            0 => Exit::Done,
            _ => Exit::Usage,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
