//! A transaction that survives dropped futures, and never calls a rolled-back COMMIT a commit.

use crate::error::{while_committing, while_doing};
use eventloom_core::{StoreError, ports::Transaction};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool,
    pool::PoolConnection,
    postgres::{PgTransactionManager, Postgres as Driver},
};
use sqlx_core::{sql_str::SqlSafeStr, transaction::TransactionManager};
use std::{
    ops::{Deref, DerefMut},
    pin::pin,
    task::{Context, Waker},
};

/// A transaction on a connection of the pool.
///
/// Nested `begin` calls on the connection make savepoints of the driver, as inside any transaction of sqlx.
#[derive(Debug)]
pub struct PostgresTransaction {
    connection: PoolConnection<Driver>,
    open: bool,
    savepoint: bool,
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
        self.run("SELECT 1", "committing").await?;
        self.commit_own().await
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
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
            // Queued, and sent before the pool hands the connection to anybody else. One poll sends it now: others wait for
            // these locks, and should not wait for the task that gives the connection back as well.
            PgTransactionManager::start_rollback(&mut self.connection);
            let _ = pin!(self.connection.flush()).poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
