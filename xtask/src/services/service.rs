//! What a service is: a name, a port, how it is installed, started and asked whether it is ready.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::process::Process;
use super::state::{Keep, State};
use super::{install, lease, pgbouncer, postgres};
use crate::places;

/// Crash recovery of a large data folder took 2.3 s when measured; this is the limit at which something is wrong.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// After a kill, Postgres refuses to start while the old process is a zombie (seen: 1 to 2 s) or a child of it ends.
const STARTS_MAX: u32 = 4;
const BETWEEN_STARTS: Duration = Duration::from_secs(1);

/// One row of [`SERVICES`].
pub(crate) struct Service {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    /// The variable that tests read for the URL.
    url_variable: &'static str,
    /// The variable that tests read for the folder of the programs, when they need it.
    bin_variable: Option<&'static str>,
    /// The service that must run before this one.
    pub(crate) needs: Option<&'static str>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Postgres15,
    Postgres18,
    PgBouncer,
}

/// In the order in which they start; they stop in the opposite one.
pub(crate) const SERVICES: &[Service] = &[
    Service {
        name: "pg15",
        port: 25432,
        url_variable: "EVENTLOOM_TEST_PG15",
        bin_variable: Some("EVENTLOOM_TEST_PG15_BIN"),
        needs: None,
        kind: Kind::Postgres15,
    },
    Service {
        name: "pg18",
        port: 25434,
        url_variable: "EVENTLOOM_TEST_PG18",
        bin_variable: Some("EVENTLOOM_TEST_PG18_BIN"),
        needs: None,
        kind: Kind::Postgres18,
    },
    Service {
        name: "pgbouncer",
        port: 26432,
        url_variable: "EVENTLOOM_TEST_PGBOUNCER",
        bin_variable: None,
        needs: Some("pg15"),
        kind: Kind::PgBouncer,
    },
];

impl Service {
    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// What the tests of other crates read.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![(self.url_variable, self.url())];
        if let (Some(name), Some(bin)) = (self.bin_variable, self.bin()) {
            all.push((name, bin.display().to_string()));
        }
        all
    }

    /// Starts the service if it does not answer already. Says which of the two it was.
    pub(crate) fn up(&self, keep: Keep) -> Result<&'static str> {
        let _one_at_a_time = lease::starting()?;
        let programs = self.install()?;
        for _ in 1..STARTS_MAX {
            match self.reuse_or_start(&programs, keep) {
                Ok(how) => return Ok(how),
                Err(_refused) => std::thread::sleep(BETWEEN_STARTS),
            }
        }
        self.reuse_or_start(&programs, keep)
    }

    fn reuse_or_start(&self, programs: &Path, keep: Keep) -> Result<&'static str> {
        let state = State::of(self);
        if let Some(running) = state.running()? {
            self.wait_until_ready(&running)?;
            state.keep_at_least(keep)?;
            return Ok("reused");
        }
        if self.answers() {
            // Another checkout's server on the same fixed port: as good as ours, and not ours to stop.
            return Ok("reused");
        }
        self.start(programs, &state, keep)?;
        Ok("started")
    }

    fn install(&self) -> Result<PathBuf> {
        match self.kind {
            Kind::Postgres15 => install::postgres_15(),
            Kind::Postgres18 => install::postgres_18(),
            Kind::PgBouncer => install::pgbouncer(),
        }
    }

    fn start(&self, programs: &Path, state: &State, keep: Keep) -> Result<()> {
        let mut command = match self.kind {
            Kind::Postgres15 => postgres::server(self, programs, &["--data-checksums"])?,
            Kind::Postgres18 => postgres::server(self, programs, &[])?,
            Kind::PgBouncer => pgbouncer::server(self, self.behind()?, programs)?,
        };
        self.log_to_file(&mut command)?;
        let running = Process::spawn(command)?;
        state.write(&running, keep)?;
        if let Err(error) = self.wait_until_ready(&running) {
            self.stop(state, &running)?;
            return Err(error);
        }
        Ok(())
    }

    /// The server that this one is a front of, which must answer already.
    fn behind(&self) -> Result<&'static Self> {
        let behind = SERVICES.iter().find(|service| Some(service.name) == self.needs);
        behind
            .filter(|service| service.answers())
            .with_context(|| format!("it needs {}", self.needs.unwrap_or("nothing")))
    }

    /// Stops the service if it was started under this target folder and still runs.
    pub(crate) fn down(&self) -> Result<bool> {
        let _one_at_a_time = lease::starting()?;
        let state = State::of(self);
        match state.running()? {
            Some(running) => self.stop(&state, &running).map(|()| true),
            None => Ok(false),
        }
    }

    /// As [`down`](Self::down), but only what a test run started for itself.
    pub(crate) fn down_if_for_a_run(&self) -> Result<bool> {
        if State::of(self).keep() == Some(Keep::ForARun) {
            self.down()
        } else {
            Ok(false)
        }
    }

    /// Whether a Postgres protocol answers on the port.
    pub(crate) fn answers(&self) -> bool {
        let Some(probe) = self
            .bin()
            .or_else(install::any_postgres_bin)
            .map(|bin| bin.join("pg_isready"))
        else {
            return false;
        };
        Command::new(probe)
            // Without a user name the server's log fills with "role does not exist".
            .args([
                "-q",
                "-U",
                "postgres",
                "-h",
                "127.0.0.1",
                "-t",
                "3",
                "-p",
                &self.port.to_string(),
            ])
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// A folder of the service's own.
    pub(crate) fn folder(&self) -> PathBuf {
        places::services().join(self.name)
    }

    fn log(&self) -> PathBuf {
        places::services().join(format!("{}.log", self.name))
    }

    fn bin(&self) -> Option<PathBuf> {
        match self.kind {
            Kind::Postgres15 => install::postgres_15_bin(),
            Kind::Postgres18 => install::postgres_18_bin(),
            Kind::PgBouncer => None,
        }
    }

    fn log_to_file(&self, command: &mut Command) -> Result<()> {
        let log: File = OpenOptions::new().create(true).append(true).open(self.log())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(())
    }

    fn wait_until_ready(&self, running: &Process) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if !running.is_alive() {
                bail!("it ended while starting{}", self.last_words());
            }
            if self.answers() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} was not ready after {READY_WITHIN:?}; see {}",
                    self.name,
                    self.log().display()
                );
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        format!("; {} ends with: {last}", self.log().display())
    }

    fn stop(&self, state: &State, running: &Process) -> Result<()> {
        running.stop().with_context(|| format!("{} did not stop", self.name))?;
        state.remove()
    }
}
