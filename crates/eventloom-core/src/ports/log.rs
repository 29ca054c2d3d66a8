//! The reading side of a log: everything committed, in one order, nothing missing.

use super::store::Store;
use crate::{
    envelope::Recorded,
    error::{Classify, RetryClass, StoreError},
    place::{Lane, Position},
};
use std::{future::Future, time::Duration};
use time::OffsetDateTime;
use uuid::Uuid;

/// How much one read may bring.
///
/// ```
/// use eventloom_core::ports::ReadLimits;
/// let limits = ReadLimits::default().rows_max(100);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Rows.
    pub rows_max: u32,
    /// Payload bytes, more or less: a read ends with the row that reaches it, so one large row always fits.
    pub payload_bytes_max: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        ReadLimits {
            rows_max: 1000,
            payload_bytes_max: 4 << 20,
        }
    }
}

impl ReadLimits {
    /// Sets how many rows.
    #[must_use]
    pub fn rows_max(mut self, rows: u32) -> Self {
        self.rows_max = rows;
        self
    }

    /// Sets how many payload bytes, more or less.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: u64) -> Self {
        self.payload_bytes_max = bytes;
        self
    }
}

/// Up to where a log can be read: everything at or below is either visible to the next snapshot or will never exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The horizon.
    pub position: Position,
    /// The last position handed out to any writer. Equal to the horizon when no writer is in flight.
    pub handed_out: Position,
}

/// Rows in order, and how far the read has looked.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Rows, by position.
    pub rows: Vec<Recorded>,
    /// Everything up to here was looked at: the last row when the page is full, else the horizon.
    pub scanned_to: Position,
    /// The horizon of this read.
    pub horizon: Position,
}

/// A read was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Rows above `after` have been pruned: going on would skip them silently.
    #[error(
        "position {after} lies below {pruned_to}, up to which this log was pruned; reset the reader to choose where to go on"
    )]
    Pruned {
        /// Where the reader stands.
        after: Position,
        /// Up to where rows are gone.
        pruned_to: Position,
    },
    /// The store failed, or refused (isolation level, standby).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Classify for ReadError {
    fn retry_class(&self) -> RetryClass {
        match self {
            ReadError::Pruned { .. } => RetryClass::Permanent,
            ReadError::Store(error) => error.retry_class(),
        }
    }
}

/// Who holds the horizon back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// Backend; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// Its application name.
    pub application: String,
    /// How long its transaction has been open.
    pub open_for: Duration,
    /// The beginning of its current or last statement, at most 200 characters.
    pub query: String,
}

impl Blocker {
    /// A prepared transaction; a session has a pid and a query.
    pub fn new(application: impl Into<String>, open_for: Duration) -> Self {
        Blocker {
            pid: None,
            application: application.into(),
            open_for,
            query: String::new(),
        }
    }
}

/// A log, for `status`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogStatus {
    /// Its identity: renewed at restore or promotion.
    pub identity: Uuid,
    /// Last position handed out.
    pub head: Position,
    /// Up to where it can be read.
    pub horizon: Position,
    /// Up to where it was pruned.
    pub pruned_to: Position,
    /// Who holds the horizon back, when it is.
    pub held_by: Option<Blocker>,
}

impl LogStatus {
    /// A log that nobody holds back.
    pub fn new(identity: Uuid, head: Position, pruned_to: Position) -> Self {
        LogStatus {
            identity,
            head,
            horizon: head,
            pruned_to,
            held_by: None,
        }
    }
}

/// What a pruning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Rows deleted.
    pub rows: u64,
    /// Up to where the log is pruned now.
    pub pruned_to: Position,
    /// Whether another call would delete more at once.
    pub more: bool,
}

impl Pruned {
    /// What a pruning did.
    pub fn new(rows: u64, pruned_to: Position, more: bool) -> Self {
        Pruned { rows, pruned_to, more }
    }
}

/// A log that can be followed.
pub trait Log: Store {
    /// Reads rows with `after < position <= horizon`, in order.
    ///
    /// # Contract
    /// Never a row twice, never a gap: each row with `after < position <= scanned_to` that was or will be committed is in
    /// the page. The horizon is taken *before* the snapshot of the rows, and whether `after` was pruned is judged in that
    /// snapshot or later.
    ///
    /// # Errors
    /// [`ReadError::Pruned`] instead of a silent gap; a refusal on a standby and in any isolation but READ COMMITTED.
    fn read_after(&self, after: Position, limits: ReadLimits) -> impl Future<Output = Result<Page, ReadError>> + Send;

    /// Reads rows of one lane with `after < position <= up_to`, for a lane that lags behind the others.
    ///
    /// # Contract
    /// As [`Log::read_after`], for this lane alone. `up_to` must not be above a horizon that was read before.
    fn read_lane(
        &self,
        lane: Lane,
        after: Position,
        up_to: Position,
        limits: ReadLimits,
    ) -> impl Future<Output = Result<Page, ReadError>> + Send;

    /// The horizon alone.
    fn horizon(&self) -> impl Future<Output = Result<Horizon, ReadError>> + Send;

    /// Sleeps until rows above `seen` may be there, or for `at_most`.
    ///
    /// # Contract
    /// Called when few rows come, or after some 50 ms without any. It asks writers to notify, looks once more, and sleeps
    /// only when there is no row, no writer in flight and nothing was handed out since; so no commit is slept through. It
    /// may return early.
    fn doze(&self, seen: Position, at_most: Duration) -> impl Future<Output = Result<(), ReadError>> + Send;

    /// Deletes at most `rows_max` rows that every registered reader has passed and that are older than `keep`.
    ///
    /// # Contract
    /// By one instance at a time; another one's call returns at once with `rows: 0, more: false`. Nothing is deleted
    /// while no reader is registered. The pruner locks the row of the log, reads the cursors in a later statement,
    /// deletes, and advances `pruned_to`; registering a reader locks the same row.
    fn prune(
        &self,
        keep: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Pruned, StoreError>> + Send;

    /// Head, horizon, and who holds it back.
    fn log_status(&self) -> impl Future<Output = Result<LogStatus, StoreError>> + Send;

    /// The position before the first row whose insert time is at or after `time`, by a bounded number of look-ups.
    fn position_at(&self, time: OffsetDateTime) -> impl Future<Output = Result<Position, StoreError>> + Send;
}
