//! What operators ask of readers.

use crate::{
    Sqlite,
    error::failed,
    leases::place_of,
    log::horizon,
    rows::{bound, now, optional_text, time_of},
};
use eventloom_core::{
    ConsumerName, Lane, OffsetDateTime, Position, StoreError,
    ports::{LaneStatus, ReaderStatus, Readers, RegisterError, Start},
};
use sqlx::{Row, SqliteConnection};
use std::{collections::HashMap, time::Duration};

/// Counts end here and mean "at least".
const COUNT_MAX: i64 = 100_000;
/// Rows that one transaction deletes at most: everybody else who writes waits for it.
const ROWS_AT_ONCE: i64 = 1000;

const READERS: &str = "SELECT name, paused FROM eventloom_readers ORDER BY name";
const REGISTERED: &str = "SELECT 1 FROM eventloom_readers WHERE name = ?1";
const LANES: &str = concat!(
    "SELECT c.lane, c.position, m.owner FROM eventloom_cursors c LEFT JOIN eventloom_members m \
     ON m.reader = c.reader AND m.owner = c.owner AND m.lease_until > ",
    now!("?2"),
    " WHERE c.reader = ?1 ORDER BY c.lane"
);
const HORIZON: &str = concat!("SELECT ", horizon!());
const BEHIND: &str = concat!(
    "SELECT position, iif(octet_length(key) > 0, key, id), ",
    now!("?3"),
    " - recorded_at FROM eventloom_outbox WHERE position > ?1 AND position <= ?2 ORDER BY position LIMIT ?4"
);
const AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM eventloom_outbox WHERE position > ?1 LIMIT ?2)";
const AGE_OF_NEXT: &str = concat!(
    "SELECT ",
    now!("?2"),
    " - recorded_at FROM eventloom_outbox WHERE position > ?1 ORDER BY position LIMIT 1"
);
const HELD_KEYS: &str = "SELECT count(*) FROM (SELECT 1 FROM eventloom_held_keys WHERE consumer = ?1 LIMIT ?2)";
const IN_STATE: &str =
    "SELECT count(*) FROM (SELECT 1 FROM eventloom_held WHERE consumer = ?1 AND state = ?3 LIMIT ?2)";
const FIRST_DEAD: &str = "SELECT min(first_failed_at) FROM eventloom_held WHERE consumer = ?1 AND state = 'dead'";
const LAST_ERROR: &str = "SELECT error FROM eventloom_held \
                          WHERE consumer = ?1 AND state = ?2 AND last_failed_at IS NOT NULL \
                          ORDER BY last_failed_at DESC LIMIT 1";
const PAUSE: &str = "UPDATE eventloom_readers SET paused = ?2 WHERE name = ?1";
const DROP_READER: &str = "DELETE FROM eventloom_readers WHERE name = ?1";
const DROP_CURSORS: &str = "DELETE FROM eventloom_cursors WHERE reader = ?1";
const DROP_MEMBERS: &str = "DELETE FROM eventloom_members WHERE reader = ?1";
const LEFTOVER: &str = "SELECT EXISTS (SELECT 1 FROM eventloom_inbox WHERE consumer = ?1) \
                            OR EXISTS (SELECT 1 FROM eventloom_held WHERE consumer = ?1) \
                            OR EXISTS (SELECT 1 FROM eventloom_held_keys WHERE consumer = ?1) \
                            OR EXISTS (SELECT 1 FROM eventloom_attempts WHERE consumer = ?1)";
const FORGET_INBOX: &str = "DELETE FROM eventloom_inbox WHERE consumer = ?1 AND id IN ( \
                                SELECT id FROM eventloom_inbox WHERE consumer = ?1 LIMIT ?2)";
const FORGET_HELD: &str = "DELETE FROM eventloom_held WHERE consumer = ?1 AND id IN ( \
                               SELECT id FROM eventloom_held WHERE consumer = ?1 LIMIT ?2)";
const FORGET_KEYS: &str = "DELETE FROM eventloom_held_keys WHERE (consumer, source, key) IN ( \
                               SELECT consumer, source, key FROM eventloom_held_keys WHERE consumer = ?1 LIMIT ?2)";
const FORGET_ATTEMPTS: &str = "DELETE FROM eventloom_attempts WHERE consumer = ?1 AND id IN ( \
                                   SELECT id FROM eventloom_attempts WHERE consumer = ?1 LIMIT ?2)";
const PRUNED_TO: &str = "SELECT pruned_to FROM eventloom_logs WHERE name = 'outbox'";
/// The record of batches begins anew, or all that is redelivered would be suspect.
const RESET: &str = "UPDATE eventloom_cursors \
                     SET position = ?2, batch_end = ?2, epoch = epoch + 1, confirmed = NULL WHERE reader = ?1";
