//! A store with something around each of its calls: a time limit, a fault injector, a measurement.

use super::{
    Attempted, Capacity, Claim, Cursor, DeadLetter, DeadLetters, Due, EffectClaim, EffectRequest, Failure, FenceError,
    Held, HeldMessage, HeldNow, Horizon, Inbox, Leases, LetGo, LetterFilter, Log, LogStatus, Mark, Move, NewHeld,
    OnceClaim, Outbox, Outgoing, Page, Pruned, ReadError, ReadLimits, ReaderStatus, Readers, Redrive, RegisterError,
    Registration, RelayStanding, Relays, Reserve, Scope, Source, Start, Store, Tenure, Transaction, Untaken,
};
use crate::{
    error::{PublishError, StoreError, StoreErrorKind},
    event::NewEvent,
    limits::PublishLimits,
    name::{ConsumerName, OwnerId},
    place::{Epoch, Lane, LaneCount, Position},
};
use std::{
    collections::{HashMap, HashSet},
    error::Error,
    future::Future,
    ops::{Deref, DerefMut},
    time::Duration,
};
use time::OffsetDateTime;
use uuid::Uuid;

/// A call of a store, before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// The name of the port's method; `append` for what an engine publishes.
    pub name: &'static str,
    /// How long it was asked to wait for something to happen. Zero but for [`Log::doze`].
    pub waits: Duration,
}

impl Call {
    /// A call of this method.
    pub fn new(name: &'static str) -> Self {
        Call {
            name,
            waits: Duration::ZERO,
        }
    }

    /// What an error of it must say when it was sent and no answer came: after a COMMIT it may have happened, and so it may
    /// after a call that commits by itself.
    pub fn kind_unanswered(&self) -> StoreErrorKind {
        if COMMITTING.contains(&self.name) {
            StoreErrorKind::Indeterminate
        } else {
            StoreErrorKind::Unreachable
        }
    }
}

/// Calls that commit: the transaction's own, and those that write outside of a caller's transaction. All others read, or
/// write in a transaction that is rolled back when they fail.
const COMMITTING: [&str; 17] = [
    "commit",
    // What publishes, once more under a new id when it is done again.
    "publish_alone",
    "prune",
    // Leases.
    "register",
    "keep",
    "release",
    "mark_alone",
    // The inbox.
    "forget_handled",
    "forget_once",
    // What operators ask for.
    "redrive",
    "delete_letters",
    "pause",
    "drop_reader",
    "reset",
    // Relays.
    "remember_broker",
    "take_in",
    "renew_identity",
];

/// What is put around calls.
///
/// # Contract
/// Runs `run` to its end and gives its answer back, or drops it, which is what a caller may do with it too, and answers
/// with an error.
pub trait Around: Clone + Send + Sync + 'static {
    /// Makes one call.
    fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: Call,
        run: impl Future<Output = Result<T, E>> + Send,
    ) -> impl Future<Output = Result<T, E>> + Send;
}

/// A store with something around each call that it answers to.
///
/// Not around the functions without `self`, which have nowhere to keep it: [`Outbox::append`] and the two of
/// [`Inbox::once_claim`]. Nor around what a handler runs on the connection itself.
///
/// ```
/// use eventloom_core::{StoreError, ports::{Around, Call}};
/// use std::future::Future;
///
/// #[derive(Clone)]
/// struct Traced;
/// impl Around for Traced {
///     async fn around<T: Send, E: From<StoreError> + Send>(
///         &self,
///         call: Call,
///         run: impl Future<Output = Result<T, E>> + Send,
///     ) -> Result<T, E> {
///         let answer = run.await;
///         println!("{} {}", call.name, if answer.is_ok() { "answered" } else { "failed" });
///         answer
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Surrounded<S, A> {
    store: S,
    around: A,
}

impl<S, A: Around> Surrounded<S, A> {
    /// `store`, with `around` around its calls.
    pub fn new(store: S, around: A) -> Self {
        Surrounded { store, around }
    }

    /// The store itself.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Makes a call of one of the functions without `self` with it around.
    pub async fn make<T: Send, E: From<StoreError> + Send>(
        &self,
        name: &'static str,
        run: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        self.around.around(Call::new(name), run).await
    }
}

/// A transaction of a [`Surrounded`] store.
#[derive(Debug)]
pub struct SurroundedTransaction<T, A> {
    transaction: T,
    around: A,
}

