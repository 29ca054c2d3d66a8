//! The connection that is kept for renewals of leases: whoever fills the pool must not cost an instance its lanes.

use crate::{error::while_doing, leases::arrays, prune::micros, store::Postgres};
use eventloom_core::{
    ConsumerName, OffsetDateTime, OwnerId, StoreError, StoreErrorKind, faults,
    ports::{Cursor, Store as _, Tenure},
};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, Row, SqlSafeStr,
    pool::PoolConnection,
    postgres::{PgTransactionManager, Postgres as Driver},
};
use sqlx_core::transaction::TransactionManager;
use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
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

    /// The slot, when its turn has come; `None` where nothing is kept.
    async fn slot(&self) -> Option<OwnedMutexGuard<Option<PoolConnection<Driver>>>> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        Some(slot.lock_owned().await)
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
        let Some(mut slot) = self.slot().await else {
            return Ok(None);
        };
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

/// The usual case in one statement: the lease is good, everything that is believed to be owned is owned, nobody has expired,
/// and no lane is free that this instance should take. Nothing comes back otherwise, and the long way follows, in which the
/// renewal of this one is repeated. Only the own row is written, and it is waited for by nobody but this instance.
const QUIET: &str = "
WITH renewed AS (UPDATE eventloom.members m
                    SET lease_until = coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond'
                  WHERE reader = $1 AND owner = $2 AND lease_until > coalesce($3, clock_timestamp()) RETURNING m.owner),
     others AS (SELECT count(*) AS members,
                       count(*) FILTER (WHERE owner <> $2 AND lease_until <= coalesce($3, clock_timestamp())) AS expired
                  FROM eventloom.members WHERE reader = $1),
     lanes AS (SELECT count(*) FILTER (WHERE c.owner = $2) AS owned,
                      count(*) FILTER (WHERE c.owner = $2 AND h.epoch = c.epoch) AS held,
                      count(*) FILTER (WHERE c.owner IS NULL OR m.owner IS NULL) AS free, count(*) AS lanes
                 FROM eventloom.cursors c
                 LEFT JOIN unnest($5::smallint[], $6::bigint[]) h (lane, epoch) ON h.lane = c.lane
                 LEFT JOIN eventloom.members m ON m.reader = c.reader AND m.owner = c.owner
                WHERE c.reader = $1)
SELECT r.paused, o.members
  FROM eventloom.readers r, renewed, others o, lanes l
 WHERE r.name = $1 AND o.expired = 0 AND l.held = l.owned AND l.owned = cardinality($5)
   AND (l.free = 0 OR l.owned >= ceil(l.lanes::float8 / o.members))";
impl Postgres {
    /// Renews in one statement and no transaction around it, where nothing else is to be done; `None`: the long way.
    pub(crate) async fn keep_quietly(
        &self,
        reader: &ConsumerName,
        owner: &OwnerId,
        lease: Duration,
        held: &[Cursor],
        now: Option<OffsetDateTime>,
    ) -> Result<Option<Tenure>, StoreError> {
        // Behind a pooler a statement needs a transaction around it.
        if held.is_empty() || self.is_pooled() || faults::defect("lease_renewed_without_epoch") {
            return Ok(None);
        }
        let Some(mut slot) = self.renewals().slot().await else {
            return Ok(None);
        };
        // A connection that is lost or silent is closed with it: the next call takes another one.
        let Some(mut connection) = slot.take() else {
            return Ok(None);
        };
        connection.close_on_drop();
        let (lanes, epochs) = arrays(held);
        let query = self.query(QUIET).bind(reader.as_str()).bind(owner.as_str()).bind(now);
        let query = query.bind(micros(lease)).bind(lanes).bind(epochs);
        let Ok(row) = query.fetch_optional(&mut *connection).await else {
            return Ok(None);
        };
        *slot = Some(connection);
        let Some(row) = row else { return Ok(None) };
        let doing = while_doing("keeping the lease");
        let members = row.try_get::<i64, _>(1).map_err(&doing)?.max(1) as usize;
        Ok(Some(Tenure {
            owned: held.to_vec(),
            share: usize::from(self.lanes().get()).div_ceil(members),
            members,
            paused: row.try_get(0).map_err(doing)?,
            ..Tenure::default()
        }))
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
