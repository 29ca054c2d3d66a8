//! A file that stands for the outside: a receiver that dedups on the idempotency key of each line.

use eventloom::Classify;
use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A mail was not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MailError {
    #[error("cannot open the mailer's file {path}")]
    Open { path: String, source: io::Error },
    #[error("the mailer's file took {written} of {bytes} bytes; is its disk full?")]
    Short { written: usize, bytes: usize },
    #[error("cannot append to the mailer's file")]
    Append(#[from] io::Error),
}

impl Classify for MailError {}

/// The sending side.
pub(crate) struct Mailbox(File);

impl Mailbox {
    pub(crate) fn open(path: &Path) -> Result<Self, MailError> {
        let opened = OpenOptions::new().append(true).open(path);
        opened.map(Mailbox).map_err(|source| MailError::Open {
            path: path.display().to_string(),
            source,
        })
    }

    /// One line in one write: with O_APPEND it is there as a whole or not at all, whoever else writes and whoever is
    /// killed. Not flushed to the disk, since kills do not need it: a receiver with a disk of its own would.
    pub(crate) fn send(&self, key: &str, order: i64, customer: &str) -> Result<(), MailError> {
        let line = format!("{key} {order} {customer}\n");
        let written = { &self.0 }.write(line.as_bytes())?;
        match written == line.len() {
            true => Ok(()),
            false => Err(MailError::Short {
                written,
                bytes: line.len(),
            }),
        }
    }
}

/// Counts the orders in the file as it grows.
pub(crate) struct MailCount {
    path: PathBuf,
    read_to: u64,
    orders: HashSet<i64>,
}

impl MailCount {
    pub(crate) fn of(path: &Path) -> Self {
        MailCount {
            path: path.to_owned(),
            read_to: 0,
            orders: HashSet::new(),
        }
    }

    /// Orders that were mailed by now.
    pub(crate) fn look(&mut self) -> io::Result<u64> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read_to))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // What follows the last line end is still being written.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read_to += whole as u64;
        self.orders.extend(
            text[..whole]
                .lines()
                .filter_map(|line| line.split(' ').nth(1)?.parse::<i64>().ok()),
        );
        Ok(self.orders.len() as u64)
    }
}