const DROP_BROKER: &str = "DELETE FROM eventloom_relays WHERE reader = ?1";

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("readers.behind", BEHIND),
    ("readers.ahead", AHEAD),
    ("readers.age_of_next", AGE_OF_NEXT),
    ("readers.held_keys", HELD_KEYS),
    ("readers.in_state", IN_STATE),
    ("readers.first_dead", FIRST_DEAD),
    ("readers.last_error", LAST_ERROR),
    ("readers.leftover", LEFTOVER),
    ("readers.forget_inbox", FORGET_INBOX),
    ("readers.forget_held", FORGET_HELD),
    ("readers.forget_keys", FORGET_KEYS),
    ("readers.forget_attempts", FORGET_ATTEMPTS),
];

impl Readers for Sqlite {
    async fn readers(&self, now: Option<OffsetDateTime>) -> Result<Vec<ReaderStatus>, StoreError> {
        let asking = failed("asking for the state of readers");
        // One snapshot, so that a row is not counted as read and as unread.
        let mut tx = self.0.pool.begin().await.map_err(asking)?;
        let names: Vec<(String, bool)> = sqlx::query_as(READERS).fetch_all(&mut *tx).await.map_err(asking)?;
        let mut readers = Vec::with_capacity(names.len());
        for (name, paused) in names {
            readers.push(self.status(&mut tx, name, paused, now).await.map_err(asking)?);
        }
        tx.rollback().await.map_err(asking)?;
        Ok(readers)
    }

    async fn pause(&self, reader: &ConsumerName, paused: bool) -> Result<bool, StoreError> {
        let mut tx = self.begin_write().await?;
        let pause = sqlx::query(PAUSE).bind(reader.as_str()).bind(paused);
        let registered = pause
            .execute(&mut *tx)
            .await
            .map_err(failed("pausing a reader"))?
            .rows_affected()
            == 1;
        tx.commit().await?;
        Ok(registered)
    }

    async fn drop_reader(&self, reader: &ConsumerName) -> Result<bool, StoreError> {
        let dropping = failed("dropping a reader");
        let mut tx = self.begin_write().await?;
        // First what its instances look for, so that none of them goes on; then, piece by piece, what they have left.
        let dropped = sqlx::query(DROP_READER)
            .bind(reader.as_str())
            .execute(&mut *tx)
            .await
            .map_err(dropping)?;
        for sql in [DROP_CURSORS, DROP_MEMBERS, DROP_BROKER] {
            sqlx::query(sql)
                .bind(reader.as_str())
                .execute(&mut *tx)
                .await
                .map_err(dropping)?;
        }
        tx.commit().await?;
        forget_leftovers(self, reader).await?;
        Ok(dropped.rows_affected() == 1)
    }

    async fn reset(
        &self,
        reader: &ConsumerName,
        to: Start,
        forget_handled: bool,
        now: Option<OffsetDateTime>,
    ) -> Result<Option<Position>, RegisterError> {
        let resetting = failed("resetting a reader");
        // Cursors have no times of their own.
        let _ = now;
        loop {
            let mut tx = self.begin_write().await?;
            let registered: Option<i64> = sqlx::query_scalar(REGISTERED)
                .bind(reader.as_str())
                .fetch_optional(&mut *tx)
                .await
                .map_err(resetting)?;
            if registered.is_none() {
                tx.rollback().await?;
                return Ok(None);
            }
            let pruned_to = sqlx::query_scalar(PRUNED_TO)
                .fetch_one(&mut *tx)
                .await
                .map_err(resetting)?;
            // Before anything is forgotten: a refusal must change nothing.
            let place = place_of(&mut tx, to, Position(pruned_to)).await?;
            if forget_handled {
                let forget = sqlx::query(FORGET_INBOX).bind(reader.as_str()).bind(ROWS_AT_ONCE);
                let forgotten = forget.execute(&mut *tx).await.map_err(resetting)?.rows_affected();
                // The cursors move in the transaction that forgets the last of it, or what is handled until then stays known.
                if forgotten >= ROWS_AT_ONCE.unsigned_abs() {
                    tx.commit().await?;
                    continue;
                }
            }
            let reset = sqlx::query(RESET).bind(reader.as_str()).bind(place.0);
            reset.execute(&mut *tx).await.map_err(resetting)?;
            let forget = sqlx::query(DROP_BROKER).bind(reader.as_str());
            forget.execute(&mut *tx).await.map_err(resetting)?;
            tx.commit().await?;
            return Ok(Some(place));
        }
    }
}

/// Deletes what a reader that is not registered has left behind.
pub(crate) async fn forget_leftovers(store: &Sqlite, reader: &ConsumerName) -> Result<(), StoreError> {
    let forgetting = failed("forgetting what a dropped reader has left");
    let name = reader.as_str();
    {
        let mut connection = store.0.pool.acquire().await.map_err(forgetting)?;
        if !has_leftovers(&mut connection, name).await.map_err(forgetting)? {
            return Ok(());
        }
    }
    loop {
        let mut tx = store.begin_write().await?;
        // Asked again each time: somebody may register under the name meanwhile.
        if !has_leftovers(&mut tx, name).await.map_err(forgetting)? {
            return tx.rollback().await;
        }
        for sql in [FORGET_INBOX, FORGET_HELD, FORGET_KEYS, FORGET_ATTEMPTS] {
            sqlx::query(sql)
                .bind(name)
                .bind(ROWS_AT_ONCE)
                .execute(&mut *tx)
                .await
                .map_err(forgetting)?;
        }
        tx.commit().await?;
    }
}

