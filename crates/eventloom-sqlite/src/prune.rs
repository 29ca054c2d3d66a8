//! Deleting what every reader has passed.

use crate::{
    Sqlite,
    error::failed,
    rows::{bound, now, span},
};
use eventloom_core::{OffsetDateTime, Position, StoreError, faults, ports::Pruned};
use std::time::Duration;

const PRUNED_TO: &str = "SELECT pruned_to FROM eventloom_logs WHERE name = 'outbox'";
/// The place of the slowest reader; no row without readers.
const PASSED: &str = "SELECT min(position) FROM eventloom_cursors WHERE reader IN \
                      (SELECT name FROM eventloom_readers WHERE log = 'outbox') HAVING count(*) > 0";
/// With nothing to keep, every row is old, whatever time it says.
const OLD: &str = concat!(
    "SELECT position, ?2 = 0 OR recorded_at < ",
    now!("?1"),
    " - ?2 FROM eventloom_outbox WHERE position > ?3 AND position <= ?4 ORDER BY position LIMIT ?5"
);
const OPEN: &str = "UPDATE eventloom_pruning SET open = 1 WHERE one = 1";
const DELETE: &str = "DELETE FROM eventloom_outbox WHERE position > ?1 AND position <= ?2";
const CLOSE: &str = "UPDATE eventloom_pruning SET open = 0 WHERE one = 1";
const ADVANCE: &str = "UPDATE eventloom_logs SET pruned_to = ?1 WHERE name = 'outbox' AND pruned_to < ?1";

pub(crate) const STATEMENTS: &[(&str, &str)] = &[("prune.old", OLD), ("prune.delete", DELETE)];

/// Deletes a prefix of the log. The write transaction is the lock: no reader registers and no cursor moves meanwhile.
pub(crate) async fn prune(
    store: &Sqlite,
    keep: Duration,
    rows_max: u32,
    now: Option<OffsetDateTime>,
) -> Result<Pruned, StoreError> {
    let pruning = failed("pruning the log");
    let nothing = |pruned_to| Pruned::new(0, Position(pruned_to), false);
    let Ok(_turn) = store.0.pruning.try_lock() else {
        let pruned_to = sqlx::query_scalar(PRUNED_TO)
            .fetch_one(&store.0.pool)
            .await
            .map_err(pruning)?;
        return Ok(nothing(pruned_to));
    };
    let mut tx = store.begin_write().await?;
    let pruned_to: i64 = sqlx::query_scalar(PRUNED_TO)
        .fetch_one(&mut *tx)
        .await
        .map_err(pruning)?;
    let passed: Option<i64> = sqlx::query_scalar(PASSED)
        .fetch_optional(&mut *tx)
        .await
        .map_err(pruning)?;
    let Some(mut passed) = passed else {
        tx.rollback().await?;
        return Ok(nothing(pruned_to));
    };
    if faults::defect("prune_past_reader") {
        passed = i64::MAX;
    }
    // One row more than will be deleted says whether another call would find some.
    let rows: Vec<(i64, bool)> = sqlx::query_as(OLD)
        .bind(bound(now))
        .bind(span(keep))
        .bind(pruned_to)
        .bind(passed)
        .bind(i64::from(rows_max) + 1)
        .fetch_all(&mut *tx)
        .await
        .map_err(pruning)?;
    // A prefix: a young row keeps what follows, whatever the clock said when that was inserted.
    let old = rows.iter().take_while(|(_, old)| *old).count();
    let deleted = old.min(rows_max as usize);
    let Some((to, _)) = deleted.checked_sub(1).and_then(|last| rows.get(last)).copied() else {
        tx.rollback().await?;
        return Ok(nothing(pruned_to));
    };
    faults::point("prune.before_delete");
    sqlx::query(OPEN).execute(&mut *tx).await.map_err(pruning)?;
    let rows = sqlx::query(DELETE)
        .bind(pruned_to)
        .bind(to)
        .execute(&mut *tx)
        .await
        .map_err(pruning)?
        .rows_affected();
    sqlx::query(CLOSE).execute(&mut *tx).await.map_err(pruning)?;
    sqlx::query(ADVANCE).bind(to).execute(&mut *tx).await.map_err(pruning)?;
    faults::point("prune.before_commit");
    tx.commit().await?;
    faults::point("prune.after_commit");
    Ok(Pruned::new(rows, Position(to), old > deleted))
}