impl<T: Transaction, A> Deref for SurroundedTransaction<T, A> {
    type Target = T::Connection;
    fn deref(&self) -> &T::Connection {
        &self.transaction
    }
}

impl<T: Transaction, A> DerefMut for SurroundedTransaction<T, A> {
    fn deref_mut(&mut self) -> &mut T::Connection {
        &mut self.transaction
    }
}

impl<T: Transaction, A: Around> Transaction for SurroundedTransaction<T, A> {
    type Connection = T::Connection;

    async fn commit(self) -> Result<(), StoreError> {
        let commit = Box::pin(self.transaction.commit());
        self.around.around(Call::new("commit"), commit).await
    }

    async fn rollback(self) -> Result<(), StoreError> {
        let rollback = self.transaction.rollback();
        self.around.around(Call::new("rollback"), rollback).await
    }

    async fn savepoint(&mut self) -> Result<(), StoreError> {
        let savepoint = self.transaction.savepoint();
        self.around.around(Call::new("savepoint"), savepoint).await
    }

    async fn rollback_to_savepoint(&mut self) -> Result<(), StoreError> {
        let rollback = self.transaction.rollback_to_savepoint();
        self.around.around(Call::new("rollback_to_savepoint"), rollback).await
    }

    fn is_intact(&self) -> bool {
        self.transaction.is_intact()
    }
}

/// Methods that go to the store with it around them.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $ok:ty, $error:ty;)+) => {
        $(
            #[allow(clippy::too_many_arguments)] // as many as the port has
            async fn $name(&self, $($argument: $type),*) -> Result<$ok, $error> {
                // Boxed, or the future of every caller holds this one once for each store around another.
                let run = Box::pin(self.store.$name($($argument),*));
                self.around.around(Call::new(stringify!($name)), run).await
            }
        )+
    };
}

impl<S: Store, A: Around> Store for Surrounded<S, A> {
    type Connection = S::Connection;
    type Transaction = SurroundedTransaction<S::Transaction, A>;
    type Tables = S::Tables;

    const NAME: &'static str = S::NAME;

    fn tables(&self) -> &S::Tables {
        self.store.tables()
    }

    fn capacity(&self) -> Capacity {
        self.store.capacity()
    }

    fn lanes(&self) -> LaneCount {
        self.store.lanes()
    }

    fn place(&self) -> String {
        self.store.place()
    }

    async fn begin(&self, scope: Scope<'_>) -> Result<Self::Transaction, StoreError> {
        let begin = Box::pin(self.store.begin(scope));
        Ok(SurroundedTransaction {
            transaction: self.around.around(Call::new("begin"), begin).await?,
            around: self.around.clone(),
        })
    }

    methods! {
        ping() -> (), StoreError;
    }

    fn kind_of(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
        S::kind_of(error)
    }
}

impl<S: Outbox, A: Around> Outbox for Surrounded<S, A> {
    fn limits(&self) -> &PublishLimits {
        self.store.limits()
    }

    async fn append(tables: &S::Tables, connection: &mut S::Connection, events: &[NewEvent]) -> Result<(), StoreError> {
        S::append(tables, connection, events).await
    }

    methods! {
        publish_alone(event: NewEvent) -> (), PublishError;
    }
}

impl<S: Log, A: Around> Log for Surrounded<S, A> {
    async fn doze(&self, seen: Position, at_most: Duration) -> Result<(), ReadError> {
        let call = Call {
            name: "doze",
            waits: at_most,
        };
        self.around.around(call, Box::pin(self.store.doze(seen, at_most))).await
    }

    methods! {
        read_after(after: Position, limits: ReadLimits) -> Page, ReadError;
        read_lane(lane: Lane, after: Position, up_to: Position, limits: ReadLimits) -> Page, ReadError;
        horizon() -> Horizon, ReadError;
        prune(keep: Duration, rows_max: u32, now: Option<OffsetDateTime>) -> Pruned, StoreError;
        log_status() -> LogStatus, StoreError;
        position_at(time: OffsetDateTime) -> Position, StoreError;
    }
}

impl<S: Leases, A: Around> Leases for Surrounded<S, A> {
    fn reserve(&self) -> Reserve {
        self.store.reserve()
    }