pub(crate) async fn has_leftovers(connection: &mut SqliteConnection, reader: &str) -> Result<bool, sqlx::Error> {
    let registered: Option<i64> = sqlx::query_scalar(REGISTERED)
        .bind(reader)
        .fetch_optional(&mut *connection)
        .await?;
    match registered {
        Some(_) => Ok(false),
        None => sqlx::query_scalar(LEFTOVER).bind(reader).fetch_one(connection).await,
    }
}

impl Sqlite {
    async fn status(
        &self,
        connection: &mut SqliteConnection,
        name: String,
        paused: bool,
        now: Option<OffsetDateTime>,
    ) -> Result<ReaderStatus, sqlx::Error> {
        let lanes = sqlx::query_as(LANES).bind(&name).bind(bound(now));
        let lanes: Vec<(i16, i64, Option<String>)> = lanes.fetch_all(&mut *connection).await?;
        let lanes: Vec<LaneStatus> = lanes
            .into_iter()
            .map(|(lane, position, owner)| LaneStatus::new(Lane(lane), Position(position), owner))
            .collect();
        let (lag_messages, oldest) = self.lag(connection, &lanes, now).await?;
        let count = |sql| sqlx::query_scalar::<_, i64>(sql).bind(&name).bind(COUNT_MAX);
        let held_keys = count(HELD_KEYS).fetch_one(&mut *connection).await?;
        let waiting = count(IN_STATE).bind("waiting").fetch_one(&mut *connection).await?;
        let dead = count(IN_STATE).bind("dead").fetch_one(&mut *connection).await?;
        let first_dead: Option<i64> = sqlx::query_scalar(FIRST_DEAD)
            .bind(&name)
            .fetch_one(&mut *connection)
            .await?;
        let mut last_error = None;
        for state in ["dead", "waiting"] {
            if last_error.is_none() {
                let last = sqlx::query(LAST_ERROR).bind(&name).bind(state);
                let last = last.fetch_optional(&mut *connection).await?;
                last_error = last.map(|row| optional_text(&row, 0)).transpose()?.flatten();
            }
        }
        let mut reader = ReaderStatus::new(name);
        reader.paused = paused;
        reader.lag_messages = lag_messages;
        reader.oldest = oldest;
        reader.held_keys = held_keys.unsigned_abs();
        reader.waiting = waiting.unsigned_abs();
        reader.dead = dead.unsigned_abs();
        reader.first_dead_at = first_dead.map(time_of);
        reader.last_error = last_error;
        reader.lanes = lanes;
        Ok(reader)
    }

    /// Rows above the cursors, and the age of the oldest. Above the foremost cursor every row counts; between the hindmost
    /// and the foremost it is a matter of lanes, and the first 100,000 rows are looked at.
    async fn lag(
        &self,
        connection: &mut SqliteConnection,
        lanes: &[LaneStatus],
        now: Option<OffsetDateTime>,
    ) -> Result<(u64, Option<Duration>), sqlx::Error> {
        let places: HashMap<Lane, i64> = lanes.iter().map(|lane| (lane.lane, lane.position.0)).collect();
        let (Some(hindmost), Some(foremost)) = (places.values().min(), places.values().max()) else {
            return Ok((0, None));
        };
        let horizon: i64 = sqlx::query_scalar(HORIZON).fetch_one(&mut *connection).await?;
        let foremost = *foremost.min(&horizon);
        let behind = sqlx::query(BEHIND)
            .bind(hindmost)
            .bind(foremost)
            .bind(bound(now))
            .bind(COUNT_MAX);
        let (mut lag, mut oldest) = (0, None);
        for row in behind.fetch_all(&mut *connection).await? {
            let position: i64 = row.try_get_unchecked(0)?;
            let lane = self.0.lanes.lane_of(&optional_text(&row, 1)?.unwrap_or_default());
            if places.get(&lane).is_some_and(|place| *place < position) {
                lag += 1;
                oldest = oldest.or(Some(row.try_get_unchecked(2)?));
            }
        }
        let ahead: i64 = sqlx::query_scalar(AHEAD)
            .bind(foremost)
            .bind(COUNT_MAX)
            .fetch_one(&mut *connection)
            .await?;
        if ahead > 0 && oldest.is_none() {
            let age = sqlx::query_scalar(AGE_OF_NEXT).bind(foremost).bind(bound(now));
            oldest = age.fetch_optional(connection).await?;
        }
        let age = |micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or(0));
        Ok(((lag + ahead).min(COUNT_MAX).unsigned_abs(), oldest.map(age)))
    }
}
