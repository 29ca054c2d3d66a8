//! Who may move which cursor: leases for liveness, epochs for safety.

use super::store::Store;
use crate::{
    error::StoreError,
    name::{ConsumerName, OwnerId},
    place::{Epoch, Lane, Position},
};
use std::{any::Any, fmt, future::Future, time::Duration};
use time::OffsetDateTime;

/// Where a new reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The oldest row that is still there.
    Earliest,
    /// After everything that has been handed out by now.
    Latest,
    /// After this position; refused when rows above it were pruned.
    After(Position),
    /// At the first row inserted at or after this time; what is gone is told.
    Since(OffsetDateTime),
}

/// A reader is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registration {
    /// `false`: it was there already and was left as it is.
    pub created: bool,
    /// Where a created one begins.
    pub begins_after: Position,
    /// Up to where the log had been pruned: what lies at or below is not delivered to a reader that begins earliest.
    pub pruned_to: Position,
}

impl Registration {
    /// What a registration came to.
    pub fn new(created: bool, begins_after: Position, pruned_to: Position) -> Self {
        Registration {
            created,
            begins_after,
            pruned_to,
        }
    }
}

/// Registering was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The position asked for lies below what was pruned.
    #[error(
        "a reader cannot begin after {asked}: rows up to {pruned_to} were pruned; begin at {pruned_to} or earliest"
    )]
    Pruned {
        /// Position asked for.
        asked: Position,
        /// Up to where rows are gone.
        pruned_to: Position,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A lane and the epoch under which its owner holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cursor {
    /// The lane.
    pub lane: Lane,
    /// The epoch.
    pub epoch: Epoch,
}

/// A lane that has just been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Lane and its new epoch.
    pub cursor: Cursor,
    /// Everything at or below is done.
    pub position: Position,
    /// What the former owner had taken up to. Above `position`: it did not finish, and those messages are suspects.
    pub batch_end: Position,
    /// Whether the lane holds keys or messages, read after the epoch was raised.
    pub holds: bool,
    /// The former owner, when it did not hand over.
    pub former: Option<String>,
}

/// What an instance owns of a reader after [`Leases::keep`].
#[derive(Debug, Clone, Default)]
pub struct Tenure {
    /// Every lane that is owned now, with its epoch; holds what `taken` holds.
    pub owned: Vec<Cursor>,
    /// Lanes that were taken by this call.
    pub taken: Vec<Taken>,
    /// Fair share: owning more, the instance gives up lanes when they are idle.
    pub share: usize,
    /// Live instances of this reader.
    pub members: usize,
    /// The reader is paused: lanes stay owned, nothing is read.
    pub paused: bool,
    /// The reader is not registered any more.
    pub dropped: bool,
    /// How much of the call was waiting for its turn, before anything looked at the clock of the lease: the lease ends that
    /// much later. May be told shorter than it was, never longer.
    pub waited: Duration,
}

/// A step of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Lane and epoch of its owner.
    pub cursor: Cursor,
    /// Where the owner believes it stands. Compared, so that a commit whose answer was lost is not repeated.
    pub from: Position,
    /// Where it goes. Never below `from`.
    pub to: Position,
    /// What the next batch takes up to, when it is known: saves a commit of its own.
    pub batch_end: Option<Position>,
    /// Of a relay: the last message that the broker has confirmed, when there is a new one.
    pub confirmed: Option<Position>,
}

/// A statement that ends an owner's transaction did not find its cursors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Another epoch, or the cursor stands elsewhere: this owner's work must be dropped and the transaction rolled back.
    #[error("the lane is owned by somebody else now; this owner's work is dropped")]
    Fenced,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What is set aside for renewals, until this is dropped.
#[derive(Default)]
pub struct Reserve(Option<Box<dyn Any + Send + Sync>>);

impl Reserve {
    /// Ends when `held` is dropped.
    pub fn holding(held: impl Any + Send + Sync) -> Self {
        Reserve(Some(Box::new(held)))
    }

    /// Whether anything is set aside.
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reserve").field(&self.is_held()).finish()
    }
}

/// Cursors, their owners, and the fence.
///
/// An instance holds one lease for each reader, not one for each lane: renewing touches one row. A lane is free when its
/// owner has no live lease. Liveness rests on the lease, safety on the epoch alone: *every* transaction of an owner ends
/// with [`Leases::advance`], [`Leases::mark`] or [`Leases::fence`], which lock the cursor rows by lane and epoch.
///
/// # Ordering
/// Cursor rows are locked in the order of lanes, and after everything else in a transaction.
pub trait Leases: Store {
    /// Registers a reader, with a cursor for each lane. One that is there is left as it is, but for cursors that it lacks.
    fn register(
        &self,
        reader: &ConsumerName,
        start: Start,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Registration, RegisterError>> + Send;

    /// Sets a connection of the pool aside for [`Leases::keep`], so that renewals wait for nobody who uses the pool. Of
    /// a pool of one nothing is set aside, and nothing is where one transaction writes at a time anyway.
    fn reserve(&self) -> Reserve {
        Reserve::default()
    }

    /// Joins or renews, and takes free lanes up to the fair share.
    ///
    /// # Contract
    /// `held` is what the caller believes to own. A lane that the tables give to it but that is not in `held`, and every
    /// lane of it after its lease has lapsed, is *taken*: its epoch is raised. What is in `held` but not in
    /// [`Tenure::owned`] is lost. A renewal never revives a lapsed lease. Lanes of a live owner are never taken.
    /// Transactions of a former owner that did not hand over are ended, where the store can.
    fn keep(
        &self,
        reader: &ConsumerName,
        owner: &OwnerId,
        lease: Duration,
        held: &[Cursor],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Tenure, StoreError>> + Send;

    /// Hands lanes over at once. `leaving` ends the lease too. Lanes that are not owned any more are passed over.
    fn release(
        &self,
        reader: &ConsumerName,
        owner: &OwnerId,
        lanes: &[Cursor],
        leaving: bool,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Moves cursors, all or none. The last statement before COMMIT.
    fn advance(
        &self,
        connection: &mut Self::Connection,
        reader: &ConsumerName,
        moves: &[Move],
    ) -> impl Future<Output = Result<(), FenceError>> + Send;

    /// Records what a batch takes up to (never lowered), all or none. Committed before the first handler runs.
    fn mark(
        &self,
        connection: &mut Self::Connection,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
    ) -> impl Future<Output = Result<(), FenceError>> + Send;

    /// As [`Leases::mark`], in a transaction of its own. `flushed: false`: it outlives this process at once, and need not
    /// have reached the disk; a store that flushes every commit may do so all the same.
    fn mark_alone(
        &self,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
        flushed: bool,
    ) -> impl Future<Output = Result<(), FenceError>> + Send;

    /// Locks cursors by lane and epoch, all or none. The last statement before COMMIT of whatever moves no cursor.
    fn fence(
        &self,
        connection: &mut Self::Connection,
        reader: &ConsumerName,
        cursors: &[Cursor],
    ) -> impl Future<Output = Result<(), FenceError>> + Send;
}
