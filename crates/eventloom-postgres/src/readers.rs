//! What operators ask of readers, with counts that are bounded, and changing where readers stand.

use crate::{error::while_doing, store::Postgres};
use eventloom_core::{
    ConsumerName, Lane, OffsetDateTime, Position, StoreError, StoreErrorKind,
    ports::{LaneStatus, ReaderStatus, Readers, RegisterError, Start, Transaction as _},
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::{collections::BTreeMap, time::Duration};

/// Rows that one transaction deletes at most.
const ROWS_AT_ONCE: i64 = 5000;
/// How long the last transaction of a reset may take: it waits for batches, and forgets what they have handled meanwhile.
const RESET_LIMIT: Duration = Duration::from_secs(600);
/// Times that a removal or a reset is run again after a deadlock with a batch that was committing.
const ATTEMPTS: u32 = 5;

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
       coalesce((SELECT h.error FROM eventloom.held h
                  WHERE h.consumer = r.name AND h.state = 'dead' AND h.last_failed_at IS NOT NULL
                  ORDER BY h.last_failed_at DESC LIMIT 1),
                (SELECT h.error FROM eventloom.held h
                  WHERE h.consumer = r.name AND h.state = 'waiting' AND h.last_failed_at IS NOT NULL
                  ORDER BY h.last_failed_at DESC LIMIT 1))
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
const LEFTOVER: &str = "
SELECT coalesce((SELECT true FROM eventloom.inbox WHERE consumer = $1 ORDER BY id LIMIT 1),
                (SELECT true FROM eventloom.attempts WHERE consumer = $1 ORDER BY id LIMIT 1),
                (SELECT true FROM eventloom.held WHERE consumer = $1 ORDER BY id LIMIT 1),
                (SELECT true FROM eventloom.held_keys WHERE consumer = $1 ORDER BY source, key LIMIT 1), false)";
/// Each goes on behind where the one before ended: from the beginning it would step over all that is deleted already.
macro_rules! forget {
    ($table:literal, $id:literal, $and:literal) => {
        concat!(
            "
WITH piece AS MATERIALIZED (SELECT consumer, ",
            $id,
            " AS id FROM ",
            $table,
            " WHERE consumer = $1 AND ",
            $id,
            " > $2",
            $and,
            " ORDER BY ",
            $id,
            " LIMIT $3 FOR UPDATE),
     gone AS (DELETE FROM ",
            $table,
            " t USING piece p WHERE t.consumer = $1 AND t.",
            $id,
            " = p.id)
SELECT max(id) FROM piece"
        )
    };
}
const FORGET_HANDLED: &str = forget!("eventloom.inbox", "id", " AND handled_at IS NOT NULL");
const FORGET_PIECES: [&str; 4] = [
    forget!("eventloom.inbox", "id", ""),
    forget!("eventloom.attempts", "id", ""),
    forget!("eventloom.held", "id", ""),
    // There is one source so far.
    forget!("eventloom.held_keys", "key", " AND source = 'outbox'"),
];
const FORGET_INBOX: &str = "DELETE FROM eventloom.inbox WHERE consumer = $1";

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
        let mut attempts = ATTEMPTS;
        let found = loop {
            attempts -= 1;
            match self.unregister(reader).await {
                Err(error) if error.kind() == StoreErrorKind::Conflict && attempts > 0 => {}
                outcome => break outcome?,
            }
        };
        self.forget_leftovers(reader).await?;
        Ok(found)
    }

    async fn reset(
        &self,
        reader: &ConsumerName,
        to: Start,
        forget_handled: bool,
        _now: Option<OffsetDateTime>,
    ) -> Result<Option<Position>, RegisterError> {
        if forget_handled {
            // Before anything is forgotten: a refusal must change nothing.
            let mut tx = self.own("resetting a reader").await?;
            let refused = self.place_for_reset(&mut tx, reader, to).await;
            tx.rollback().await?;
            if refused?.is_none() {
                return Ok(None);
            }
            self.forget_all_handled(reader).await?;
        }
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            match self.reset_once(reader, to, forget_handled).await {
                Err(RegisterError::Store(error)) if error.kind() == StoreErrorKind::Conflict && attempts > 0 => {}
                outcome => return outcome,
            }
        }
    }
}

