//! Where a run takes place: a store's URL and a folder for everything that is not in a database.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Which store a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreKind {
    /// One file.
    Sqlite,
    /// A server that the harness starts itself.
    Postgres,
}

/// A store and a folder.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// `postgres://…` or `sqlite://…`.
    pub(crate) url: String,
    /// Flags, gates, logs, and the file that stands for the receiver of calls.
    pub(crate) folder: PathBuf,
}

impl Site {
    /// A site whose folder is made.
    pub(crate) fn new(url: impl Into<String>, folder: &Path) -> Result<Self> {
        for name in ["cured", "killed", "gates", "logs"] {
            fs::create_dir_all(folder.join(name)).with_context(|| folder.display().to_string())?;
        }
        Ok(Site {
            url: url.into(),
            folder: folder.to_path_buf(),
        })
    }

    /// A site on a SQLite file in its own folder.
    pub(crate) fn sqlite(folder: &Path) -> Result<Self> {
        let url = format!("sqlite://{}", folder.join("store.db").display());
        Site::new(url, folder)
    }

    pub(crate) fn store(&self) -> Result<StoreKind> {
        match self.url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Ok(StoreKind::Postgres),
            Some("sqlite") => Ok(StoreKind::Sqlite),
            _ => bail!("{:?} is neither postgres://… nor sqlite://…", self.url),
        }
    }

    /// The file that stands for the receiver of calls to the outside.
    pub(crate) fn calls(&self) -> PathBuf {
        self.folder.join("calls.tsv")
    }

    /// There when a poison message of a consumer is to succeed.
    pub(crate) fn cure(&self, consumer: &str, id: &str) -> PathBuf {
        self.folder.join("cured").join(format!("{consumer}-{id}"))
    }

    /// Grows by a byte with each process that a killer has ended.
    pub(crate) fn killed(&self, consumer: &str, id: &str) -> PathBuf {
        self.folder.join("killed").join(format!("{consumer}-{id}"))
    }

    /// There when a handler that stands at a gate may go on.
    pub(crate) fn gate(&self, name: &str) -> PathBuf {
        self.folder.join("gates").join(name)
    }

    /// There as long as nothing new is to be placed.
    pub(crate) fn pause(&self) -> PathBuf {
        self.folder.join("pause")
    }

    /// There when placing is over.
    pub(crate) fn stop(&self) -> PathBuf {
        self.folder.join("stop")
    }
}

/// A folder for runs below the target folder that this program was built into.
pub(crate) fn runs_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program
        .ancestors()
        .nth(2)
        .context("this program does not lie in a target folder")?;
    let folder = target
        .join("harness")
        .join(format!("{}-{}", std::process::id(), fastrand::u16(..)));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Makes a file that says something by being there.
pub(crate) fn flag(path: &Path) -> Result<()> {
    fs::write(path, b"").with_context(|| path.display().to_string())
}
