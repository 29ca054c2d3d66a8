//! What operators ask of held messages. Every verb only changes state, a bounded number of rows a transaction.

use crate::{
    Sqlite, SqliteTransaction,
    error::failed,
    held::{let_go, state_of},
    rows::{MESSAGE_COLUMNS, array, bound, message_columns, now, optional_text, recorded, time_of},
};
use eventloom_core::{
    ConsumerName, Lane, OffsetDateTime, StoreError, faults,
    ports::{DeadLetter, DeadLetters, LetterFilter, Redrive},
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use std::collections::BTreeSet;

/// Rows that one transaction changes at most: everybody else who writes waits for it.
const ROWS_AT_ONCE: i64 = 500;
const LIMIT: u32 = 100;

macro_rules! select_letters {
    ($where:literal) => {
        concat!(
            "SELECT ",
            message_columns!("h", "event_source"),
            ", h.lane, h.consumer, h.state, h.queued, h.attempts, h.due_at, h.error, h.fingerprint, h.first_failed_at, \
               h.last_failed_at, h.held_at, h.held_by, h.redrives FROM eventloom_held h WHERE ",
            $where
        )
    };
}

const OF_CONSUMER: &str = select_letters!("h.consumer = ?1 AND h.id > ?2 ORDER BY h.id LIMIT ?3");
const OF_STATE: &str = select_letters!("h.consumer = ?1 AND h.state = ?4 AND h.id > ?2 ORDER BY h.id LIMIT ?3");
/// Without the plus signs the planner goes through all of the consumer's messages, for the sake of their order.
const OF_KEY: &str = select_letters!(
    "h.consumer = ?1 AND h.key = ?5 AND (?4 IS NULL OR h.state = ?4) AND +h.id > ?2 ORDER BY +h.id LIMIT ?3"
);
const ONE: &str = select_letters!("h.consumer = ?1 AND h.id = ?2");
/// Consumers one after the other: each is a look into the index, none a scan.
const NEXT_CONSUMER: &str = "SELECT min(consumer) FROM eventloom_held WHERE consumer > ?1";
const DEAD_ONE: &str = "SELECT id, iif(queued, key, NULL) FROM eventloom_held \
                        WHERE consumer = ?1 AND id = ?2 AND state = 'dead' LIMIT ?3";
const DEAD_OF_KEY: &str = "SELECT id, iif(queued, key, NULL) FROM eventloom_held \
                           WHERE consumer = ?1 AND key = ?2 AND state = 'dead' ORDER BY queued, position LIMIT ?3";
const DEAD_ALL: &str = "SELECT id, iif(queued, key, NULL) FROM eventloom_held \
                        WHERE consumer = ?1 AND state = 'dead' AND id > ?2 ORDER BY id LIMIT ?3";
const DEAD_OF_IDS: &str = "SELECT id, iif(queued, key, NULL) FROM eventloom_held \
                           WHERE consumer = ?1 AND state = 'dead' AND id IN (SELECT value FROM json_each(?2)) LIMIT ?3";
/// Behind the head of a queue nothing has a time of its own; the head gets its time by [`let_go`].
const REDRIVE: &str = concat!(
    "UPDATE eventloom_held SET state = 'waiting', attempts = 0, redrives = redrives + 1, taken_epoch = NULL, \
         due_at = iif(queued, NULL, ",
    now!("?3"),
    ") WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2)) AND state = 'dead'"
);
const DELETE: &str = "DELETE FROM eventloom_held \
                      WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2)) AND state = 'dead'";

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("letters.of_consumer", OF_CONSUMER),
    ("letters.of_state", OF_STATE),
    ("letters.of_key", OF_KEY),
    ("letters.one", ONE),
    ("letters.next_consumer", NEXT_CONSUMER),
    ("letters.dead_one", DEAD_ONE),
    ("letters.dead_of_key", DEAD_OF_KEY),
    ("letters.dead_all", DEAD_ALL),
    ("letters.dead_of_ids", DEAD_OF_IDS),
    ("letters.redrive", REDRIVE),
    ("letters.delete", DELETE),
];

impl DeadLetters for Sqlite {
    async fn letters(&self, filter: &LetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let listing = failed("listing held messages");
        let mut connection = self.0.pool.acquire().await.map_err(listing)?;
        let limit = filter.limit.unwrap_or(LIMIT) as usize;
        let (mut consumer, mut after) = match (&filter.consumer, &filter.after) {
            (Some(consumer), Some((last, _))) if last.as_str() > consumer.as_str() => return Ok(Vec::new()),
            (Some(consumer), Some((last, id))) if last == consumer.as_str() => (last.clone(), id.clone()),
            (Some(consumer), _) => (consumer.as_str().to_owned(), String::new()),
            (None, Some((last, id))) => (last.clone(), id.clone()),
            (None, None) => (String::new(), String::new()),
        };
        let mut letters = Vec::new();
        loop {
            let left = limit - letters.len();
            letters.extend(
                letters_of(&mut connection, &consumer, &after, filter, left)
                    .await
                    .map_err(listing)?,
            );
            if filter.consumer.is_some() || letters.len() >= limit {
                return Ok(letters);
            }
            let next = sqlx::query_scalar(NEXT_CONSUMER).bind(&consumer);
            let next: Option<String> = next.fetch_one(&mut *connection).await.map_err(listing)?;
            let Some(next) = next else { return Ok(letters) };
            (consumer, after) = (next, String::new());
        }
    }

