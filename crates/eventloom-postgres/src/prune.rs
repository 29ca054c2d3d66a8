//! Deleting what every reader has passed, without ever deleting past one.

use crate::{error::while_doing, store::Postgres, transaction::PostgresTransaction};
use eventloom_core::{
    OffsetDateTime, Position, StoreError, faults,
    ports::{Pruned, Transaction as _},
};
use sqlx::{PgConnection, Row};
use std::time::Duration;

/// One pruner at a time. Registering and resetting a reader lock the same row and wait.
const LOCK: &str = "SELECT pruned_to FROM eventloom.logs WHERE name = 'outbox' FOR UPDATE SKIP LOCKED";

/// In a statement after the lock, hence with a later snapshot: a reader registered before the lock was given is seen.
/// Never above the horizon: a row in flight below would stay behind for ever. No cursor, no floor (`least` alone would
/// take the horizon then).
const FLOOR: &str = "
SELECT CASE WHEN count(*) > 0 THEN least(min(c.position), (SELECT horizon FROM eventloom.outbox_horizon())) END
  FROM eventloom.cursors c JOIN eventloom.readers r ON r.name = c.reader WHERE r.log = 'outbox'";

/// The last row of the batch that is old enough (with nothing to keep, every row, whatever time it says), and whether another batch stands behind it. Only an unbroken run from
/// the far end goes: `pruned_to` promises that everything below is gone. Also says that this transaction is the pruner.
const BATCH: &str = "
SELECT max(b.position) FILTER (WHERE b.nth <= $3 AND b.old_so_far), bool_or(b.nth > $3 AND b.old_so_far) IS TRUE,
       (SELECT set_config('eventloom_prune.t' || namespace, pg_current_xact_id()::text, true)
          FROM eventloom.logs WHERE name = 'outbox')
  FROM (SELECT r.position, row_number() OVER in_order AS nth, bool_and(r.old) OVER in_order AS old_so_far
          FROM (SELECT o.position,
                       $5 = 0 OR o.recorded_at <= coalesce($4, clock_timestamp()) - $5 * interval '1 microsecond' AS old
                  FROM eventloom.outbox o WHERE o.position > $1 AND o.position <= $2
                 ORDER BY o.position LIMIT $3 + 1) r
        WINDOW in_order AS (ORDER BY r.position ROWS UNBOUNDED PRECEDING)) b";

const DELETE: &str = "DELETE FROM eventloom.outbox WHERE position > $1 AND position <= $2";
const ADVANCE: &str = "UPDATE eventloom.logs SET pruned_to = $1 WHERE name = 'outbox' AND pruned_to < $1";

impl Postgres {
    pub(crate) async fn prune_batch(
        &self,
        keep: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<Pruned, StoreError> {
        let doing = while_doing("pruning the log");
        let mut tx = self.own("pruning the log").await?;
        let Some(locked) = self.query(LOCK).fetch_optional(&mut *tx).await.map_err(&doing)? else {
            return Ok(Pruned::new(0, self.pruned_to(&mut tx).await?, false));
        };
        let pruned_to: i64 = locked.try_get(0).map_err(&doing)?;
        let floor = self.query(FLOOR).fetch_one(&mut *tx).await.map_err(&doing)?;
        let Some(floor) = floor.try_get::<Option<i64>, _>(0).map_err(&doing)? else {
            return nothing(tx, pruned_to).await;
        };
        let floor = if faults::defect("prune_past_reader") {
            i64::MAX
        } else {
            floor
        };
        let query = self
            .query(BATCH)
            .bind(pruned_to)
            .bind(floor)
            .bind(i64::from(rows_max))
            .bind(now);
        let batch = query.bind(micros(keep)).fetch_one(&mut *tx).await.map_err(&doing)?;
        let Some(last) = batch.try_get::<Option<i64>, _>(0).map_err(&doing)? else {
            return nothing(tx, pruned_to).await;
        };
        let more = batch.try_get(1).map_err(&doing)?;
        faults::point("prune.before_delete");
        let deleted = self
            .query(DELETE)
            .bind(pruned_to)
            .bind(last)
            .execute(&mut *tx)
            .await
            .map_err(&doing)?;
        self.query(ADVANCE).bind(last).execute(&mut *tx).await.map_err(&doing)?;
        faults::point("prune.before_commit");
        tx.commit_own().await?;
        faults::point("prune.after_commit");
        Ok(Pruned::new(deleted.rows_affected(), Position(last), more))
    }

    async fn pruned_to(&self, connection: &mut PgConnection) -> Result<Position, StoreError> {
        let doing = while_doing("pruning the log");
        let query = self.query("SELECT pruned_to FROM eventloom.logs WHERE name = 'outbox'");
        let row = query.fetch_one(connection).await.map_err(&doing)?;
        row.try_get(0).map(Position).map_err(doing)
    }
}

/// Gives the lock back before it answers, or the next call would take this one for another instance.
async fn nothing(tx: PostgresTransaction, pruned_to: i64) -> Result<Pruned, StoreError> {
    tx.rollback().await?;
    Ok(Pruned::new(0, Position(pruned_to), false))
}

/// A duration as SQL takes it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}
