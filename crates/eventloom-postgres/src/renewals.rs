//! The connection that is kept for renewals of leases: whoever fills the pool must not cost an instance its lanes.

use crate::error::while_doing;
use eventloom_core::{StoreError, StoreErrorKind};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, SqlSafeStr,
    pool::PoolConnection,
    postgres::{PgTransactionManager, Postgres as Driver},
};
use sqlx_core::transaction::TransactionManager;
use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError, Weak},
};
use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard};

/// The slot of the kept connection: empty until the first renewal, and after one that failed.
type Slot = Arc<TurnMutex<Option<PoolConnection<Driver>>>>;

/// Where the kept connection is found, while anybody keeps it.
#[derive(Debug, Default)]
pub(crate) struct Renewals(Mutex<Weak<TurnMutex<Option<PoolConnection<Driver>>>>>);

impl Renewals {
    /// Keeps a connection until what is returned is dropped; services on one store share it.
    pub(crate) fn keep(&self) -> Slot {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.upgrade().unwrap_or_else(|| {
            let slot = Slot::default();
            *kept = Arc::downgrade(&slot);
            slot
        })
    }

    /// Begins a transaction on the kept connection; `None` where none is kept.
    ///
    /// The connection is given back by [`Renewal::commit`] alone. Whatever else happens, also that the future is dropped,
    /// closes it: it may have gone silent, and the next renewal takes another one.
    pub(crate) async fn begin(
        &self,
        pool: &PgPool,
        statement: &str,
        doing: &'static str,
    ) -> Result<Option<Renewal>, StoreError> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let Some(slot) = slot else { return Ok(None) };
        let mut slot = slot.lock_owned().await;
        loop {
            let kept = slot.take();
            let was_kept = kept.is_some();
            let mut connection = match kept {
                Some(kept) => kept,
                None => pool.acquire().await.map_err(while_doing(doing))?,
            };
            connection.close_on_drop();
            let statement = AssertSqlSafe(statement.to_owned()).into_sql_str();
            match PgTransactionManager::begin(&mut connection, Some(statement)).await {
                Ok(()) => return Ok(Some(Renewal { connection, slot })),
                // It was ended while it stood idle; nobody looked after it as the pool does.
                Err(error) if was_kept && crate::error::kind(&error) == StoreErrorKind::Unreachable => {}
                Err(error) => return Err(while_doing(doing)(error)),
            }
        }
    }
}

/// A transaction on the kept connection.
pub(crate) struct Renewal {
    connection: PoolConnection<Driver>,
    slot: OwnedMutexGuard<Option<PoolConnection<Driver>>>,
}

impl Renewal {
    /// Commits what only this crate's statements, all successful, have touched.
    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        PgTransactionManager::commit(&mut self.connection)
            .await
            .map_err(crate::error::while_committing)?;
        *self.slot = Some(self.connection);
        Ok(())
    }
}

impl Deref for Renewal {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Renewal {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
