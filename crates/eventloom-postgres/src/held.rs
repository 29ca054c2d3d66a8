//! Messages set aside, and the keys that wait for them.
//!
//! The protocol is in [`eventloom_core::ports::Held`]. Two rules of the tables: a waiting message has a due time only
//! when it heads its key's queue or stands alone, and whoever removes or revives a head looks at the next one under the
//! lock of the key's row.

use crate::{
    error::{or_removed, while_doing},
    prune::micros,
    rows,
    store::Postgres,
    transaction::must_be_open,
};
use eventloom_core::{
    ConsumerName, Epoch, Lane, OffsetDateTime, OwnerId, StoreError, faults,
    ports::{Attempted, Due, Failure, Held, HeldMessage, HeldNow, HeldState, LetGo, NewHeld, Store as _},
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::{collections::HashSet, time::Duration};

/// The columns of a message as `rows::recorded` reads them, then those of its state.
macro_rules! held_columns {
    () => {
        "position, lane, id, topic, type, key, event_source, subject, time, data, data_bytes, datacontenttype, dataschema,
         schemaversion, correlationid, causationid, traceparent, tracestate, headers, origin,
         queued, state, attempts, taken_epoch, redrives"
    };
}
pub(crate) use held_columns;

const ASK: &str = "
SELECT true, key FROM eventloom.held_keys WHERE consumer = $1 AND source = 'outbox' AND key = ANY($2)
UNION ALL
SELECT false, id FROM eventloom.held WHERE consumer = $1 AND id = ANY($3)";
/// DO NOTHING would not lock, and a key let go meanwhile would leave what is inserted next without its row.
const LOCK_KEY: &str = "
INSERT INTO eventloom.held_keys (consumer, key, lane) VALUES ($1, $2, $3)
ON CONFLICT (consumer, source, key) DO UPDATE SET lane = EXCLUDED.lane";
const SHARE_KEYS: &str = "
SELECT key FROM eventloom.held_keys
 WHERE consumer = $1 AND source = 'outbox' AND key = ANY($2) ORDER BY key FOR SHARE";
/// The planted defect: the keys may be let go before the insert.
const SHARE_KEYS_UNLOCKED: &str = "
SELECT key FROM eventloom.held_keys WHERE consumer = $1 AND source = 'outbox' AND key = ANY($2)";

/// Ordered as an index is: a LIMIT alone invites the planner to scan a table for the first rows that fit.
const KEY_HOLDS: &str = "
SELECT count(*) >= $3 FROM (SELECT FROM eventloom.held
                               WHERE consumer = $1 AND key = $2 AND queued ORDER BY position LIMIT $3) h";
const CONSUMER_HOLDS: &str = "
SELECT count(*) >= $2 FROM (SELECT FROM eventloom.held WHERE consumer = $1 ORDER BY id LIMIT $2) h";
/// No EXISTS, which drops the order.
const LANE_HOLDS: &str = "
SELECT (SELECT true FROM eventloom.held WHERE (consumer, lane) >= ($1, $2) AND (consumer, lane) <= ($1, $2)
         ORDER BY consumer, lane LIMIT 1) IS NOT NULL";

/// A bounded look into each lane's part of the index, then the oldest of all. The time of the statement, since that of
/// the clock is no index condition: it moves while the index is read.
const DUE: &str = "
SELECT d.id, d.lane, CASE WHEN d.queued THEN d.key END
  FROM unnest($2::smallint[]) l (lane)
 CROSS JOIN LATERAL (SELECT h.id, h.lane, h.queued, h.key, h.due_at FROM eventloom.held h
                      WHERE h.consumer = $1 AND h.lane = l.lane AND h.state = 'waiting'
                        AND h.due_at IS NOT NULL AND h.due_at <= coalesce($4, statement_timestamp())
                      ORDER BY h.due_at LIMIT $3) d
 ORDER BY d.due_at, d.id LIMIT $3";
const NEXT_DUE: &str = "
SELECT (extract(epoch FROM min(d.due_at) - coalesce($3, statement_timestamp())) * 1000000)::bigint
  FROM unnest($2::smallint[]) l (lane)
 CROSS JOIN LATERAL (SELECT h.due_at FROM eventloom.held h
                      WHERE h.consumer = $1 AND h.lane = l.lane AND h.state = 'waiting' AND h.due_at IS NOT NULL
                      ORDER BY h.due_at LIMIT 1) d";
const QUEUE_OF: &str = concat!(
    "SELECT ",
    held_columns!(),
    " FROM eventloom.held WHERE consumer = $1 AND key = $2 AND queued ORDER BY position LIMIT $3"
);
const HELD_MESSAGE: &str = concat!(
    "SELECT ",
    held_columns!(),
    " FROM eventloom.held WHERE consumer = $1 AND id = $2"
);

const MARK_TAKEN: &str = "
WITH locked AS (SELECT id FROM eventloom.held WHERE consumer = $1 AND id = ANY($2) ORDER BY id FOR UPDATE)
UPDATE eventloom.held h SET taken_epoch = $3 FROM locked l WHERE h.consumer = $1 AND h.id = l.id";
const COUNT_HELD_ATTEMPT: &str = "
UPDATE eventloom.held SET attempts = attempts + 1 WHERE consumer = $1 AND id = $2 RETURNING attempts";
const COUNT_ATTEMPT: &str = "
INSERT INTO eventloom.attempts AS a (consumer, id, attempts) VALUES ($1, $2, 1)
ON CONFLICT (consumer, id) DO UPDATE SET attempts = a.attempts + 1 RETURNING attempts";
const UNCOUNT_HELD_ATTEMPT: &str = "
UPDATE eventloom.held SET attempts = attempts - 1 WHERE consumer = $1 AND id = $2 AND attempts > 0";
const UNCOUNT_ATTEMPT: &str = "
UPDATE eventloom.attempts SET attempts = attempts - 1 WHERE consumer = $1 AND id = $2 AND attempts > 0";
const CLEAR_ATTEMPTS: &str = "
DELETE FROM eventloom.attempts a
 USING (SELECT id FROM eventloom.attempts WHERE consumer = $1 AND id = ANY($2) ORDER BY id FOR UPDATE) l
 WHERE a.consumer = $1 AND a.id = l.id";
/// Outside of the transaction that its handler was given nothing is removed, as in `ADVANCE`.
const REMOVE: &str = "
DELETE FROM eventloom.held h
 USING (SELECT id FROM eventloom.held WHERE consumer = $1 AND id = ANY($2)
           AND current_setting('eventloom_store.transaction', true) = 'open' ORDER BY id FOR UPDATE) l
 WHERE h.consumer = $1 AND h.id = l.id";
const FAIL: &str = "
UPDATE eventloom.held h
   SET state = CASE WHEN $5::bigint IS NULL THEN 'dead' ELSE 'waiting' END, due_at = n.now + $5 * interval '1 microsecond',
       attempts = $6, error = $3, fingerprint = $4, first_failed_at = coalesce(h.first_failed_at, n.now),
       last_failed_at = n.now, taken_epoch = NULL
  FROM (SELECT coalesce($7, clock_timestamp()) AS now) n WHERE h.consumer = $1 AND h.id = $2";
/// One that stands behind another of its key has no due time, and gets none here.
const PUT_OFF: &str = "
WITH locked AS (SELECT id FROM eventloom.held WHERE consumer = $1 AND id = ANY($2) ORDER BY id FOR UPDATE)
UPDATE eventloom.held h
   SET taken_epoch = NULL,
       due_at = CASE WHEN h.state = 'dead' THEN NULL
                     WHEN h.queued AND EXISTS (SELECT FROM eventloom.held e WHERE e.consumer = $1 AND e.key = h.key
                                                  AND e.queued AND e.position < h.position) THEN NULL
                     ELSE coalesce($4, clock_timestamp()) + $3 * interval '1 microsecond' END
  FROM locked l WHERE h.consumer = $1 AND h.id = l.id";

const LOCK_FOR_LETTING_GO: &str = "
SELECT key FROM eventloom.held_keys WHERE consumer = $1 AND source = 'outbox' AND key = ANY($2) ORDER BY key FOR UPDATE";
const HEAD: &str = "
SELECT id, lane, state = 'waiting' AND due_at IS NULL FROM eventloom.held
 WHERE consumer = $1 AND key = $2 AND queued ORDER BY position LIMIT 1";
const MAKE_DUE: &str = "
UPDATE eventloom.held SET due_at = coalesce($3, clock_timestamp())
 WHERE consumer = $1 AND id = $2 AND state = 'waiting' AND due_at IS NULL";
const DELETE_KEY: &str = "DELETE FROM eventloom.held_keys WHERE consumer = $1 AND source = 'outbox' AND key = $2";
/// The planted defect: looks with the snapshot from before it waited.
const LET_GO_IN_ONE: &str = "
DELETE FROM eventloom.held_keys k WHERE k.consumer = $1 AND k.source = 'outbox' AND k.key = $2
   AND NOT EXISTS (SELECT FROM eventloom.held h WHERE h.consumer = $1 AND h.key = $2 AND h.queued)";
const KEYS_OF_LANE: &str = "
SELECT key FROM eventloom.held_keys
 WHERE consumer = $1 AND lane = $2 AND key > $3 AND source = 'outbox' ORDER BY key LIMIT $4";

impl Held for Postgres {
    async fn ask(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        keys: &[&str],
        ids: &[&str],
    ) -> Result<HeldNow, StoreError> {
        let doing = while_doing("asking what is held");
        let query = self.query(ASK).bind(consumer.as_str()).bind(keys).bind(ids);
        let mut held = HeldNow::default();
        for row in query.fetch_all(connection).await.map_err(&doing)? {
            let set = if row.try_get(0).map_err(&doing)? {
                &mut held.keys
            } else {
                &mut held.ids
            };
            set.insert(row.try_get(1).map_err(&doing)?);
        }
        Ok(held)
    }

    async fn lock_key(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        key: &str,
        lane: Lane,
    ) -> Result<(), StoreError> {
        let query = self.query(LOCK_KEY).bind(consumer.as_str()).bind(key).bind(lane.0);
        query.execute(connection).await.map_err(while_doing("locking a key"))?;
        Ok(())
    }

    async fn share_keys(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        keys: &[&str],
    ) -> Result<HashSet<String>, StoreError> {
        let doing = while_doing("locking keys to queue behind");
        let sql = if faults::defect("queue_without_lock") {
            SHARE_KEYS_UNLOCKED
        } else {
            SHARE_KEYS
        };
        let rows = self
            .query(sql)
            .bind(consumer.as_str())
            .bind(keys)
            .fetch_all(connection)
            .await
            .map_err(&doing)?;
        rows.iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()
            .map_err(doing)
    }

    async fn put(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        owner: &OwnerId,
        messages: &[NewHeld<'_>],
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let tables = self.tables();
        rows::put_held(tables, connection, consumer, owner, messages, now)
            .await
            .map_err(while_doing("setting messages aside"))
    }

    async fn holds_at_least(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        key: Option<&str>,
        messages: u32,
    ) -> Result<bool, StoreError> {
        let query = match key {
            Some(key) => self.query(KEY_HOLDS).bind(consumer.as_str()).bind(key),
            None => self.query(CONSUMER_HOLDS).bind(consumer.as_str()),
        };
        let doing = while_doing("counting held messages");
        let row = query
            .bind(i64::from(messages))
            .fetch_one(connection)
            .await
            .map_err(&doing)?;
        row.try_get(0).map_err(doing)
    }

    async fn due(
        &self,
        consumer: &ConsumerName,
        lanes: &[Lane],
        limit: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<(Vec<Due>, Option<Duration>), StoreError> {
        let doing = while_doing("looking for due messages");
        let lanes: Vec<i16> = lanes.iter().map(|lane| lane.0).collect();
        let mut tx = self.own("looking for due messages").await?;
        let query = self
            .query(DUE)
            .bind(consumer.as_str())
            .bind(&lanes)
            .bind(i64::from(limit))
            .bind(now);
        let rows = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        let due = |row: &PgRow| {
            Ok(Due {
                id: row.try_get(0)?,
                lane: Lane(row.try_get(1)?),
                queue: row.try_get(2)?,
            })
        };
        let due: Vec<Due> = rows
            .iter()
            .map(due)
            .collect::<Result<_, sqlx::Error>>()
            .map_err(&doing)?;
        if !due.is_empty() {
            return Ok((due, None));
        }
        let query = self.query(NEXT_DUE).bind(consumer.as_str()).bind(&lanes).bind(now);
        let row = query.fetch_one(&mut *tx).await.map_err(&doing)?;
        let next: Option<i64> = row.try_get(0).map_err(doing)?;
        Ok((
            due,
            next.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
        ))
    }

    async fn queue_of(&self, consumer: &ConsumerName, key: &str, limit: u32) -> Result<Vec<HeldMessage>, StoreError> {
        let doing = while_doing("reading the queue of a key");
        let mut tx = self.own("reading the queue of a key").await?;
        let query = self
            .query(QUEUE_OF)
            .bind(consumer.as_str())
            .bind(key)
            .bind(i64::from(limit));
        let rows = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        rows.iter().map(held_message).collect::<Result<_, _>>().map_err(doing)
    }

    async fn held_message(&self, consumer: &ConsumerName, id: &str) -> Result<Option<HeldMessage>, StoreError> {
        let doing = while_doing("reading a held message");
        let mut tx = self.own("reading a held message").await?;
        let query = self.query(HELD_MESSAGE).bind(consumer.as_str()).bind(id);
        let row = query.fetch_optional(&mut *tx).await.map_err(&doing)?;
        row.as_ref().map(held_message).transpose().map_err(doing)
    }

    async fn lane_holds(&self, consumer: &ConsumerName, lane: Lane) -> Result<bool, StoreError> {
        let doing = while_doing("asking whether a lane holds anything");
        let mut tx = self.own("asking whether a lane holds anything").await?;
        let query = self.query(LANE_HOLDS).bind(consumer.as_str()).bind(lane.0);
        query
            .fetch_one(&mut *tx)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(doing)
    }

    async fn mark_taken(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        epoch: Epoch,
    ) -> Result<(), StoreError> {
        let query = self.query(MARK_TAKEN).bind(consumer.as_str()).bind(ids).bind(epoch.0);
        query
            .execute(connection)
            .await
            .map_err(while_doing("marking held messages as taken"))?;
        Ok(())
    }

    async fn count_held_attempt(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<u32, StoreError> {
        let query = self.query(COUNT_HELD_ATTEMPT).bind(consumer.as_str()).bind(id);
        counted(query.fetch_one(connection).await).map_err(or_removed("counting an attempt of a held message"))
    }

    async fn uncount_held_attempt(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<(), StoreError> {
        let query = self.query(UNCOUNT_HELD_ATTEMPT).bind(consumer.as_str()).bind(id);
        query
            .execute(connection)
            .await
            .map_err(while_doing("taking an attempt back"))?;
        Ok(())
    }

    async fn count_attempt(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<u32, StoreError> {
        let query = self.query(COUNT_ATTEMPT).bind(consumer.as_str()).bind(id);
        counted(query.fetch_one(connection).await).map_err(while_doing("counting an attempt"))
    }

    async fn uncount_attempt(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<(), StoreError> {
        let query = self.query(UNCOUNT_ATTEMPT).bind(consumer.as_str()).bind(id);
        query
            .execute(connection)
            .await
            .map_err(while_doing("taking an attempt back"))?;
        Ok(())
    }

    async fn clear_attempts(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<(), StoreError> {
        let query = self.query(CLEAR_ATTEMPTS).bind(consumer.as_str()).bind(ids);
        query
            .execute(connection)
            .await
            .map_err(while_doing("forgetting attempts"))?;
        Ok(())
    }

    async fn remove(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<u64, StoreError> {
        let query = self.query(REMOVE).bind(consumer.as_str()).bind(ids);
        let removed = query
            .execute(&mut *connection)
            .await
            .map_err(while_doing("removing handled messages"))?
            .rows_affected();
        if removed < ids.len() as u64 {
            // Somebody else has answered for them, unless it is for this.
            must_be_open(connection, "removing handled messages").await?;
        }
        Ok(removed)
    }

    async fn fail(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        id: &str,
        failure: &Failure,
        attempts: u32,
        then: Attempted,
        now: Option<OffsetDateTime>,
    ) -> Result<bool, StoreError> {
        let due_in = match then {
            Attempted::Again(after) => Some(micros(after)),
            Attempted::Dead => None,
        };
        let query = self
            .query(FAIL)
            .bind(consumer.as_str())
            .bind(id)
            .bind(&failure.error)
            .bind(&failure.fingerprint);
        let query = query.bind(due_in).bind(count(attempts)).bind(now);
        let failed = query
            .execute(connection)
            .await
            .map_err(while_doing("recording a failure"))?;
        Ok(failed.rows_affected() == 1)
    }

    async fn put_off(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        due_in: Duration,
        now: Option<OffsetDateTime>,
    ) -> Result<(), StoreError> {
        let query = self
            .query(PUT_OFF)
            .bind(consumer.as_str())
            .bind(ids)
            .bind(micros(due_in))
            .bind(now);
        query
            .execute(connection)
            .await
            .map_err(while_doing("putting held messages off"))?;
        Ok(())
    }

    async fn let_go(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        key: &str,
        now: Option<OffsetDateTime>,
    ) -> Result<LetGo, StoreError> {
        let doing = while_doing("letting a key go");
        faults::point("letgo.before_lock");
        if faults::defect("let_go_in_one_statement") {
            let query = self.query(LET_GO_IN_ONE).bind(consumer.as_str()).bind(key);
            let gone = query.execute(&mut *connection).await.map_err(&doing)?.rows_affected() == 1;
            if gone {
                return Ok(LetGo::Free);
            }
        }
        self.lock_keys(connection, consumer, &[key]).await.map_err(&doing)?;
        faults::point("letgo.before_look");
        self.look_at_head(connection, consumer, key, now).await.map_err(doing)
    }

    async fn keys_of_lane(
        &self,
        consumer: &ConsumerName,
        lane: Lane,
        after: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let doing = while_doing("reading the held keys of a lane");
        let mut tx = self.own("reading the held keys of a lane").await?;
        let query = self
            .query(KEYS_OF_LANE)
            .bind(consumer.as_str())
            .bind(lane.0)
            .bind(after)
            .bind(i64::from(limit));
        let rows = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        rows.iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()
            .map_err(doing)
    }
}

impl Postgres {
    /// Locks rows of keys against everybody else, in sorted order.
    pub(crate) async fn lock_keys(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        keys: &[&str],
    ) -> Result<(), sqlx::Error> {
        self.query(LOCK_FOR_LETTING_GO)
            .bind(consumer.as_str())
            .bind(keys)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// What stands at the head of a key whose row is locked, in a statement later than the lock.
    pub(crate) async fn look_at_head(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        key: &str,
        now: Option<OffsetDateTime>,
    ) -> Result<LetGo, sqlx::Error> {
        let head = self
            .query(HEAD)
            .bind(consumer.as_str())
            .bind(key)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(head) = head else {
            self.query(DELETE_KEY)
                .bind(consumer.as_str())
                .bind(key)
                .execute(connection)
                .await?;
            return Ok(LetGo::Free);
        };
        if head.try_get(2)? {
            let query = self
                .query(MAKE_DUE)
                .bind(consumer.as_str())
                .bind(head.try_get::<String, _>(0)?)
                .bind(now);
            query.execute(connection).await?;
        }
        Ok(LetGo::StillHeld)
    }
}

fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

fn counted(row: Result<PgRow, sqlx::Error>) -> Result<u32, sqlx::Error> {
    Ok(row?.try_get::<i32, _>(0)?.unsigned_abs())
}

/// A state of the table.
pub(crate) fn state_of(text: &str) -> HeldState {
    // The table knows two.
    if text == HeldState::Dead.as_str() {
        HeldState::Dead
    } else {
        HeldState::Waiting
    }
}

fn held_message(row: &PgRow) -> Result<HeldMessage, sqlx::Error> {
    let state = rows::COLUMNS;
    Ok(HeldMessage {
        message: rows::recorded(row, 0)?,
        queued: row.try_get(state)?,
        state: state_of(row.try_get(state + 1)?),
        attempts: row.try_get::<i32, _>(state + 2)?.unsigned_abs(),
        taken_epoch: row.try_get::<Option<i64>, _>(state + 3)?.map(Epoch),
        redrives: row.try_get::<i32, _>(state + 4)?.unsigned_abs(),
    })
}
