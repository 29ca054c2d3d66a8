//! Messages that cannot be handled now, set aside so that nothing waits but their key.

use super::store::Store;
use crate::{
    envelope::Recorded,
    error::StoreError,
    name::{ConsumerName, OwnerId},
    place::{Epoch, Lane},
};
use std::{collections::HashSet, future::Future, time::Duration};
use time::OffsetDateTime;

/// What a held message waits for. Exhaustive: engine and stores answer each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// For its due time, or for the head of its key's queue.
    Waiting,
    /// For a human: its attempts are used up, or it can never succeed.
    Dead,
}

impl HeldState {
    /// As it stands in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldState::Waiting => "waiting",
            HeldState::Dead => "dead",
        }
    }
}

/// A failure, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error and its chain of sources, at most 4 KiB.
    pub error: String,
    /// The error with numbers, ids and quoted text taken out, at most 256 bytes: what letters are grouped by.
    pub fingerprint: String,
}

/// A message about to be held.
#[derive(Debug, Clone, Copy)]
pub struct NewHeld<'a> {
    /// The message, raw.
    pub message: &'a Recorded,
    /// Whether it stands in the queue of its key. Unkeyed and skipped messages stand alone.
    pub queued: bool,
    /// State.
    pub state: HeldState,
    /// Attempts that are used up.
    pub attempts: u32,
    /// When it is tried again; `None` behind a head of its key, and for a dead one.
    pub due_in: Option<Duration>,
    /// What went wrong; `None` for one that only queues behind its key.
    pub failure: Option<&'a Failure>,
}

/// A held message, ready to be handled.
#[derive(Debug, Clone)]
pub struct HeldMessage {
    /// The message, raw.
    pub message: Recorded,
    /// Whether it stands in the queue of its key.
    pub queued: bool,
    /// State.
    pub state: HeldState,
    /// Attempts that are used up.
    pub attempts: u32,
    /// The epoch under which a drain took it, when one did and has not answered for it yet.
    pub taken_epoch: Option<Epoch>,
    /// How often somebody sent it again by hand.
    pub redrives: u32,
}

/// A held message whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Logical id.
    pub id: String,
    /// Its lane.
    pub lane: Lane,
    /// The key whose queue it heads; `None` when it stands alone.
    pub queue: Option<String>,
}

/// What of a batch is held at the moment.
#[derive(Debug, Clone, Default)]
pub struct HeldNow {
    /// Keys that are held: their messages queue.
    pub keys: HashSet<String>,
    /// Logical ids that are held already: a redelivery of them is dropped.
    pub ids: HashSet<String>,
}

/// What became of a held message that failed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempted {
    /// Tried again after this.
    Again(Duration),
    /// Dead.
    Dead,
}

/// What [`Held::let_go`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetGo {
    /// Nothing was queued: the key flows again.
    Free,
    /// Messages are queued; a waiting head was made due.
    StillHeld,
}

/// Held keys and messages.
///
/// The protocol, and why it is so:
///
/// - every transaction of a batch asks ([`Held::ask`]) which of its keys are held, in a statement of its own;
/// - holding first makes the key's row by an upsert that locks it ([`Held::lock_key`]);
/// - queueing locks the row FOR SHARE ([`Held::share_keys`]) before it inserts; where it is gone, locks are given back;
/// - letting go locks it FOR UPDATE and looks **in a later statement** whether the queue is empty ([`Held::let_go`]);
///   in one statement the check would use an older snapshot and orphan what was queued meanwhile;
/// - keys are locked in sorted order, and no handler runs under these locks.
///
/// An empty key is no key: a message with one is never queued, and stands alone when it is held.
///
/// All of it runs in transactions that end with a fence of the lane.
pub trait Held: Store {
    /// Which of these keys and ids are held. Takes no lock.
    fn ask(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        keys: &[&str],
        ids: &[&str],
    ) -> impl Future<Output = Result<HeldNow, StoreError>> + Send;

    /// Makes or finds the row of a key, and locks it.
    fn lock_key(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        key: &str,
        lane: Lane,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Locks rows of keys against letting go, in sorted order; returns those that are there.
    fn share_keys(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        keys: &[&str],
    ) -> impl Future<Output = Result<HashSet<String>, StoreError>> + Send;

    /// Inserts messages; one that is held already (same consumer and logical id) is left as it is. Returns how many were
    /// new.
    fn put(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        owner: &OwnerId,
        messages: &[NewHeld<'_>],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Whether at least `messages` are held for a key (or, without one, for the consumer). Looks at no more than that many.
    ///
    /// # Contract
    /// For a key, those in its queue count, waiting and dead; for the consumer, all of them, also those that stand alone.
    /// Leases do not matter. At least none is always held.
    fn holds_at_least(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        key: Option<&str>,
        messages: u32,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Messages of these lanes whose time has come, oldest due first, at most `limit`; and how long until the next one
    /// is due when there is none.
    fn due(
        &self,
        consumer: &ConsumerName,
        lanes: &[Lane],
        limit: u32,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<(Vec<Due>, Option<Duration>), StoreError>> + Send;

    /// The head of a key's queue and what follows it, in order, at most `limit`.
    fn queue_of(
        &self,
        consumer: &ConsumerName,
        key: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<HeldMessage>, StoreError>> + Send;

    /// One held message.
    fn held_message(
        &self,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<Option<HeldMessage>, StoreError>> + Send;

    /// Whether any message of this lane is held, waiting or dead.
    fn lane_holds(&self, consumer: &ConsumerName, lane: Lane) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Records that a drain under `epoch` is about to handle these. Committed before the first handler runs.
    fn mark_taken(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
        epoch: Epoch,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Counts an attempt of a held suspect before it runs; returns the attempts, this one included.
    fn count_held_attempt(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Takes one attempt of a held message back, which was counted and is not to cost one. Nothing where there is none.
    fn uncount_held_attempt(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Counts an attempt of a suspect of the log before it runs; returns the attempts, this one included.
    fn count_attempt(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Takes one attempt counted by [`Held::count_attempt`] back. Nothing where there is none.
    fn uncount_attempt(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets attempts counted by [`Held::count_attempt`].
    fn clear_attempts(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Removes handled messages; returns how many were there. Fewer than `ids`: somebody else answered for them, roll back.
    fn remove(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Records that a held message failed, with its attempts so far, and clears the mark of its drain; returns whether
    /// it was there.
    #[allow(clippy::too_many_arguments)] // one row, all of whose columns change
    fn fail(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        id: &str,
        failure: &Failure,
        attempts: u32,
        then: Attempted,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Puts a held message off without counting an attempt, and clears the mark of its drain.
    fn put_off(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
        due_in: Duration,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets a key go when nothing of it is queued; otherwise makes a waiting head due that has no due time.
    ///
    /// # Contract
    /// Locks the key's row FOR UPDATE, then looks in a later statement.
    fn let_go(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        key: &str,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<LetGo, StoreError>> + Send;

    /// Held keys of a lane after `after`, sorted, at most `limit`; an empty `after` begins, since no key is empty: for an owner that has just taken the lane and lets go
    /// what its predecessor could not.
    fn keys_of_lane(
        &self,
        consumer: &ConsumerName,
        lane: Lane,
        after: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;
}
