//! Keys and messages that are set aside. Locks of key rows are no statements here: one transaction writes at a time, and
//! what it has looked at stays so until it ends.

use crate::{
    Sqlite,
    error::failed,
    rows::{
        MESSAGE_COLUMNS, array, bound, headers_json, message_columns, micros, now, optional_text, payload_columns,
        recorded, span,
    },
};
use eventloom_core::{
    ConsumerName, Epoch, Lane, OffsetDateTime, OwnerId, StoreError, faults,
    ports::{Attempted, Due, Failure, Held, HeldMessage, HeldNow, HeldState, LetGo, NewHeld},
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use std::{collections::HashSet, time::Duration};

const KEYS_HELD: &str = "SELECT key FROM eventloom_held_keys \
                         WHERE consumer = ?1 AND source = 'outbox' AND key IN (SELECT value FROM json_each(?2))";
const IDS_HELD: &str = "SELECT id FROM eventloom_held WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))";
const LOCK_KEY: &str = concat!(
    "INSERT INTO eventloom_held_keys (consumer, key, lane, held_at) VALUES (?1, ?2, ?3, ",
    now!("NULL"),
    ") ON CONFLICT (consumer, source, key) DO NOTHING"
);
const PUT: &str = concat!(
    "INSERT INTO eventloom_held (consumer, id, position, lane, topic, type, key, event_source, subject, time, data, \
         data_bytes, datacontenttype, dataschema, schemaversion, correlationid, causationid, traceparent, tracestate, \
         headers, origin, queued, state, attempts, due_at, error, fingerprint, first_failed_at, last_failed_at, held_by, \
         held_at) \
     SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, \
         iif(?30, (SELECT data FROM eventloom_outbox WHERE position = ?3), ?11), \
         iif(?30, (SELECT data_bytes FROM eventloom_outbox WHERE position = ?3), ?12), ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, \
         ?24, now + ?25, ?26, ?27, iif(?26 IS NULL, NULL, now), iif(?26 IS NULL, NULL, now), ?28, now \
     FROM (SELECT ",
    now!("?29"),
    " AS now) WHERE true ON CONFLICT (consumer, id) DO NOTHING"
);
const COUNT_ALL: &str = "SELECT count(*) FROM (SELECT 1 FROM eventloom_held WHERE consumer = ?1 LIMIT ?2)";
const COUNT_KEY: &str =
    "SELECT count(*) FROM (SELECT 1 FROM eventloom_held WHERE consumer = ?1 AND key = ?3 AND queued LIMIT ?2)";
/// At most `?4` of each lane before they are sorted, so that a hundred thousand due ones cost no more.
const DUE: &str = concat!(
    "SELECT h.id, h.lane, iif(h.queued, h.key, NULL) FROM json_each(?2) AS lanes JOIN eventloom_held h ON h.rowid IN ( \
         SELECT rowid FROM eventloom_held \
         WHERE consumer = ?1 AND lane = lanes.value AND state = 'waiting' AND due_at IS NOT NULL AND due_at <= ",
    now!("?3"),
    " ORDER BY due_at LIMIT ?4) ORDER BY h.due_at, h.position LIMIT ?4"
);
const NEXT_DUE: &str = concat!(
    "SELECT min(next) - ",
    now!("?3"),
    " FROM (SELECT (SELECT due_at FROM eventloom_held \
         WHERE consumer = ?1 AND lane = lanes.value AND state = 'waiting' AND due_at IS NOT NULL \
         ORDER BY due_at LIMIT 1) AS next FROM json_each(?2) AS lanes)"
);
const QUEUE: &str = concat!(
    "SELECT ",
    message_columns!("h", "event_source"),
    ", h.lane, h.queued, h.state, h.attempts, h.taken_epoch, h.redrives FROM eventloom_held h \
     WHERE h.consumer = ?1 AND h.key = ?2 AND h.queued = 1 ORDER BY h.position LIMIT ?3"
);
const ONE: &str = concat!(
    "SELECT ",
    message_columns!("h", "event_source"),
    ", h.lane, h.queued, h.state, h.attempts, h.taken_epoch, h.redrives FROM eventloom_held h \
     WHERE h.consumer = ?1 AND h.id = ?2"
);
const LANE_HOLDS: &str = "SELECT EXISTS (SELECT 1 FROM eventloom_held WHERE consumer = ?1 AND lane = ?2)";
const MARK_TAKEN: &str = "UPDATE eventloom_held SET taken_epoch = ?3 \
                          WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))";
const COUNT_HELD_ATTEMPT: &str =
    "UPDATE eventloom_held SET attempts = attempts + 1 WHERE consumer = ?1 AND id = ?2 RETURNING attempts";
const COUNT_ATTEMPT: &str = "INSERT INTO eventloom_attempts (consumer, id, attempts) VALUES (?1, ?2, 1) \
                             ON CONFLICT (consumer, id) DO UPDATE SET attempts = attempts + 1 RETURNING attempts";
const UNCOUNT_HELD_ATTEMPT: &str =
    "UPDATE eventloom_held SET attempts = attempts - 1 WHERE consumer = ?1 AND id = ?2 AND attempts > 0";
const UNCOUNT_ATTEMPT: &str =
    "UPDATE eventloom_attempts SET attempts = attempts - 1 WHERE consumer = ?1 AND id = ?2 AND attempts > 0";
const CLEAR_ATTEMPTS: &str =
    "DELETE FROM eventloom_attempts WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))";
const REMOVE: &str = "DELETE FROM eventloom_held WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))";
const FAIL: &str = concat!(
    "UPDATE eventloom_held SET state = ?3, attempts = ?4, due_at = n.now + ?5, taken_epoch = NULL, error = ?6, \
         fingerprint = ?7, first_failed_at = coalesce(first_failed_at, n.now), last_failed_at = n.now \
     FROM (SELECT ",
    now!("?8"),
    " AS now) AS n WHERE consumer = ?1 AND id = ?2"
);
/// Behind the head of a queue nothing has a time of its own.
const PUT_OFF: &str = concat!(
    "UPDATE eventloom_held SET taken_epoch = NULL, due_at = CASE \
         WHEN state = 'waiting' AND (queued = 0 OR position = (SELECT min(head.position) FROM eventloom_held AS head \
              WHERE head.consumer = eventloom_held.consumer AND head.key = eventloom_held.key AND head.queued = 1)) \
         THEN ",
    now!("?4"),
    " + ?3 ELSE due_at END WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))"
);
const KEY_ROW: &str = "SELECT 1 FROM eventloom_held_keys WHERE consumer = ?1 AND source = 'outbox' AND key = ?2";
const HEAD: &str = "SELECT id, state = 'waiting' AND due_at IS NULL FROM eventloom_held \
                    WHERE consumer = ?1 AND key = ?2 AND queued = 1 ORDER BY position LIMIT 1";
const FREE_KEY: &str = "DELETE FROM eventloom_held_keys WHERE consumer = ?1 AND source = 'outbox' AND key = ?2";
const WAKE_HEAD: &str = concat!(
    "UPDATE eventloom_held SET due_at = ",
    now!("?3"),
    " WHERE consumer = ?1 AND id = ?2"
);
const KEYS_OF_LANE: &str = "SELECT key FROM eventloom_held_keys \
                            WHERE consumer = ?1 AND lane = ?2 AND key > ?3 ORDER BY key LIMIT ?4";

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("held.keys_held", KEYS_HELD),
    ("held.ids_held", IDS_HELD),
    ("held.lock_key", LOCK_KEY),
    ("held.put", PUT),
    ("held.count_all", COUNT_ALL),
    ("held.count_key", COUNT_KEY),
    ("held.due", DUE),
    ("held.next_due", NEXT_DUE),
    ("held.queue", QUEUE),
    ("held.one", ONE),
    ("held.lane_holds", LANE_HOLDS),
    ("held.mark_taken", MARK_TAKEN),
    ("held.count_held_attempt", COUNT_HELD_ATTEMPT),
    ("held.count_attempt", COUNT_ATTEMPT),
    ("held.uncount_held_attempt", UNCOUNT_HELD_ATTEMPT),
    ("held.uncount_attempt", UNCOUNT_ATTEMPT),
    ("held.clear_attempts", CLEAR_ATTEMPTS),
    ("held.remove", REMOVE),
    ("held.fail", FAIL),
    ("held.put_off", PUT_OFF),
    ("held.key_row", KEY_ROW),
    ("held.head", HEAD),
    ("held.free_key", FREE_KEY),
    ("held.wake_head", WAKE_HEAD),
    ("held.keys_of_lane", KEYS_OF_LANE),
];

