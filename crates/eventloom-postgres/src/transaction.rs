//! A transaction that survives dropped futures, and never calls a rolled-back COMMIT a commit.

use crate::error::{statements_may_be_lost, while_committing, while_doing};
use eventloom_core::{StoreError, StoreErrorKind, ports::Transaction};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool, Row as _,
    pool::PoolConnection,
    postgres::{PgRow, PgTransactionManager, Postgres as Driver},
};
use sqlx_core::{sql_str::SqlSafeStr, transaction::TransactionManager};
use std::{
    ops::{Deref, DerefMut},
    pin::pin,
    task::{Context, Waker},
};

/// Part of every BEGIN. It is gone with the transaction, also when another one is begun on its connection. Its name does
/// not begin with `eventloom.`, which stands for the schema in every statement.
pub(crate) const SAY_OPEN: &str = "SET LOCAL eventloom_store.transaction = 'open'";
const IS_OPEN: &str = "SELECT coalesce(current_setting('eventloom_store.transaction', true) = 'open', false)";

/// An error unless the transaction of `connection` is the one that was begun. A user of the connection can end it: with
/// a literal ROLLBACK or COMMIT, or by dropping the future of a nested `begin`, for which the driver rolls all of it back.
pub(crate) async fn must_be_open(connection: &mut PgConnection, doing: &'static str) -> Result<(), StoreError> {
    let row = sqlx::raw_sql(IS_OPEN).fetch_one(connection).await;
    let open: bool = row.and_then(|row| row.try_get(0)).map_err(while_doing(doing))?;
    match open {
        true => Ok(()),
        false => Err(ended(doing)),
    }
}

fn ended(doing: &'static str) -> StoreError {
    let what = "a handler ended the transaction that it was given (ROLLBACK, COMMIT, or a nested begin that was dropped \
                before it was answered)";
    StoreError::new(StoreErrorKind::Aborted, doing, what)
}

/// A transaction on a connection of the pool.
///
/// Nested `begin` calls on the connection make savepoints of the driver, as inside any transaction of sqlx.
#[derive(Debug)]
pub struct PostgresTransaction {
    connection: PoolConnection<Driver>,
    open: bool,
    savepoint: bool,
}

/// Sends statements that begin a transaction and end it, and returns their rows. A connection without an answer, or with an
/// error, is closed: its transaction may be open.
pub(crate) async fn at_once(pool: &PgPool, sql: String, doing: &'static str) -> Result<Vec<PgRow>, StoreError> {
    let mut opening = Opening(Some(pool.acquire().await.map_err(while_doing(doing))?));
    let Some(connection) = opening.0.as_mut() else {
        return Err(while_doing(doing)(sqlx::Error::WorkerCrashed));
    };
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut **connection).await;
    let rows = rows.map_err(while_doing(doing))?;
    drop(opening.0.take());
    Ok(rows)
}

/// A connection whose BEGIN has not been answered. sqlx counts a transaction only when it has the answer, so a future
/// dropped before would give the pool a connection with an open transaction, in which the next user's statements end.
struct Opening(Option<PoolConnection<Driver>>);

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

impl PostgresTransaction {
    /// `statement` begins with BEGIN and may go on with settings: one round trip.
    pub(crate) async fn begin(pool: &PgPool, statement: String, doing: &'static str) -> Result<Self, StoreError> {
        let connection = pool.acquire().await.map_err(while_doing(doing))?;
        let mut opening = Opening(Some(connection));
        let Some(connection) = opening.0.as_mut() else {
            return Err(while_doing(doing)(sqlx::Error::WorkerCrashed));
        };
        if statements_may_be_lost() {
            connection.clear_cached_statements().await.map_err(while_doing(doing))?;
        }
        let statement = AssertSqlSafe(statement).into_sql_str();
        PgTransactionManager::begin(connection, Some(statement))
            .await
            .map_err(while_doing(doing))?;
        match opening.0.take() {
            Some(connection) => Ok(PostgresTransaction {
                connection,
                open: true,
                savepoint: false,
            }),
            None => Err(while_doing(doing)(sqlx::Error::WorkerCrashed)),
        }
    }

    /// Commits what only this crate's statements, all successful, have touched.
    pub(crate) async fn commit_own(mut self) -> Result<(), StoreError> {
        PgTransactionManager::commit(&mut self.connection)
            .await
            .map_err(while_committing)?;
        self.open = false;
        Ok(())
    }

    /// Whether a handler has left the driver counting something else than this transaction alone.
    fn is_miscounted(&self) -> bool {
        PgTransactionManager::get_transaction_depth(&self.connection) != 1
    }

    async fn run(&mut self, statement: &'static str, doing: &'static str) -> Result<(), StoreError> {
        sqlx::raw_sql(statement)
            .execute(&mut *self.connection)
            .await
            .map_err(while_doing(doing))?;
        Ok(())
    }
}

impl Transaction for PostgresTransaction {
    type Connection = PgConnection;

    async fn commit(mut self) -> Result<(), StoreError> {
        // COMMIT of an aborted transaction is a ROLLBACK that reports success, and the driver does not show which it was.
        // A statement does. It also tells a connection that was lost before from one that is lost during COMMIT.
        must_be_open(&mut self.connection, "committing").await?;
        // The driver commits by its count: nothing at 0, and at 2 it releases a savepoint.
        match PgTransactionManager::get_transaction_depth(&self.connection) {
            0 => Err(ended("committing")),
            1 => self.commit_own().await,
            _ => {
                let what = "a handler left a nested transaction open (it was leaked)";
                Err(StoreError::new(StoreErrorKind::Aborted, "committing", what))
            }
        }
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        if self.is_miscounted() {
            self.connection.close_on_drop();
            self.run("ROLLBACK", "rolling back").await?;
            self.open = false;
            return Ok(());
        }
        PgTransactionManager::rollback(&mut self.connection)
            .await
            .map_err(while_doing("rolling back"))?;
        self.open = false;
        Ok(())
    }

    async fn savepoint(&mut self) -> Result<(), StoreError> {
        // Without the release a moved savepoint would leave the former one below it, one more for each batch.
        let statement = match self.savepoint {
            true => "RELEASE SAVEPOINT eventloom; SAVEPOINT eventloom",
            false => "SAVEPOINT eventloom",
        };
        self.run(statement, "setting a savepoint").await?;
        self.savepoint = true;
        Ok(())
    }

    async fn rollback_to_savepoint(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO SAVEPOINT eventloom", "rolling back to the savepoint")
            .await
    }

    fn is_intact(&self) -> bool {
        !self.is_miscounted()
    }
}

impl Deref for PostgresTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for PostgresTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        if self.open {
            if self.is_miscounted() {
                // The rollback below would be none, or one to a savepoint.
                self.connection.close_on_drop();
                return;
            }
            // Queued, and sent before the pool hands the connection to anybody else. One poll sends it now: others wait for
            // these locks, and should not wait for the task that gives the connection back as well.
            PgTransactionManager::start_rollback(&mut self.connection);
            let _ = pin!(self.connection.flush()).poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