    async fn letter(&self, consumer: &ConsumerName, id: &str) -> Result<Option<DeadLetter>, StoreError> {
        let reading = failed("reading a held message");
        let one = sqlx::query(ONE).bind(consumer.as_str()).bind(id);
        let row = one.fetch_optional(&self.0.pool).await.map_err(reading)?;
        row.as_ref().map(letter).transpose().map_err(reading)
    }

    async fn redrive(
        &self,
        consumer: &ConsumerName,
        which: &Redrive,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let (sql, mut argument) = match which {
            Redrive::One(id) => (DEAD_ONE, id.clone()),
            Redrive::Key(key) => (DEAD_OF_KEY, key.clone()),
            Redrive::All => (DEAD_ALL, String::new()),
        };
        let mut redriven = 0;
        loop {
            let mut tx = self.begin_write().await?;
            let dead = dead(&mut tx, sql, consumer, &argument)
                .await
                .map_err(failed("redriving"))?;
            redriven += change(tx, REDRIVE, consumer, &dead, now).await?;
            match dead.last() {
                // Those of a key are found by their state alone, so the next look finds the rest.
                Some((last, _)) if dead.len() as i64 == ROWS_AT_ONCE => {
                    if *which == Redrive::All {
                        argument.clone_from(last);
                    }
                }
                _ => return Ok(redriven),
            }
        }
    }

    async fn delete_letters(
        &self,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for ids in ids.chunks(ROWS_AT_ONCE as usize) {
            let mut tx = self.begin_write().await?;
            let ids = array(ids.iter().copied());
            let dead = dead(&mut tx, DEAD_OF_IDS, consumer, &ids)
                .await
                .map_err(failed("deleting dead letters"))?;
            deleted += change(tx, DELETE, consumer, &dead, now).await?;
        }
        Ok(deleted)
    }
}

/// Id of a dead message, and the key whose queue it stands in.
type Dead = (String, Option<String>);

async fn dead(
    connection: &mut SqliteConnection,
    sql: &'static str,
    consumer: &ConsumerName,
    argument: &str,
) -> Result<Vec<Dead>, sqlx::Error> {
    sqlx::query_as(sql)
        .bind(consumer.as_str())
        .bind(argument)
        .bind(ROWS_AT_ONCE)
        .fetch_all(connection)
        .await
}

/// Changes these, and lets their keys go or wakes the heads of their queues, in sorted order.
async fn change(
    mut tx: SqliteTransaction,
    sql: &'static str,
    consumer: &ConsumerName,
    dead: &[Dead],
    now: Option<OffsetDateTime>,
) -> Result<u64, StoreError> {
    let changing = failed("changing dead letters");
    if dead.is_empty() {
        tx.rollback().await?;
        return Ok(0);
    }
    let change = sqlx::query(sql)
        .bind(consumer.as_str())
        .bind(array(dead.iter().map(|(id, _)| id.as_str())));
    let change = if sql == REDRIVE {
        change.bind(bound(now))
    } else {
        change
    };
    let changed = change.execute(&mut *tx).await.map_err(changing)?.rows_affected();
    let keys: BTreeSet<&str> = dead.iter().filter_map(|(_, key)| key.as_deref()).collect();
    for key in keys {
        let_go(&mut tx, consumer.as_str(), key, now).await.map_err(changing)?;
    }
    faults::point("redrive.before_commit");
    tx.commit().await?;
    faults::point("redrive.after_commit");
    Ok(changed)
}

async fn letters_of(
    connection: &mut SqliteConnection,
    consumer: &str,
    after: &str,
    filter: &LetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, sqlx::Error> {
    let (key, state) = (filter.key.as_deref(), filter.state.map(|state| state.as_str()));
    let sql = match (key, state) {
        (Some(_), _) => OF_KEY,
        (None, Some(_)) => OF_STATE,
        (None, None) => OF_CONSUMER,
    };
    let mut query = sqlx::query(sql)
        .bind(consumer)
        .bind(after)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    if sql != OF_CONSUMER {
        query = query.bind(state);
    }
    if sql == OF_KEY {
        query = query.bind(key);
    }
    query.fetch_all(connection).await?.iter().map(letter).collect()
}

fn letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    let after = MESSAGE_COLUMNS;
    let time = |column: usize| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(after + column)?.map(time_of));
    let message = recorded(row, 0, Lane(row.try_get(after)?))?;
    let state = state_of(optional_text(row, after + 2)?.as_deref());
    let held_at = time_of(row.try_get(after + 10)?);
    let held_by: String = row.try_get(after + 11)?;
    let mut letter = DeadLetter::new(row.try_get::<String, _>(after + 1)?, message, state, held_at, held_by);
    letter.queued = row.try_get(after + 3)?;
    letter.attempts = row.try_get(after + 4)?;
    letter.due_at = time(5)?;
    letter.error = optional_text(row, after + 6)?;
    letter.fingerprint = optional_text(row, after + 7)?;
    letter.first_failed_at = time(8)?;
    letter.last_failed_at = time(9)?;
    letter.redrives = row.try_get(after + 12)?;
    Ok(letter)
}