impl Held for Sqlite {
    async fn ask(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        keys: &[&str],
        ids: &[&str],
    ) -> Result<HeldNow, StoreError> {
        Ok(HeldNow {
            keys: which(connection, KEYS_HELD, consumer, keys).await?,
            ids: which(connection, IDS_HELD, consumer, ids).await?,
        })
    }

    async fn lock_key(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        key: &str,
        lane: Lane,
    ) -> Result<(), StoreError> {
        let lock = sqlx::query(LOCK_KEY).bind(consumer.as_str()).bind(key).bind(lane.0);
        lock.execute(connection).await.map_err(failed("holding a key"))?;
        Ok(())
    }

    async fn share_keys(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        keys: &[&str],
    ) -> Result<HashSet<String>, StoreError> {
        which(connection, KEYS_HELD, consumer, keys).await
    }

    async fn put(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        owner: &OwnerId,
        messages: &[NewHeld<'_>],
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut new = 0;
        for message in messages {
            new += put(connection, consumer, owner, message, now)
                .await
                .map_err(failed("setting messages aside"))?;
        }
        Ok(new)
    }

    async fn holds_at_least(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        key: Option<&str>,
        messages: u32,
    ) -> Result<bool, StoreError> {
        let sql = if key.is_some() { COUNT_KEY } else { COUNT_ALL };
        let count = sqlx::query_scalar(sql).bind(consumer.as_str()).bind(messages);
        let count = if key.is_some() { count.bind(key) } else { count };
        let found: i64 = count
            .fetch_one(connection)
            .await
            .map_err(failed("counting held messages"))?;
        Ok(found >= i64::from(messages))
    }

    async fn due(
        &self,
        consumer: &ConsumerName,
        lanes: &[Lane],
        limit: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<(Vec<Due>, Option<Duration>), StoreError> {
        let looking = failed("looking for held messages that are due");
        let lanes = array(lanes.iter().map(|lane| lane.0));
        let mut connection = self.0.pool.acquire().await.map_err(looking)?;
        let due = sqlx::query_as(DUE)
            .bind(consumer.as_str())
            .bind(&lanes)
            .bind(bound(now))
            .bind(limit);
        let due: Vec<(String, i16, Option<String>)> = due.fetch_all(&mut *connection).await.map_err(looking)?;
        if !due.is_empty() {
            let due = due.into_iter().map(|(id, lane, queue)| Due {
                id,
                lane: Lane(lane),
                queue,
            });
            return Ok((due.collect(), None));
        }
        let next = sqlx::query_scalar(NEXT_DUE)
            .bind(consumer.as_str())
            .bind(&lanes)
            .bind(bound(now));
        let next: Option<i64> = next.fetch_one(&mut *connection).await.map_err(looking)?;
        Ok((
            Vec::new(),
            next.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        ))
    }

    async fn queue_of(&self, consumer: &ConsumerName, key: &str, limit: u32) -> Result<Vec<HeldMessage>, StoreError> {
        let reading = failed("reading the queue of a key");
        let queue = sqlx::query(QUEUE).bind(consumer.as_str()).bind(key).bind(limit);
        let rows = queue.fetch_all(&self.0.pool).await.map_err(reading)?;
        rows.iter().map(held_message).collect::<Result<_, _>>().map_err(reading)
    }

    async fn held_message(&self, consumer: &ConsumerName, id: &str) -> Result<Option<HeldMessage>, StoreError> {
        let reading = failed("reading a held message");
        let one = sqlx::query(ONE).bind(consumer.as_str()).bind(id);
        let row = one.fetch_optional(&self.0.pool).await.map_err(reading)?;
        row.as_ref().map(held_message).transpose().map_err(reading)
    }

    async fn lane_holds(&self, consumer: &ConsumerName, lane: Lane) -> Result<bool, StoreError> {
        let holds = sqlx::query_scalar(LANE_HOLDS).bind(consumer.as_str()).bind(lane.0);
        holds
            .fetch_one(&self.0.pool)
            .await
            .map_err(failed("asking whether a lane holds messages"))
    }

    async fn mark_taken(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        epoch: Epoch,
    ) -> Result<(), StoreError> {
        let mark = sqlx::query(MARK_TAKEN)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()))
            .bind(epoch.0);
        mark.execute(connection)
            .await
            .map_err(failed("marking held messages as taken"))?;
        Ok(())
    }

