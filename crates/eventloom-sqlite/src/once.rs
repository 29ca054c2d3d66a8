//! Work that must happen once under a key of the caller's, such as a request with an Idempotency-Key.
//!
//! There is one writer at a time, so whoever asks has waited for the end of everybody else: nothing is ever in progress.
//! Its rows are in the inbox under `once:<scope>`, which no consumer can be called.

use crate::{
    error::failed,
    rows::{bound, now, span},
};
use eventloom_core::{ConsumerName, OffsetDateTime, StoreError, ports::OnceClaim};
use sqlx::SqliteConnection;
use std::time::Duration;

pub(crate) const CLAIM: &str = concat!(
    "INSERT INTO eventloom_inbox (consumer, id, request, handled_at) VALUES ('once:' || ?1, ?2, ?3, ",
    now!("NULL"),
    ") ON CONFLICT (consumer, id) DO NOTHING"
);
pub(crate) const LOOK: &str =
    "SELECT request IS ?3, coalesce(result, 'null') FROM eventloom_inbox WHERE consumer = 'once:' || ?1 AND id = ?2";
pub(crate) const FORGET: &str = concat!(
    "DELETE FROM eventloom_inbox WHERE (consumer, id) IN ( \
         SELECT consumer, id FROM eventloom_inbox WHERE request IS NOT NULL AND handled_at < ",
    now!("?3"),
    " - ?1 ORDER BY handled_at LIMIT ?2)"
);
pub(crate) const RECORD: &str = "UPDATE eventloom_inbox SET result = ?3 WHERE consumer = 'once:' || ?1 AND id = ?2";

pub(crate) async fn claim(
    connection: &mut SqliteConnection,
    scope: &ConsumerName,
    key: &str,
    fingerprint: &[u8],
) -> Result<OnceClaim, StoreError> {
    let claiming = failed("claiming work under a key");
    // Writing first: in a deferred transaction a look that came first would read a snapshot that can be old.
    let claim = sqlx::query(CLAIM).bind(scope.as_str()).bind(key).bind(fingerprint);
    if claim.execute(&mut *connection).await.map_err(claiming)?.rows_affected() == 1 {
        return Ok(OnceClaim::New);
    }
    let look = sqlx::query_as(LOOK).bind(scope.as_str()).bind(key).bind(fingerprint);
    let (same, result): (bool, String) = look.fetch_one(connection).await.map_err(claiming)?;
    Ok(if same {
        OnceClaim::Stored(result)
    } else {
        OnceClaim::Mismatch
    })
}

pub(crate) async fn forget(
    connection: &mut SqliteConnection,
    window: Duration,
    rows_max: u32,
    now: Option<OffsetDateTime>,
) -> Result<u64, StoreError> {
    let forget = sqlx::query(FORGET).bind(span(window)).bind(rows_max).bind(bound(now));
    let forgotten = forget.execute(connection).await;
    Ok(forgotten
        .map_err(failed("forgetting keys of requests"))?
        .rows_affected())
}

pub(crate) async fn record(
    connection: &mut SqliteConnection,
    scope: &ConsumerName,
    key: &str,
    result: &str,
) -> Result<(), StoreError> {
    let record = sqlx::query(RECORD).bind(scope.as_str()).bind(key).bind(result);
    record
        .execute(connection)
        .await
        .map_err(failed("storing the result of work"))?;
    Ok(())
}
