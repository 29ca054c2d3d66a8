//! A process of the runs, as its parent sees it: started, listened to, frozen, killed.

use crate::{evidence::Acknowledged, site::Site, sockets};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::OpenOptions,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
};

/// What is started.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// For logs.
    pub(crate) name: String,
    /// Arguments of `harness actor` after store and folder.
    pub(crate) arguments: Vec<String>,
    /// Faults and the like.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Where it runs, if elsewhere than the others.
    pub(crate) site: Option<Site>,
}

impl Recipe {
    pub(crate) fn new(name: impl Into<String>, arguments: &[&str]) -> Self {
        Recipe {
            name: name.into(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            environment: Vec::new(),
            site: None,
        }
    }

    #[must_use]
    pub(crate) fn at(mut self, site: &Site) -> Self {
        self.site = Some(site.clone());
        self
    }

    #[must_use]
    pub(crate) fn with(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((variable, value.into()));
        self
    }
}

/// Counts of a consuming process since its start: handled, suspects, duplicates, conflicts, fenced.
pub(crate) type Counts = [u64; 5];

/// What a process has said so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// It works.
    pub(crate) ready: bool,
    /// It has begun to place something and not been answered.
    pub(crate) placing: bool,
    /// Its last report.
    pub(crate) counts: Counts,
    /// Lanes that it owned then.
    pub(crate) lanes: u64,
    /// It said that it is done.
    pub(crate) done: bool,
    /// It raised an alarm.
    pub(crate) alarm: bool,
}

/// What all placers of a run were told to be durable.
pub(crate) type Ledger = Arc<Mutex<Acknowledged>>;

/// A running process.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) name: String,
    pub(crate) pid: i32,
    child: Child,
    stdin: Option<ChildStdin>,
    listener: JoinHandle<()>,
    told: Arc<Mutex<Told>>,
}

impl Actor {
    /// Starts it.
    pub(crate) fn start(site: &Site, recipe: &Recipe, ledger: &Ledger) -> Result<Self> {
        let site = recipe.site.as_ref().unwrap_or(site);
        let log = site.folder.join("logs").join(format!("{}.log", recipe.name));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| log.display().to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["actor", "--store", &site.url, "--folder"])
            .arg(&site.folder)
            .args(&recipe.arguments)
            .env_remove("EVENTLOOM_FAILPOINT")
            .env_remove("EVENTLOOM_DEFECT")
            .envs(recipe.environment.iter().map(|(name, value)| (*name, value.as_str())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        let mut child = command.spawn().context("starting a process")?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .context("the process ended at once")?;
        let told = Arc::new(Mutex::new(Told::default()));
        let stdout = child.stdout.take().context("its standard output")?;
        Ok(Actor {
            name: recipe.name.clone(),
            pid,
            stdin: child.stdin.take(),
            listener: tokio::spawn(listen(stdout, told.clone(), ledger.clone())),
            child,
            told,
        })
    }

    pub(crate) fn told(&self) -> Told {
        lock(&self.told).clone()
    }

    /// Whether it has ended by itself, and how.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether everything that it sent was read, now that it is frozen: no thread of it runs any more. `true` for the first
    /// where the system does not tell.
    pub(crate) fn is_frozen_and_read(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let states = threads
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        let mut states = states.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next());
        states.all(|state| state == 'T') && sockets::all_was_read(self.pid)
    }

    /// Kills it, and takes in everything that it had said.
    pub(crate) async fn kill(mut self) -> Result<Told> {
        self.child.kill().await?;
        self.last_words().await
    }

    /// Lets it end in order, or kills it after the limit: then there is no status.
    pub(crate) async fn end(mut self, within: Duration) -> Result<(Option<ExitStatus>, Told)> {
        drop(self.stdin.take());
        let status = tokio::time::timeout(within, self.child.wait()).await;
        if status.is_err() {
            self.child.kill().await?;
        }
        let status = status.ok().transpose()?;
        Ok((status, self.last_words().await?))
    }

    /// Waits for its end by itself.
    pub(crate) async fn wait(mut self, within: Duration) -> Result<(Option<ExitStatus>, Told)> {
        let status = tokio::time::timeout(within, self.child.wait()).await;
        if status.is_err() {
            self.child.kill().await?;
        }
        let status = status.ok().transpose()?;
        Ok((status, self.last_words().await?))
    }

    async fn last_words(self) -> Result<Told> {
        // The pipe ends with the process.
        self.listener.await?;
        Ok(lock(&self.told).clone())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(stdout: ChildStdout, told: Arc<Mutex<Told>>, ledger: Ledger) {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    while lines.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
        // A line that was cut off by a kill was never said.
        if let Some(whole) = line.strip_suffix('\n') {
            hear(whole, &mut lock(&told), &ledger);
        }
        line.clear();
    }
}

fn hear(line: &str, told: &mut Told, ledger: &Ledger) {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "ready" => told.ready = true,
        "done" => told.done = true,
        "alarm" => told.alarm = true,
        "begin" => {
            told.placing = true;
            if !rest.is_empty() {
                lock(ledger).begun_alone.insert(rest.to_owned());
            }
        }
        "lost" => told.placing = false,
        "ack" => {
            told.placing = false;
            let orders = rest.split(' ').filter_map(|order| order.rsplit_once(':'));
            let orders = orders.filter_map(|(key, seq)| Some((key.to_owned(), seq.parse().ok()?)));
            lock(ledger).orders.extend(orders);
        }
        "health" => {
            let mut counts = rest.split(' ').filter_map(|count| count.parse().ok());
            for count in told.counts.iter_mut().chain([&mut told.lanes]) {
                *count = counts.next().unwrap_or_default();
            }
        }
        _ => {}
    }
}