    async fn count_held_attempt(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<u32, StoreError> {
        count(connection, COUNT_HELD_ATTEMPT, consumer, id).await
    }

    async fn uncount_held_attempt(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<(), StoreError> {
        uncount(connection, UNCOUNT_HELD_ATTEMPT, consumer, id).await
    }

    async fn count_attempt(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<u32, StoreError> {
        count(connection, COUNT_ATTEMPT, consumer, id).await
    }

    async fn uncount_attempt(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        id: &str,
    ) -> Result<(), StoreError> {
        uncount(connection, UNCOUNT_ATTEMPT, consumer, id).await
    }

    async fn clear_attempts(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<(), StoreError> {
        let clear = sqlx::query(CLEAR_ATTEMPTS)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()));
        clear.execute(connection).await.map_err(failed("forgetting attempts"))?;
        Ok(())
    }

    async fn remove(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<u64, StoreError> {
        let remove = sqlx::query(REMOVE)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()));
        let removed = remove
            .execute(connection)
            .await
            .map_err(failed("removing held messages"))?;
        Ok(removed.rows_affected())
    }

    async fn fail(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        id: &str,
        failure: &Failure,
        attempts: u32,
        then: Attempted,
        now: Option<OffsetDateTime>,
    ) -> Result<bool, StoreError> {
        let (state, due_in) = match then {
            Attempted::Again(due_in) => (HeldState::Waiting, Some(span(due_in))),
            Attempted::Dead => (HeldState::Dead, None),
        };
        let fail = sqlx::query(FAIL)
            .bind(consumer.as_str())
            .bind(id)
            .bind(state.as_str())
            .bind(attempts)
            .bind(due_in)
            .bind(&failure.error)
            .bind(&failure.fingerprint)
            .bind(bound(now));
        let failed_ = fail.execute(connection).await.map_err(failed("recording a failure"))?;
        Ok(failed_.rows_affected() == 1)
    }

    async fn put_off(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        due_in: Duration,
        now: Option<OffsetDateTime>,
    ) -> Result<(), StoreError> {
        let put_off = sqlx::query(PUT_OFF)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()));
        let put_off = put_off.bind(span(due_in)).bind(bound(now));
        put_off
            .execute(connection)
            .await
            .map_err(failed("putting held messages off"))?;
        Ok(())
    }

    async fn let_go(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        key: &str,
        now: Option<OffsetDateTime>,
    ) -> Result<LetGo, StoreError> {
        let_go(connection, consumer.as_str(), key, now)
            .await
            .map_err(failed("letting a key go"))
    }

    async fn keys_of_lane(
        &self,
        consumer: &ConsumerName,
        lane: Lane,
        after: &str,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let keys = sqlx::query_scalar(KEYS_OF_LANE)
            .bind(consumer.as_str())
            .bind(lane.0)
            .bind(after)
            .bind(limit);
        keys.fetch_all(&self.0.pool)
            .await
            .map_err(failed("looking for the held keys of a lane"))
    }
}

