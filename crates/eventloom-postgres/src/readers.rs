//! What operators ask of readers, with counts that are bounded, and changing where readers stand.

use crate::{error::while_doing, store::Postgres};
use eventloom_core::{
    ConsumerName, Lane, OffsetDateTime, Position, StoreError, StoreErrorKind,
    ports::{LaneStatus, ReaderStatus, Readers, RegisterError, Start, Transaction as _},
};
use sqlx::{Row, postgres::PgRow};
use std::{collections::BTreeMap, time::Duration};

/// Removing a reader may delete many rows in one transaction: it must not be seen half done.
const DROP_LIMIT: Duration = Duration::from_secs(600);
/// Times that a removal is run again after a deadlock with a batch that was committing.
const DROP_ATTEMPTS: u32 = 5;

/// Counts end at 100,000: nothing here reads more than that of any index. Lanes are compared as pairs, as in `log.rs`.
const STATUS: &str = "
SELECT r.name, r.paused,
       (SELECT count(*) FROM (
               SELECT FROM eventloom.cursors c
                CROSS JOIN LATERAL (SELECT FROM eventloom.outbox o
                                     WHERE (o.lane, o.position) > (c.lane, c.position)
                                       AND (o.lane, o.position) <= (c.lane, 9223372036854775807)
                                     ORDER BY o.lane, o.position LIMIT 100000) rows_of_lane
                WHERE c.reader = r.name LIMIT 100000) lag),
       (SELECT (extract(epoch FROM coalesce($1, clock_timestamp())
                   - min(least(greatest(first.recorded_at, '0001-01-01 00:00Z'), '9999-12-31 00:00Z'))) * 1000000)::bigint
          FROM eventloom.cursors c
         CROSS JOIN LATERAL (SELECT o.recorded_at FROM eventloom.outbox o
                              WHERE (o.lane, o.position) > (c.lane, c.position)
                                AND (o.lane, o.position) <= (c.lane, 9223372036854775807)
                              ORDER BY o.lane, o.position LIMIT 1) first
         WHERE c.reader = r.name),
       (SELECT count(*) FROM (SELECT FROM eventloom.held_keys k WHERE k.consumer = r.name
                               ORDER BY k.source, k.key LIMIT 100000) k),
       (SELECT count(*) FROM (SELECT FROM eventloom.held h
                               WHERE h.consumer = r.name AND h.state = 'waiting' ORDER BY h.id LIMIT 100000) w),
       (SELECT count(*) FROM (SELECT FROM eventloom.held h
                               WHERE h.consumer = r.name AND h.state = 'dead' ORDER BY h.id LIMIT 100000) d),
       (SELECT h.first_failed_at FROM eventloom.held h
         WHERE h.consumer = r.name AND h.state = 'dead' AND h.first_failed_at IS NOT NULL
         ORDER BY h.first_failed_at LIMIT 1),
       (SELECT h.error FROM eventloom.held h
         WHERE h.consumer = r.name AND h.state = 'dead' AND h.last_failed_at IS NOT NULL
         ORDER BY h.last_failed_at DESC LIMIT 1)
  FROM eventloom.readers r ORDER BY r.name";
const LANES: &str = "
SELECT c.reader, c.lane, c.position, m.owner
  FROM eventloom.cursors c
  LEFT JOIN eventloom.members m
         ON m.reader = c.reader AND m.owner = c.owner AND m.lease_until > coalesce($1, clock_timestamp())
 ORDER BY c.reader, c.lane";

const PAUSE: &str = "UPDATE eventloom.readers SET paused = $2 WHERE name = $1";

const DROP_READER: &str = "DELETE FROM eventloom.readers WHERE name = $1";
const DROP_MEMBERS: &str = "DELETE FROM eventloom.members WHERE reader = $1";
const DROP_CURSORS: &str = "
DELETE FROM eventloom.cursors c
 USING (SELECT lane FROM eventloom.cursors WHERE reader = $1 ORDER BY lane FOR UPDATE) l
 WHERE c.reader = $1 AND c.lane = l.lane";
const DROP_BROKER: &str = "DELETE FROM eventloom.relays WHERE reader = $1";
const DROP_REST: [&str; 4] = [
    "DELETE FROM eventloom.inbox WHERE consumer = $1",
    "DELETE FROM eventloom.attempts WHERE consumer = $1",
    "DELETE FROM eventloom.held_keys WHERE consumer = $1",
    "DELETE FROM eventloom.held WHERE consumer = $1",
];

const RESET: &str = "
UPDATE eventloom.cursors c SET position = $2, batch_end = $2, epoch = c.epoch + 1, confirmed = NULL
  FROM (SELECT lane FROM eventloom.cursors WHERE reader = $1 ORDER BY lane FOR UPDATE) l
 WHERE c.reader = $1 AND c.lane = l.lane";
const IS_READER: &str = "SELECT FROM eventloom.readers WHERE name = $1 FOR KEY SHARE";