    methods! {
        register(reader: &ConsumerName, start: Start, now: Option<OffsetDateTime>) -> Registration, RegisterError;
        keep(
            reader: &ConsumerName, owner: &OwnerId, lease: Duration, held: &[Cursor], now: Option<OffsetDateTime>
        ) -> Tenure, StoreError;
        release(reader: &ConsumerName, owner: &OwnerId, lanes: &[Cursor], leaving: bool) -> (), StoreError;
        advance(connection: &mut S::Connection, reader: &ConsumerName, moves: &[Move]) -> (), FenceError;
        mark(
            connection: &mut S::Connection, reader: &ConsumerName, marks: &[(Cursor, Position)]
        ) -> (), FenceError;
        mark_alone(reader: &ConsumerName, marks: &[(Cursor, Position)], flushed: bool) -> (), FenceError;
        fence(connection: &mut S::Connection, reader: &ConsumerName, cursors: &[Cursor]) -> (), FenceError;
    }
}

impl<S: Inbox, A: Around> Inbox for Surrounded<S, A> {
    methods! {
        claim(
            connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str], now: Option<OffsetDateTime>
        ) -> Vec<Claim>, StoreError;
        record(connection: &mut S::Connection, consumer: &ConsumerName, results: &[(&str, &str)]) -> (), StoreError;
        unclaim(connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str]) -> (), StoreError;
        result_of(consumer: &ConsumerName, id: &str) -> Option<String>, StoreError;
        claim_effects(
            connection: &mut S::Connection, consumer: &ConsumerName, requests: &[EffectRequest<'_>],
            now: Option<OffsetDateTime>
        ) -> Vec<EffectClaim>, StoreError;
        give_up_effects(
            connection: &mut S::Connection, consumer: &ConsumerName, requests: &[EffectRequest<'_>]
        ) -> (), StoreError;
        finish_effects(
            connection: &mut S::Connection, consumer: &ConsumerName, results: &[(&str, &str)],
            now: Option<OffsetDateTime>
        ) -> (), StoreError;
        forget_handled(
            consumer: &ConsumerName, window: Duration, rows_max: u32, now: Option<OffsetDateTime>
        ) -> u64, StoreError;
        forget_once(window: Duration, rows_max: u32, now: Option<OffsetDateTime>) -> u64, StoreError;
    }

    async fn once_claim(
        tables: &S::Tables,
        connection: &mut S::Connection,
        scope: &ConsumerName,
        key: &str,
        fingerprint: &[u8],
    ) -> Result<OnceClaim, StoreError> {
        S::once_claim(tables, connection, scope, key, fingerprint).await
    }

    async fn once_record(
        tables: &S::Tables,
        connection: &mut S::Connection,
        scope: &ConsumerName,
        key: &str,
        result: &str,
    ) -> Result<(), StoreError> {
        S::once_record(tables, connection, scope, key, result).await
    }
}

impl<S: Held, A: Around> Held for Surrounded<S, A> {
    methods! {
        ask(
            connection: &mut S::Connection, consumer: &ConsumerName, keys: &[&str], ids: &[&str]
        ) -> HeldNow, StoreError;
        lock_key(connection: &mut S::Connection, consumer: &ConsumerName, key: &str, lane: Lane) -> (), StoreError;
        share_keys(
            connection: &mut S::Connection, consumer: &ConsumerName, keys: &[&str]
        ) -> HashSet<String>, StoreError;
        put(
            connection: &mut S::Connection, consumer: &ConsumerName, owner: &OwnerId, messages: &[NewHeld<'_>],
            now: Option<OffsetDateTime>
        ) -> u64, StoreError;
        holds_at_least(
            connection: &mut S::Connection, consumer: &ConsumerName, key: Option<&str>, messages: u32
        ) -> bool, StoreError;
        due(
            consumer: &ConsumerName, lanes: &[Lane], limit: u32, now: Option<OffsetDateTime>
        ) -> (Vec<Due>, Option<Duration>), StoreError;
        queue_of(consumer: &ConsumerName, key: &str, limit: u32) -> Vec<HeldMessage>, StoreError;
        held_message(consumer: &ConsumerName, id: &str) -> Option<HeldMessage>, StoreError;
        lane_holds(consumer: &ConsumerName, lane: Lane) -> bool, StoreError;
        mark_taken(
            connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str], epoch: Epoch
        ) -> (), StoreError;
        count_held_attempt(connection: &mut S::Connection, consumer: &ConsumerName, id: &str) -> u32, StoreError;
        uncount_held_attempt(connection: &mut S::Connection, consumer: &ConsumerName, id: &str) -> (), StoreError;
        count_attempt(connection: &mut S::Connection, consumer: &ConsumerName, id: &str) -> u32, StoreError;
        uncount_attempt(connection: &mut S::Connection, consumer: &ConsumerName, id: &str) -> (), StoreError;
        clear_attempts(connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str]) -> (), StoreError;
        remove(connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str]) -> u64, StoreError;
        fail(
            connection: &mut S::Connection, consumer: &ConsumerName, id: &str, failure: &Failure, attempts: u32,
            then: Attempted, now: Option<OffsetDateTime>
        ) -> bool, StoreError;
        put_off(
            connection: &mut S::Connection, consumer: &ConsumerName, ids: &[&str], due_in: Duration,
            now: Option<OffsetDateTime>
        ) -> (), StoreError;
        let_go(
            connection: &mut S::Connection, consumer: &ConsumerName, key: &str, now: Option<OffsetDateTime>
        ) -> LetGo, StoreError;
        keys_of_lane(consumer: &ConsumerName, lane: Lane, after: &str, limit: u32) -> Vec<String>, StoreError;
    }
}

