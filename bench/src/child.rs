//! A process of the bench's own: what is measured of a whole process is measured of one that does nothing else.

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use eventloom::{Null, Relay, Topic, postgres::prelude::*};
use sqlx::postgres::PgPoolOptions;
use std::{
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
};

/// What its relay's broker takes, as most do: rows over it are set aside without being fetched.
const PAYLOAD_BYTES_MAX: u64 = 1 << 20;

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Relays into a null broker.
    Relay,
    /// The same, and three consumers beside it.
    RelayAndConsumers,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Idle {}

impl eventloom::Event for Idle {
    const TYPE: &'static str = "idle";
}

async fn handle(_event: Idle, _cx: &mut Context<'_>) -> Result<(), std::convert::Infallible> {
    Ok(())
}

/// Runs until standard input ends.
pub(crate) async fn run(part: Part, store: &str) -> Result<()> {
    let pool = PgPoolOptions::new().max_connections(8).connect(store).await?;
    let store = Postgres::builder(pool).open().await?;
    let mut service = Eventloom::new(store)
        .keep_log(None)
        .relay(Relay::new("relay", Null::new().payload_bytes_max(PAYLOAD_BYTES_MAX)));
    if part == Part::RelayAndConsumers {
        for name in ["first", "second", "third"] {
            service = service.consumer(Consumer::new(name).topic(Topic::new("idle")).handle(handle));
        }
    }
    let service = service.start().await?;
    let mut rest = [0; 64];
    while !matches!(tokio::io::stdin().read(&mut rest).await, Ok(0) | Err(_)) {}
    service.shutdown(Duration::from_secs(30)).await?;
    Ok(())
}

/// Such a process, seen from outside.
pub(crate) struct Process {
    child: Child,
    pid: u32,
}

impl Process {
    pub(crate) fn start(part: &str, store: &str) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--as", part, "--store", store])
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("it ended at once")?;
        Ok(Process { child, pid })
    }

    /// The most memory that it has had resident, in MiB.
    pub(crate) fn memory_most(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().split(' ').next()).context("VmHWM")?;
        Ok(kib.parse::<f64>()? / 1024.0)
    }

    /// CPU time since it started.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let (_, fields) = stat.rsplit_once(") ").context("stat")?;
        let ticks: Vec<u64> = fields
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse().ok())
            .collect();
        // A hundred ticks a second wherever Linux runs.
        Ok(Duration::from_millis(ticks.iter().sum::<u64>() * 10))
    }

    /// Waits until a condition holds, which `ask` tells.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        within: Duration,
        ask: impl AsyncFn() -> Result<bool>,
    ) -> Result<()> {
        let begun = Instant::now();
        while !ask().await? {
            if let Some(status) = self.child.try_wait()? {
                bail!("the process ended before {what}: {status}");
            }
            if begun.elapsed() > within {
                bail!("waited for {what} for {within:?}");
            }
            // pacing: of the look
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    pub(crate) async fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        tokio::time::timeout(Duration::from_secs(60), self.child.wait()).await??;
        Ok(())
    }
}
