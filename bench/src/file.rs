//! A file of SQLite for a measurement, deleted when it is over.

use crate::counters::Counters;
use anyhow::Result;
use eventloom::sqlite::{MigrateOptions, Sqlite, migrate};
use std::path::{Path, PathBuf};

pub(crate) struct ScratchFile {
    folder: PathBuf,
    pub(crate) store: Sqlite,
}

impl ScratchFile {
    pub(crate) async fn new(within: &Path) -> Result<Self> {
        let folder = within.join(uuid::Uuid::new_v4().simple().to_string());
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("bench.db");
        migrate(&path, MigrateOptions::default()).await?;
        let store = Sqlite::connect(&path).await?;
        Ok(ScratchFile { folder, store })
    }

    /// Another file beside it.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Deletes it, and what is beside it.
    pub(crate) async fn delete(self) -> Result<()> {
        self.store.close().await;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}

/// What this process has written so far, as the kernel counts it. Without `/proc` there are no counts.
#[derive(Debug)]
pub(crate) struct Disk {
    calls: Option<f64>,
    bytes: Option<f64>,
}

impl Disk {
    pub(crate) fn now() -> Result<Self> {
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let read = |name: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse().ok()
        };
        Ok(Disk {
            calls: read("syscw"),
            bytes: read("write_bytes"),
        })
    }

    /// For each of so many events.
    pub(crate) fn since(&self, events: u32) -> Result<Counters> {
        let now = Disk::now()?;
        let each = |before: Option<f64>, after: Option<f64>| Some((after? - before?) / f64::from(events.max(1)));
        let mut counters = Counters::new();
        counters.extend(each(self.calls, now.calls).map(|calls| ("writes per event", calls)));
        counters.extend(each(self.bytes, now.bytes).map(|bytes| ("bytes written per event", bytes)));
        Ok(counters)
    }
}
