//! The program `eventloom`: what an operator asks of a log, its consumers and their dead letters.
//!
//! `main` is the table of contents: arguments, the settings in force, one command, one exit code.

mod arguments;
mod ask;
mod commands;
mod event;
mod failure;
mod figures;
mod open;
mod output;
mod place;
mod secrets;
mod settings;
mod stop;
mod terminal;

use arguments::{Arguments, Command};
use failure::{Exit, Failure};
use settings::Settings;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match arguments::read() {
        Ok(arguments) => arguments,
        Err(exit) => return exit.into(),
    };
    let done = prepare(arguments).and_then(|(runtime, arguments, settings)| {
        let done = runtime.block_on(run(arguments.command, &settings));
        // A lookup of a host name or a read of stdin may still block a thread; nobody waits for it.
        runtime.shutdown_background();
        done
    });
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => failure.tell().into(),
    }
}

fn prepare(arguments: Arguments) -> Result<(tokio::runtime::Runtime, Arguments, Settings), Failure> {
    let settings = Settings::read(&arguments.store)?;
    terminal::trace();
    // A relay works all the time, and at several things at once; whoever asks once needs no more than this thread.
    let mut builder = match arguments.command {
        Command::Relay(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?;
    Ok((runtime, arguments, settings))
}

async fn run(command: Command, settings: &Settings) -> Result<Exit, Failure> {
    match command {
        Command::Migrate(arguments) => commands::migrate::run(arguments, settings).await,
        Command::Status(arguments) => commands::status::run(arguments, settings).await,
        Command::Tail(arguments) => commands::tail::run(arguments, settings).await,
        Command::Publish(arguments) => commands::publish::run(arguments, settings).await,
        Command::Relay(arguments) => commands::relay::run(arguments, settings).await,
        Command::Consumer(verb) => commands::consumer::run(verb, settings).await,
        Command::Dlq(verb) => commands::dlq::run(verb, settings).await,
        Command::Config(verb) => commands::config::run(verb, settings),
        Command::Completions(arguments) => commands::paper::completions(arguments),
        Command::Man(arguments) => commands::paper::man(&arguments),
    }
}