impl Readers for Postgres {
    async fn readers(&self, now: Option<OffsetDateTime>) -> Result<Vec<ReaderStatus>, StoreError> {
        let doing = while_doing("looking at the readers");
        let mut tx = self.own("looking at the readers").await?;
        let rows = self.query(STATUS).bind(now).fetch_all(&mut *tx).await.map_err(&doing)?;
        let lanes = self.query(LANES).bind(now).fetch_all(&mut *tx).await.map_err(&doing)?;
        let mut lanes = lanes_of(&lanes).map_err(&doing)?;
        let status = |row: &PgRow| reader(row).map(|reader| with_lanes(reader, &mut lanes));
        rows.iter().map(status).collect::<Result<_, _>>().map_err(doing)
    }

    async fn pause(&self, reader: &ConsumerName, paused: bool) -> Result<bool, StoreError> {
        let mut tx = self.own("pausing a reader").await?;
        let query = self.query(PAUSE).bind(reader.as_str()).bind(paused);
        let found = query
            .execute(&mut *tx)
            .await
            .map_err(while_doing("pausing a reader"))?
            .rows_affected()
            == 1;
        tx.commit_own().await?;
        Ok(found)
    }

    async fn drop_reader(&self, reader: &ConsumerName) -> Result<bool, StoreError> {
        let mut attempts = DROP_ATTEMPTS;
        loop {
            attempts -= 1;
            match self.drop_reader_once(reader).await {
                Err(error) if error.kind() == StoreErrorKind::Conflict && attempts > 0 => {}
                outcome => return outcome,
            }
        }
    }

    async fn reset(
        &self,
        reader: &ConsumerName,
        to: Start,
        forget_handled: bool,
        _now: Option<OffsetDateTime>,
    ) -> Result<Option<Position>, RegisterError> {
        let doing = while_doing("resetting a reader");
        let mut tx = self.own_within(DROP_LIMIT, "resetting a reader").await?;
        let (pruned_to, _) = self.lock_log(&mut tx).await?;
        if self
            .query(IS_READER)
            .bind(reader.as_str())
            .fetch_optional(&mut *tx)
            .await
            .map_err(&doing)?
            .is_none()
        {
            tx.rollback().await?;
            return Ok(None);
        }
        let to = match self.start_of(&mut tx, to, pruned_to).await {
            Ok(to) => to,
            Err(refused) => {
                tx.rollback().await?;
                return Err(refused);
            }
        };
        self.query(RESET)
            .bind(reader.as_str())
            .bind(to.0)
            .execute(&mut *tx)
            .await
            .map_err(&doing)?;
        self.query(DROP_BROKER)
            .bind(reader.as_str())
            .execute(&mut *tx)
            .await
            .map_err(&doing)?;
        if forget_handled {
            // Behind the raised epochs: whoever claims now is rolled back at its fence.
            self.query(DROP_REST[0])
                .bind(reader.as_str())
                .execute(&mut *tx)
                .await
                .map_err(&doing)?;
        }
        tx.commit_own().await?;
        Ok(Some(to))
    }
}

impl Postgres {
    /// Everything in one transaction: a reader that is registered anew under the same name must not find the inbox of the
    /// old one, or it would skip what it never handled. Cursors go before the rest, so that running batches are fenced and
    /// leave nothing behind; one that already waits for its cursor is a deadlock that one of the two loses.
    async fn drop_reader_once(&self, reader: &ConsumerName) -> Result<bool, StoreError> {
        let doing = while_doing("removing a reader");
        let mut tx = self.own_within(DROP_LIMIT, "removing a reader").await?;
        let query = self.query(DROP_READER).bind(reader.as_str());
        let found = query.execute(&mut *tx).await.map_err(&doing)?.rows_affected() == 1;
        if !found {
            return Ok(false);
        }
        for sql in [DROP_MEMBERS, DROP_CURSORS, DROP_BROKER].into_iter().chain(DROP_REST) {
            self.query(sql)
                .bind(reader.as_str())
                .execute(&mut *tx)
                .await
                .map_err(&doing)?;
        }
        tx.commit_own().await?;
        Ok(true)
    }
}

fn lanes_of(rows: &[PgRow]) -> Result<BTreeMap<String, Vec<LaneStatus>>, sqlx::Error> {
    let mut lanes: BTreeMap<String, Vec<LaneStatus>> = BTreeMap::new();
    for row in rows {
        let (lane, position) = (Lane(row.try_get(1)?), Position(row.try_get(2)?));
        let lane = LaneStatus::new(lane, position, row.try_get(3)?);
        lanes.entry(row.try_get(0)?).or_default().push(lane);
    }
    Ok(lanes)
}

fn with_lanes(mut reader: ReaderStatus, lanes: &mut BTreeMap<String, Vec<LaneStatus>>) -> ReaderStatus {
    reader.lanes = lanes.remove(&reader.name).unwrap_or_default();
    reader
}

fn reader(row: &PgRow) -> Result<ReaderStatus, sqlx::Error> {
    let count = |column: usize| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
    let age: Option<i64> = row.try_get(3)?;
    let mut reader = ReaderStatus::new(row.try_get::<String, _>(0)?);
    reader.paused = row.try_get(1)?;
    reader.lag_messages = count(2)?;
    reader.oldest = age.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()));
    reader.held_keys = count(4)?;
    reader.waiting = count(5)?;
    reader.dead = count(6)?;
    reader.first_dead_at = row.try_get(7)?;
    reader.last_error = row.try_get(8)?;
    Ok(reader)
}
