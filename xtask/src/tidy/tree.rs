//! What the rules look at: the text files that git knows or would add, and the packages that cargo knows.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::places;

/// Larger files are data.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    /// The answer of `cargo metadata --no-deps`, or why there is none.
    pub(super) metadata: Result<Value, String>,
}

#[derive(Debug)]
pub(super) struct File {
    /// From the root of the workspace, parted by `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl Tree {
    pub(super) fn read() -> Result<Self> {
        let mut files = Vec::new();
        for path in paths()? {
            let place = places::root().join(&path);
            // Deleted files are still listed.
            let small = fs::metadata(&place).is_ok_and(|entry| entry.is_file() && entry.len() <= TEXT_BYTES_MAX);
            if let Some(text) = small
                .then(|| fs::read(&place))
                .and_then(Result::ok)
                .and_then(|bytes| String::from_utf8(bytes).ok())
            {
                files.push(File { path, text });
            }
        }
        Ok(Self {
            files,
            metadata: metadata().map_err(|error| format!("{error:#}")),
        })
    }

    /// Files that end in one of `extensions`.
    pub(super) fn with<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(|file| {
            let extension = Path::new(&file.path)
                .extension()
                .and_then(|extension| extension.to_str());
            extension.is_some_and(|extension| extensions.contains(&extension))
        })
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        Self {
            files: files.collect(),
            metadata: Ok(Value::Null),
        }
    }
}

impl File {
    /// Lines with their numbers from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// Whether a folder of the path is called `folder`.
    pub(super) fn is_under(&self, folder: &str) -> bool {
        let mut folders: Vec<&str> = self.path.split('/').collect();
        folders.pop();
        folders.contains(&folder)
    }
}

fn paths() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut paths: Vec<String> = output(git)?
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn metadata() -> Result<Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
    serde_json::from_str(&output(cargo)?).context("cargo metadata")
}

fn output(mut command: Command) -> Result<String> {
    command.current_dir(places::root()).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