impl<S: DeadLetters, A: Around> DeadLetters for Surrounded<S, A> {
    methods! {
        letters(filter: &LetterFilter) -> Vec<DeadLetter>, StoreError;
        letter(consumer: &ConsumerName, id: &str) -> Option<DeadLetter>, StoreError;
        redrive(consumer: &ConsumerName, which: &Redrive, now: Option<OffsetDateTime>) -> u64, StoreError;
        delete_letters(consumer: &ConsumerName, ids: &[&str], now: Option<OffsetDateTime>) -> u64, StoreError;
    }
}

impl<S: Readers, A: Around> Readers for Surrounded<S, A> {
    methods! {
        readers(now: Option<OffsetDateTime>) -> Vec<ReaderStatus>, StoreError;
        pause(reader: &ConsumerName, paused: bool) -> bool, StoreError;
        drop_reader(reader: &ConsumerName) -> bool, StoreError;
        reset(
            reader: &ConsumerName, to: Start, forget_handled: bool, now: Option<OffsetDateTime>
        ) -> Option<Position>, RegisterError;
    }
}

impl<S: Relays, A: Around> Relays for Surrounded<S, A> {
    methods! {
        relay_standing(reader: &ConsumerName) -> RelayStanding, StoreError;
        remember_broker(reader: &ConsumerName, broker: Uuid) -> Uuid, StoreError;
        relay_marks(source: &Source) -> Vec<Mark>, StoreError;
        take_in(source: &Source, messages: &[Outgoing]) -> HashMap<Lane, Untaken>, StoreError;
        renew_identity() -> Uuid, StoreError;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of methods of ports, from the list above, that have no caller's connection to write on.
    fn on_no_connection() -> Vec<&'static str> {
        let calls = include_str!("around.rs")
            .split("#[cfg(test)]")
            .next()
            .unwrap_or_default();
        let (_, calls) = calls.split_once("impl<S: Store, A: Around> Store").unwrap_or_default();
        let mut names = Vec::new();
        for call in calls.split(';') {
            let call = call.rsplit("methods! {").next().unwrap_or_default();
            let declared = call.contains(" -> ") && !call.contains("connection: &mut");
            let name = call.split('(').next().unwrap_or_default();
            let name = name.split_whitespace().last().unwrap_or_default();
            if declared && !call.contains("fn ") {
                names.push(name);
            }
        }
        names
    }

    #[test]
    fn what_commits_by_itself_is_in_doubt_without_an_answer() {
        let reads = [
            "ping",
            "read_after",
            "read_lane",
            "horizon",
            "log_status",
            "position_at",
            "result_of",
            "due",
            "queue_of",
            "held_message",
            "lane_holds",
            "keys_of_lane",
            "letters",
            "letter",
            "readers",
            "relay_standing",
            "relay_marks",
        ];
        let names = on_no_connection();
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            let wanted = match reads.contains(&name) {
                true => StoreErrorKind::Unreachable,
                // A new one belongs either here or there.
                false => StoreErrorKind::Indeterminate,
            };
            assert_eq!(Call::new(name).kind_unanswered(), wanted, "{name}");
        }
        for name in ["begin", "rollback", "append", "advance", "claim", "put"] {
            assert_eq!(Call::new(name).kind_unanswered(), StoreErrorKind::Unreachable, "{name}");
        }
        assert_eq!(Call::new("commit").kind_unanswered(), StoreErrorKind::Indeterminate);
    }
}
