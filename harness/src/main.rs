//! Crash and chaos runs of Eventloom: real processes, an oracle outside of all faults, and checkers.
//!
//! - `harness kills` kills, freezes and cuts off processes at random while they work (`kills.rs`);
//! - `harness failpoints` ends a process at each named step (`failpoints.rs`);
//! - `harness defects` plants known mistakes and demands that they are seen (`defects/`);
//! - `harness relay` does the same to relays between two stores (`relay/`);
//! - `harness actor` is what is killed (`actor.rs`). It is started by the others.
//!
//! What is right is said in one place, `check.rs`; what happened is read by `evidence.rs` with plain SQL.

mod actor;
mod business;
mod campaign;
mod check;
mod consume;
mod database;
mod defects;
mod evidence;
mod failpoints;
mod fleet;
mod ground;
mod handlers;
mod kills;
mod operator;
mod place;
mod process;
mod proxy;
mod relay;
mod script;
mod server;
mod site;
mod sockets;
mod tally;
mod wait;
mod watch;
mod workload;

use clap::{Parser, Subcommand};
use std::{future::Future, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Parser)]
#[command(about = "Crash and chaos runs of Eventloom with real processes")]
struct Arguments {
    #[command(subcommand)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Run {
    /// Kills processes at random while they work, and checks that nothing is missing, doubled or out of order.
    Kills(kills::Options),
    /// Ends a process at every named step, for every k, and checks after the restart.
    Failpoints(failpoints::Options),
    /// Plants known mistakes one at a time; each must be seen.
    Defects(defects::Options),
    /// Kills relays, their targets and everybody beside them at random, and checks that what was placed is handled once.
    Relay(relay::Options),
    /// What the others start and kill.
    #[command(hide = true)]
    Actor(Box<actor::Options>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.run) {
        Ok(tally) => tally.close(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(run: Run) -> anyhow::Result<tally::Tally> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let tally = runtime.block_on(async {
        match run {
            Run::Kills(options) => unless_stopped(kills::run(options)).await,
            Run::Failpoints(options) => unless_stopped(failpoints::run(options)).await,
            Run::Defects(options) => unless_stopped(defects::run(options)).await,
            Run::Relay(options) => unless_stopped(relay::run(options)).await,
            Run::Actor(options) => actor::run(*options).await.map(|()| tally::Tally::silent()),
        }
    });
    // Standard input may still be read by a thread that cannot be ended.
    runtime.shutdown_background();
    tally
}

/// A campaign that is stopped is dropped, and takes its servers and processes along.
async fn unless_stopped<T>(campaign: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let [mut terminate, mut interrupt, mut hangup] = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    tokio::select! {
        outcome = campaign => outcome,
        _ = terminate.recv() => anyhow::bail!("stopped by SIGTERM"),
        _ = interrupt.recv() => anyhow::bail!("stopped by SIGINT"),
        _ = hangup.recv() => anyhow::bail!("stopped by SIGHUP"),
    }
}
