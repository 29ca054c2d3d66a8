//! What operators ask of readers.

use super::{
    leases::{RegisterError, Start},
    store::Store,
};
use crate::{
    error::StoreError,
    name::ConsumerName,
    place::{Lane, Position},
};
use std::{future::Future, time::Duration};
use time::OffsetDateTime;

/// One lane of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStatus {
    /// The lane.
    pub lane: Lane,
    /// Everything at or below is done.
    pub position: Position,
    /// Its owner with a live lease.
    pub owner: Option<String>,
}

impl LaneStatus {
    /// A lane, with its owner if it has one.
    pub fn new(lane: Lane, position: Position, owner: Option<String>) -> Self {
        LaneStatus { lane, position, owner }
    }
}

/// One reader.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReaderStatus {
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Rows above its cursors, counted to 100,000 at most.
    pub lag_messages: u64,
    /// Age of the oldest of them.
    pub oldest: Option<Duration>,
    /// Keys that are held.
    pub held_keys: u64,
    /// Messages waiting in `held`.
    pub waiting: u64,
    /// Dead letters.
    pub dead: u64,
    /// First failure among the dead.
    pub first_dead_at: Option<OffsetDateTime>,
    /// The error of the dead letter that failed last; where none is dead, of what failed last and waits to be tried again.
    pub last_error: Option<String>,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
}

impl ReaderStatus {
    /// A reader of which nothing but its name is known; the rest is set on its fields.
    pub fn new(name: impl Into<String>) -> Self {
        ReaderStatus {
            name: name.into(),
            paused: false,
            lag_messages: 0,
            oldest: None,
            held_keys: 0,
            waiting: 0,
            dead: 0,
            first_dead_at: None,
            last_error: None,
            lanes: Vec::new(),
        }
    }
}

/// Looking at readers, and changing where they stand.
pub trait Readers: Store {
    /// Every reader, by name. Counts are bounded: 100,000 means "at least".
    fn readers(
        &self,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Vec<ReaderStatus>, StoreError>> + Send;

    /// Stops delivery to a reader, or starts it again; returns whether it is registered. Running work is finished.
    fn pause(&self, reader: &ConsumerName, paused: bool) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes a reader with its cursors, inbox and held messages; returns whether it was registered. Its running
    /// instances notice at their next fence.
    fn drop_reader(&self, reader: &ConsumerName) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Puts every cursor of a reader elsewhere and raises its epochs, so that no owner goes on from the old place.
    /// Going back redelivers; the inbox still knows what was handled unless `forget_handled`.
    fn reset(
        &self,
        reader: &ConsumerName,
        to: Start,
        forget_handled: bool,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Option<Position>, RegisterError>> + Send;
}
