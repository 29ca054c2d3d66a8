//! A write transaction: BEGIN IMMEDIATE on the one write connection, or one statement alone, while it is this process's turn.

use crate::{
    Sqlite,
    error::{commit_failed, failed},
    store::Inner,
    turn::Turn,
};
use eventloom_core::{StoreError, StoreErrorKind, ports};
use sqlx::{Connection as _, SqliteConnection, pool::PoolConnection, sqlite::SqliteTransactionManager};
use sqlx_core::transaction::TransactionManager as _;
use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, atomic::Ordering},
};
use tokio::sync::OwnedMutexGuard;

const ENDED: &str = "the transaction was rolled back before, by itself or by the handler that it was given";

/// A write transaction. Derefs to the driver's connection.
///
/// Dropping it rolls back before its connection is used again, and gives the turn to write to the next in line. Only
/// [`commit`](SqliteTransaction::commit) commits: COMMIT as a statement is refused on this connection, so a handler
/// cannot end the transaction that its cursor moves in.
#[derive(Debug)]
pub struct SqliteTransaction {
    // In the order in which they are to be dropped: roll back, give the turn away, let the next of this process begin.
    transaction: sqlx::Transaction<'static, sqlx::Sqlite>,
    _turn: Option<Turn>,
    _seat: OwnedMutexGuard<Seat>,
    store: Arc<Inner>,
    savepoint: bool,
}

/// Who sits here writes.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// The write connection, when the last to write was a statement of ours that succeeded: nothing has to be looked at
    /// or rolled back, for which the pool takes two calls of the driver.
    pub(crate) warm: Option<PoolConnection<sqlx::Sqlite>>,
}

impl Seat {
    async fn connection(&mut self, store: &Inner) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        match self.warm.take() {
            Some(connection) => Ok(connection),
            None => {
                let acquired = store.writer.acquire().await;
                acquired.map_err(failed("waiting for the write connection"))
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // To give it back takes a runtime, which may have gone already.
        drop(self.warm.take().map(PoolConnection::detach));
    }
}

impl SqliteTransaction {
    /// Waits in line and begins. The order is: seat in this process, connection, turn among processes, BEGIN IMMEDIATE.
    pub(crate) async fn begin(store: Arc<Inner>) -> Result<Self, StoreError> {
        let mut seat = Arc::clone(&store.seat).lock_owned().await;
        let connection = seat.connection(&store).await?;
        let turn = store.turnstile.take().await;
        store.may_commit.store(false, Ordering::Release);
        let begun = sqlx::Transaction::begin(connection, Some(sqlx::SqlSafeStr::into_sql_str("BEGIN IMMEDIATE"))).await;
        let transaction = begun.map_err(failed("beginning a write transaction"))?;
        store.rolled_back.store(false, Ordering::Release);
        Ok(SqliteTransaction {
            transaction,
            _turn: turn,
            _seat: seat,
            store,
            savepoint: false,
        })
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// [`StoreErrorKind::Indeterminate`] when the disk failed while the commit was written: the next program that opens
    /// the file may find it. [`StoreErrorKind::Full`]: it did not happen.
    pub async fn commit(self) -> Result<(), StoreError> {
        let SqliteTransaction {
            mut transaction,
            _turn,
            _seat,
            store,
            ..
        } = self;
        let ended = |what: &'static str| Err(StoreError::new(StoreErrorKind::Aborted, "committing", what));
        // The driver commits by its count: nothing at 0, and at 2 it releases a savepoint. Nor is a transaction that its
        // user began in the place of this one to be committed.
        if SqliteTransactionManager::get_transaction_depth(&transaction) > 1 {
            // A nested one that was dropped ends behind what is queued.
            transaction.ping().await.map_err(failed("committing"))?;
            if SqliteTransactionManager::get_transaction_depth(&transaction) > 1 {
                return ended("a handler left a nested transaction open (it was leaked)");
            }
        }
        if store.rolled_back.load(Ordering::Acquire) {
            return ended(ENDED);
        }
        let may_commit = MayCommit::begin(&store);
        let committed = transaction.commit().await;
        drop(may_commit);
        committed.map_err(commit_failed("committing"))?;
        // A nested begin that is dropped before it is answered rolls everything back, and that may have been queued still.
        if store.rolled_back.load(Ordering::Acquire) {
            return ended(ENDED);
        }
        store.wake.committed();
        Ok(())
    }

    /// Undoes it.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let SqliteTransaction {
            transaction,
            _turn,
            _seat,
            ..
        } = self;
        match transaction.rollback().await.map_err(failed("rolling back")) {
            // It had rolled back by itself, as it does on a full disk.
            Err(error) if error.kind() == StoreErrorKind::Aborted => Ok(()),
            done => done,
        }
    }

    async fn run(&mut self, sql: &'static str, doing: &'static str) -> Result<(), StoreError> {
        sqlx::query(sql)
            .execute(&mut *self.transaction)
            .await
            .map_err(failed(doing))?;
        Ok(())
    }
}

/// Lets statements commit by themselves until it is dropped.
struct MayCommit<'a>(&'a Inner);

impl<'a> MayCommit<'a> {
    fn begin(store: &'a Inner) -> Self {
        store.may_commit.store(true, Ordering::Release);
        MayCommit(store)
    }
}

impl Drop for MayCommit<'_> {
    fn drop(&mut self) {
        self.0.may_commit.store(false, Ordering::Release);
    }
}

impl Sqlite {
    /// Runs one statement as a transaction of its own, in line with the other writers: one call of the driver, where a
    /// transaction takes three.
    ///
    /// # Errors
    /// As those of COMMIT: an I/O error leaves open whether it happened.
    ///
    /// # Cancel safety
    /// A dropped future may have written.
    pub(crate) async fn write_alone<T>(
        &self,
        doing: &'static str,
        statement: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let store = &*self.0;
        let mut seat = store.seat.lock().await;
        let mut connection = seat.connection(store).await?;
        let turn = store.turnstile.take().await;
        let may_commit = MayCommit::begin(store);
        let done = statement(&mut connection).await;
        drop((may_commit, turn));
        let value = done.map_err(commit_failed(doing))?;
        seat.warm = Some(connection);
        store.wake.committed();
        Ok(value)
    }
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }
}

impl ports::Transaction for SqliteTransaction {
    type Connection = SqliteConnection;

    async fn commit(self) -> Result<(), StoreError> {
        SqliteTransaction::commit(self).await
    }

    async fn rollback(self) -> Result<(), StoreError> {
        SqliteTransaction::rollback(self).await
    }

    async fn savepoint(&mut self) -> Result<(), StoreError> {
        if self.savepoint {
            self.run("RELEASE eventloom", "moving the savepoint").await?;
            self.savepoint = false;
        }
        self.run("SAVEPOINT eventloom", "setting the savepoint").await?;
        self.savepoint = true;
        Ok(())
    }

    async fn rollback_to_savepoint(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO eventloom", "rolling back to the savepoint").await
    }

    fn is_intact(&self) -> bool {
        !self.store.rolled_back.load(Ordering::Acquire)
    }
}
