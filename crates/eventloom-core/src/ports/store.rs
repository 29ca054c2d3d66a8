//! Where commits happen.

use crate::{
    error::{PublishError, StoreError, StoreErrorKind},
    event::NewEvent,
    limits::PublishLimits,
    name::{ConsumerName, OwnerId},
    place::LaneCount,
};
use std::{error::Error, future::Future, ops::DerefMut, time::Duration};

/// On whose behalf an engine's transaction runs, and how long it may.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The reader.
    pub reader: &'a ConsumerName,
    /// The instance. With the reader it labels the transaction, so that a successor can find it and end it.
    pub owner: &'a OwnerId,
    /// The database ends the transaction by itself when it stands idle or a statement runs for this long.
    pub limit: Duration,
}

/// A transaction that an engine owns. Derefs to the driver's own connection, which is what handlers get.
///
/// # Cancel safety
/// Dropping it, or the future of any method, rolls back before the connection is used again. A dropped `commit` may have
/// committed.
pub trait Transaction: DerefMut<Target = Self::Connection> + Send + 'static {
    /// The driver's connection.
    type Connection: Send + 'static;

    /// Makes it durable.
    ///
    /// # Errors
    /// [`StoreErrorKind::Indeterminate`] when the connection was lost after COMMIT was sent: it may have happened.
    fn commit(self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes it.
    fn rollback(self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Sets the savepoint; there is one, and setting it again moves it.
    fn savepoint(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes what came after the savepoint, also in an aborted transaction, and gives back locks taken since.
    fn rollback_to_savepoint(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// `false` when it is known, without asking the database, that a user of the connection has ended the transaction or
    /// left a nested one open. [`Transaction::commit`] finds out what this does not see.
    fn is_intact(&self) -> bool;
}

/// What the connections of a store allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Size of the pool: how many transactions can be open at once.
    pub connections_max: u32,
    /// How many transactions make progress at once: 1 on SQLite.
    pub writers_max: u32,
}

/// A database with Eventloom's tables in it.
///
/// # Contract
/// Cloning is cheap and shares the connections. Nothing runs DDL but an explicit migration.
pub trait Store: Clone + Send + Sync + 'static {
    /// The driver's connection.
    type Connection: Send + 'static;
    /// A transaction on it.
    type Transaction: Transaction<Connection = Self::Connection>;
    /// Names of the tables; the default is what the SQL contract calls them.
    type Tables: Default + Clone + Send + Sync + 'static;

    /// For messages and labels: `postgres`, `sqlite`.
    const NAME: &'static str;

    /// Names of this store's tables.
    fn tables(&self) -> &Self::Tables;

    /// What its connections allow.
    fn capacity(&self) -> Capacity;

    /// How many lanes its tables were made with.
    fn lanes(&self) -> LaneCount;

    /// Where it is, for people: host and database or file. Never a password.
    fn place(&self) -> String;

    /// Begins a write transaction at READ COMMITTED (Postgres) or with BEGIN IMMEDIATE (SQLite).
    fn begin(&self, scope: Scope<'_>) -> impl Future<Output = Result<Self::Transaction, StoreError>> + Send;

    /// Sees whether the store answers, for health checks.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What kind of store trouble is behind an error of a handler, when any is; looks at the error itself and at its
    /// chain of sources.
    fn kind_of(error: &(dyn Error + 'static)) -> Option<StoreErrorKind>;
}

/// "This connection can be written to by store `S`."
///
/// The type parameter is what lets an adapter crate implement it for its driver's connection.
pub trait ConnectionOf<S: Store<Connection = Self>>: Send + Sized + 'static {}

/// The writing side of a log.
pub trait Outbox: Store {
    /// Limits in force for this store.
    fn limits(&self) -> &PublishLimits;

    /// Inserts events with one statement in the caller's transaction, in the order given.
    ///
    /// # Contract
    /// The events have passed [`PublishLimits::check`]. `Ok` means: they are in the log if and when the caller's
    /// transaction commits.
    ///
    /// # Ordering
    /// Positions grow in the order of `events`. Among transactions, order is the order of the inserts.
    ///
    /// # Errors
    /// Only of the store. On Postgres the caller's transaction is aborted then, as after any failed statement.
    fn append(
        tables: &Self::Tables,
        connection: &mut Self::Connection,
        events: &[NewEvent],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Publishes in a transaction of its own, shared with whoever else publishes at the moment.
    ///
    /// # Contract
    /// `Ok` means: committed and durable. The batch is whatever arrived while the previous commit was in flight; there
    /// is no timer. A failure of somebody else's event is never reported here.
    ///
    /// # Errors
    /// [`StoreErrorKind::Indeterminate`]: it may be in the log. Publishing again under the same id is then safe, since
    /// inboxes dedup on it.
    ///
    /// # Cancel safety
    /// A dropped future may have published.
    fn publish_alone(&self, event: NewEvent) -> impl Future<Output = Result<(), PublishError>> + Send;
}
