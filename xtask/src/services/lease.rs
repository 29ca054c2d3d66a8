//! Locks between commands that run at the same time: one start at a time, and no stop under another run's feet.

use std::fs::{File, OpenOptions, TryLockError};

use anyhow::{Context, Result};

use super::service::SERVICES;
use crate::places;

/// Held while servers are installed, started or stopped; the kernel frees it when the holder ends.
pub(super) fn starting() -> Result<File> {
    let file = open("starting.lock")?;
    file.lock()?;
    Ok(file)
}

/// Held by a test run while it uses the servers. The last one to drop it stops what test runs have started.
pub(crate) struct Lease {
    file: File,
}

impl Lease {
    pub(crate) fn take() -> Result<Self> {
        let file = open("in-use.lock")?;
        file.lock_shared()?;
        Ok(Self { file })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _unlocked_anyway = self.file.unlock();
        match self.file.try_lock() {
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Error(error)) => eprintln!("the servers' lock: {error}"),
            Ok(()) => {}
        }
        for service in SERVICES.iter().rev() {
            if let Err(error) = service.down_if_for_a_run() {
                eprintln!("{}: {error:#}", service.name);
            }
        }
    }
}

fn open(name: &str) -> Result<File> {
    let folder = places::services();
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(name);
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .with_context(|| file.display().to_string())
}