/// Lets a key go, or makes its head due: for owners after a drain, and for operators after they took the head away.
pub(crate) async fn let_go(
    connection: &mut SqliteConnection,
    consumer: &str,
    key: &str,
    now: Option<OffsetDateTime>,
) -> Result<LetGo, sqlx::Error> {
    faults::point("letgo.before_lock");
    let row: Option<i64> = sqlx::query_scalar(KEY_ROW)
        .bind(consumer)
        .bind(key)
        .fetch_optional(&mut *connection)
        .await?;
    if row.is_none() {
        return Ok(LetGo::Free);
    }
    faults::point("letgo.before_look");
    let head: Option<(String, bool)> = sqlx::query_as(HEAD)
        .bind(consumer)
        .bind(key)
        .fetch_optional(&mut *connection)
        .await?;
    match head {
        None => {
            sqlx::query(FREE_KEY)
                .bind(consumer)
                .bind(key)
                .execute(connection)
                .await?;
            Ok(LetGo::Free)
        }
        Some((id, sleeps)) => {
            if sleeps {
                sqlx::query(WAKE_HEAD)
                    .bind(consumer)
                    .bind(id)
                    .bind(bound(now))
                    .execute(connection)
                    .await?;
            }
            Ok(LetGo::StillHeld)
        }
    }
}

