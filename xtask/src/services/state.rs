//! The file beside a server's folder that lets a later command find and stop exactly this server.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::process::Process;
use super::service::Service;
use crate::places;

/// Who may stop the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// A test run started it; the last test run that uses it stops it.
    ForARun,
    /// `services up` started it; only `services down` stops it.
    UntilDown,
}

/// The state file of one service.
pub(crate) struct State {
    file: PathBuf,
}

impl State {
    pub(crate) fn of(service: &Service) -> Self {
        Self {
            file: places::services().join(format!("{}.state", service.name)),
        }
    }

    pub(crate) fn write(&self, process: &Process, keep: Keep) -> Result<()> {
        let entry = json!({
            "pid": process.pid,
            "started": process.started,
            "boot": process.boot,
            "until_down": keep == Keep::UntilDown,
        });
        fs::write(&self.file, entry.to_string()).with_context(|| self.file.display().to_string())
    }

    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The recorded process, if it is still that process.
    pub(crate) fn running(&self) -> Result<Option<Process>> {
        let recorded = self
            .read()
            .and_then(|entry| process_of(&entry))
            .filter(Process::is_alive);
        if recorded.is_none() {
            self.remove()?;
        }
        Ok(recorded)
    }

    pub(crate) fn keep(&self) -> Option<Keep> {
        let until_down = self.read()?.get("until_down")?.as_bool()?;
        Some(if until_down { Keep::UntilDown } else { Keep::ForARun })
    }

    /// `services up` on a server of a test run keeps it beyond that run; the opposite changes nothing.
    pub(crate) fn keep_at_least(&self, keep: Keep) -> Result<()> {
        match (self.running()?, keep) {
            (Some(process), Keep::UntilDown) => self.write(&process, keep),
            _ => Ok(()),
        }
    }

    fn read(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(&self.file).ok()?).ok()
    }
}

fn process_of(entry: &Value) -> Option<Process> {
    Some(Process {
        pid: i32::try_from(entry.get("pid")?.as_i64()?).ok()?,
        started: entry.get("started")?.as_u64()?,
        boot: entry.get("boot")?.as_str()?.to_owned(),
    })
}