impl Postgres {
    /// First what its instances look for, so that running batches are fenced and leave nothing behind.
    async fn unregister(&self, reader: &ConsumerName) -> Result<bool, StoreError> {
        let doing = while_doing("removing a reader");
        let mut tx = self.own("removing a reader").await?;
        let mut found = false;
        for sql in [DROP_READER, DROP_MEMBERS, DROP_CURSORS, DROP_BROKER] {
            let dropped = self.query(sql).bind(reader.as_str()).execute(&mut *tx).await;
            let dropped = dropped.map_err(&doing)?.rows_affected();
            found |= sql == DROP_READER && dropped == 1;
        }
        tx.commit_own().await?;
        Ok(found)
    }

    /// Whether a reader of this name that was dropped has left anything behind: asked under the lock of the log's row.
    pub(crate) async fn has_leftovers(
        &self,
        connection: &mut PgConnection,
        reader: &ConsumerName,
    ) -> Result<bool, StoreError> {
        let query = self.query(LEFTOVER).bind(reader.as_str());
        let row = query.fetch_one(connection).await;
        row.and_then(|row| row.try_get(0))
            .map_err(while_doing("looking for what a dropped reader has left"))
    }

    /// Deletes what a reader that is not registered has left behind, piece by piece.
    ///
    /// Each piece locks the row of the log, as registering does, and looks whether the name is registered by now: what a new
    /// reader has handled is never taken for the old one's.
    pub(crate) async fn forget_leftovers(&self, reader: &ConsumerName) -> Result<(), StoreError> {
        let what = "forgetting what a dropped reader has left";
        let doing = while_doing(what);
        for sql in FORGET_PIECES {
            let mut after = String::new();
            loop {
                let mut tx = self.own(what).await?;
                self.lock_log(&mut tx).await?;
                if self.is_reader(&mut tx, reader).await? {
                    return tx.rollback().await;
                }
                let piece = self.query(sql).bind(reader.as_str()).bind(&after).bind(ROWS_AT_ONCE);
                let piece = piece.fetch_one(&mut *tx).await.map_err(&doing)?;
                let last: Option<String> = piece.try_get(0).map_err(&doing)?;
                tx.commit_own().await?;
                let Some(last) = last else { break };
                after = last;
            }
        }
        Ok(())
    }

    /// Most of an inbox, piece by piece; not the claims of calls that run. What is handled meanwhile is left to the reset.
    async fn forget_all_handled(&self, reader: &ConsumerName) -> Result<(), StoreError> {
        let what = "forgetting what was handled";
        let doing = while_doing(what);
        let mut after = String::new();
        loop {
            let mut tx = self.own(what).await?;
            let piece = self.query(FORGET_HANDLED).bind(reader.as_str());
            let piece = piece.bind(&after).bind(ROWS_AT_ONCE).fetch_one(&mut *tx).await;
            let last: Option<String> = piece.and_then(|piece| piece.try_get(0)).map_err(&doing)?;
            tx.commit_own().await?;
            let Some(last) = last else { return Ok(()) };
            after = last;
        }
    }

    async fn is_reader(&self, connection: &mut PgConnection, reader: &ConsumerName) -> Result<bool, StoreError> {
        let query = self.query(IS_READER).bind(reader.as_str());
        let found = query.fetch_optional(connection).await;
        Ok(found.map_err(while_doing("looking for a reader"))?.is_some())
    }

    /// `None`: the reader is not registered.
    async fn place_for_reset(
        &self,
        connection: &mut PgConnection,
        reader: &ConsumerName,
        to: Start,
    ) -> Result<Option<Position>, RegisterError> {
        let (pruned_to, _) = self.lock_log(connection).await?;
        match self.is_reader(connection, reader).await? {
            true => Ok(Some(self.start_of(connection, to, pruned_to).await?)),
            false => Ok(None),
        }
    }

    async fn reset_once(
        &self,
        reader: &ConsumerName,
        to: Start,
        forget_handled: bool,
    ) -> Result<Option<Position>, RegisterError> {
        let doing = while_doing("resetting a reader");
        let mut tx = self.own_within(RESET_LIMIT, "resetting a reader").await?;
        let to = match self.place_for_reset(&mut tx, reader, to).await {
            Ok(Some(to)) => to,
            unchanged => {
                tx.rollback().await?;
                return unchanged;
            }
        };
        let reset = self.query(RESET).bind(reader.as_str()).bind(to.0);
        reset.execute(&mut *tx).await.map_err(&doing)?;
        let forget = self.query(DROP_BROKER).bind(reader.as_str());
        forget.execute(&mut *tx).await.map_err(&doing)?;
        if forget_handled {
            // Behind the raised epochs: whoever claims now is rolled back at its fence.
            let forget = self.query(FORGET_INBOX).bind(reader.as_str());
            forget.execute(&mut *tx).await.map_err(&doing)?;
        }
        tx.commit_own().await?;
        Ok(Some(to))
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