async fn which(
    connection: &mut SqliteConnection,
    sql: &'static str,
    consumer: &ConsumerName,
    asked: &[&str],
) -> Result<HashSet<String>, StoreError> {
    if asked.is_empty() {
        return Ok(HashSet::new());
    }
    let which = sqlx::query_scalar(sql)
        .bind(consumer.as_str())
        .bind(array(asked.iter().copied()));
    let found: Vec<String> = which
        .fetch_all(connection)
        .await
        .map_err(failed("asking what is held"))?;
    Ok(found.into_iter().collect())
}

async fn count(
    connection: &mut SqliteConnection,
    sql: &'static str,
    consumer: &ConsumerName,
    id: &str,
) -> Result<u32, StoreError> {
    let count = sqlx::query_scalar(sql).bind(consumer.as_str()).bind(id);
    let attempts: Option<u32> = count
        .fetch_optional(connection)
        .await
        .map_err(failed("counting an attempt"))?;
    // A held message that is gone has no attempts; whoever answers for it next finds nothing and rolls back.
    Ok(attempts.unwrap_or(0))
}

async fn uncount(
    connection: &mut SqliteConnection,
    sql: &'static str,
    consumer: &ConsumerName,
    id: &str,
) -> Result<(), StoreError> {
    let uncount = sqlx::query(sql).bind(consumer.as_str()).bind(id);
    uncount
        .execute(connection)
        .await
        .map_err(failed("taking an attempt back"))?;
    Ok(())
}

async fn put(
    connection: &mut SqliteConnection,
    consumer: &ConsumerName,
    owner: &OwnerId,
    held: &NewHeld<'_>,
    now: Option<OffsetDateTime>,
) -> Result<u64, sqlx::Error> {
    let (message, envelope) = (held.message, &held.message.envelope);
    let (data, data_bytes) = payload_columns(envelope.payload.as_ref());
    let put = sqlx::query(PUT)
        .bind(consumer.as_str())
        .bind(&envelope.id)
        .bind(message.position.0)
        .bind(message.lane.0)
        .bind(&envelope.topic)
        .bind(&envelope.event_type)
        .bind(envelope.key.as_deref())
        .bind(envelope.source.as_deref())
        .bind(envelope.subject.as_deref())
        .bind(micros(envelope.time))
        .bind(data)
        .bind(data_bytes)
        .bind(envelope.datacontenttype.as_deref())
        .bind(envelope.dataschema.as_deref())
        .bind(envelope.schemaversion)
        .bind(envelope.correlationid.as_deref())
        .bind(envelope.causationid.as_deref())
        .bind(envelope.traceparent.as_deref())
        .bind(envelope.tracestate.as_deref())
        .bind(headers_json(&envelope.headers))
        .bind(envelope.origin.map(|origin| origin.to_string()))
        .bind(held.queued)
        .bind(held.state.as_str())
        .bind(held.attempts)
        .bind(held.due_in.map(span))
        .bind(held.failure.map(|failure| failure.error.as_str()))
        .bind(held.failure.map(|failure| failure.fingerprint.as_str()))
        .bind(owner.as_str())
        .bind(bound(now))
        .bind(message.omitted.is_some())
        .execute(connection)
        .await?;
    Ok(put.rows_affected())
}

fn held_message(row: &SqliteRow) -> Result<HeldMessage, sqlx::Error> {
    let after = MESSAGE_COLUMNS;
    Ok(HeldMessage {
        message: recorded(row, 0, Lane(row.try_get(after)?))?,
        queued: row.try_get(after + 1)?,
        state: state_of(optional_text(row, after + 2)?.as_deref()),
        attempts: row.try_get(after + 3)?,
        taken_epoch: row.try_get::<Option<i64>, _>(after + 4)?.map(Epoch),
        redrives: row.try_get(after + 5)?,
    })
}

/// The table checks that it is one of the two.
pub(crate) fn state_of(text: Option<&str>) -> HeldState {
    if text == Some(HeldState::Dead.as_str()) {
        HeldState::Dead
    } else {
        HeldState::Waiting
    }
}
