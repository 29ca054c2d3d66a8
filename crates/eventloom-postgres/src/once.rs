//! Work that must happen once, in the caller's transaction: an HTTP request with an Idempotency-Key.
//!
//! Its rows are in the inbox under `once:<scope>`, which no consumer can be called.

use crate::{prune::micros, store::Tables};
use eventloom_core::{ConsumerName, OffsetDateTime, ports::OnceClaim};
use sqlx::{PgConnection, Row};
use std::time::Duration;

/// Held until the end of the caller's transaction, so a second holder of the key is told at once instead of waiting. The
/// form with two keys: those with one carry the marks of writers, which readers of the log look at. Two keys that hash
/// alike are told "in progress" now and then, and nothing worse.
const LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtext('eventloom.inbox ' || $1), hashtext($2))";
/// Later than the lock, hence with a snapshot in which the former holder has ended.
const LOOK: &str = "SELECT request, result FROM eventloom.inbox WHERE consumer = 'once:' || $1 AND id = $2";
const CLAIM: &str = "
INSERT INTO eventloom.inbox (consumer, id, handled_at, request) VALUES ('once:' || $1, $2, clock_timestamp(), $3)
ON CONFLICT DO NOTHING";
/// The time of the statement: that of the clock is no index condition.
const FORGET: &str = "
DELETE FROM eventloom.inbox i USING (
       SELECT consumer, id FROM eventloom.inbox
        WHERE request IS NOT NULL AND handled_at < coalesce($3, statement_timestamp()) - $1 * interval '1 microsecond'
        ORDER BY handled_at LIMIT $2 FOR UPDATE SKIP LOCKED) old
 WHERE i.consumer = old.consumer AND i.id = old.id";
const RECORD: &str = "UPDATE eventloom.inbox SET result = $3 WHERE consumer = 'once:' || $1 AND id = $2";

pub(crate) async fn claim(
    tables: &Tables,
    connection: &mut PgConnection,
    scope: &ConsumerName,
    key: &str,
    fingerprint: &[u8],
) -> Result<OnceClaim, sqlx::Error> {
    let locked = tables
        .query(LOCK)
        .bind(scope.as_str())
        .bind(key)
        .fetch_one(&mut *connection)
        .await?;
    if !locked.try_get::<bool, _>(0)? {
        return Ok(OnceClaim::InProgress);
    }
    let query = tables.query(LOOK).bind(scope.as_str()).bind(key);
    if let Some(row) = query.fetch_optional(&mut *connection).await? {
        let request: Option<Vec<u8>> = row.try_get(0)?;
        if request.as_deref() != Some(fingerprint) {
            return Ok(OnceClaim::Mismatch);
        }
        let result: Option<String> = row.try_get(1)?;
        return Ok(OnceClaim::Stored(result.unwrap_or_else(|| "null".to_owned())));
    }
    let query = tables.query(CLAIM).bind(scope.as_str()).bind(key).bind(fingerprint);
    match query.execute(connection).await?.rows_affected() {
        1 => Ok(OnceClaim::New),
        // Only a program that does not take the lock can have come in between.
        _ => Ok(OnceClaim::InProgress),
    }
}

pub(crate) async fn forget(
    tables: &Tables,
    connection: &mut PgConnection,
    window: Duration,
    rows_max: u32,
    now: Option<OffsetDateTime>,
) -> Result<u64, sqlx::Error> {
    let query = tables.query(FORGET).bind(micros(window)).bind(i64::from(rows_max));
    Ok(query.bind(now).execute(connection).await?.rows_affected())
}

pub(crate) async fn record(
    tables: &Tables,
    connection: &mut PgConnection,
    scope: &ConsumerName,
    key: &str,
    result: &str,
) -> Result<(), sqlx::Error> {
    let query = tables.query(RECORD).bind(scope.as_str()).bind(key).bind(result);
    query.execute(connection).await?;
    Ok(())
}
