//! Dead letters as calls: every verb changes states only, under the locks of the keys that it touches.

use crate::{
    error::while_doing,
    held::{held_columns, state_of},
    rows,
    store::Postgres,
};
use eventloom_core::{
    ConsumerName, OffsetDateTime, StoreError, faults,
    ports::{DeadLetter, DeadLetters, HeldState, LetterFilter, Redrive},
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::collections::BTreeSet;

const LIMIT: u32 = 100;
/// Letters that one transaction of a redrive changes at most.
const BATCH: i64 = 1000;

/// One text for each way to ask, so that each has the plan of its index.
macro_rules! letters {
    ($where:literal) => {
        concat!(
            "SELECT ",
            held_columns!(),
            ", consumer, due_at, error, fingerprint, first_failed_at, last_failed_at, held_at, held_by
               FROM eventloom.held WHERE ",
            $where,
            " AND ($3::text IS NULL OR key = $3) AND (consumer, id) > ($4, $5) ORDER BY consumer, id LIMIT $6"
        )
    };
}

const LETTERS: &str = letters!("$1::text IS NULL AND $2::text IS NULL");
const LETTERS_IN: &str = letters!("$1::text IS NULL AND state = $2");
const LETTERS_OF: &str = letters!("consumer = $1 AND $2::text IS NULL");
const LETTERS_OF_IN: &str = letters!("consumer = $1 AND state = $2");
const LETTER: &str = concat!(
    "SELECT ",
    held_columns!(),
    ", consumer, due_at, error, fingerprint, first_failed_at, last_failed_at, held_at, held_by
       FROM eventloom.held WHERE consumer = $1 AND id = $2"
);

const DEAD_ONES: &str = "
SELECT id, CASE WHEN queued THEN key END FROM eventloom.held
 WHERE consumer = $1 AND id = ANY($2) AND state = 'dead' ORDER BY id";
const DEAD_OF_KEY: &str = "
SELECT id, CASE WHEN queued THEN key END FROM eventloom.held
 WHERE consumer = $1 AND key = $2 AND state = 'dead' ORDER BY id";
const DEAD_AFTER: &str = "
SELECT id, CASE WHEN queued THEN key END FROM eventloom.held
 WHERE consumer = $1 AND state = 'dead' AND id > $2 ORDER BY id LIMIT $3";

/// In a statement later than the locks of the keys: who heads a queue is seen as it is. What stands behind another of its
/// key gets its due time when that one is gone.
const REVIVE: &str = "
WITH locked AS (SELECT id FROM eventloom.held
                 WHERE consumer = $1 AND id = ANY($2) AND state = 'dead' ORDER BY id FOR UPDATE)
UPDATE eventloom.held h
   SET state = 'waiting', attempts = 0, redrives = redrives + 1, taken_epoch = NULL,
       due_at = CASE WHEN h.queued AND EXISTS (SELECT FROM eventloom.held e WHERE e.consumer = $1 AND e.key = h.key
                                                  AND e.queued AND e.position < h.position) THEN NULL
                     ELSE coalesce($3, clock_timestamp()) END
  FROM locked l WHERE h.consumer = $1 AND h.id = l.id";
const DELETE: &str = "
DELETE FROM eventloom.held h
 USING (SELECT id FROM eventloom.held
         WHERE consumer = $1 AND id = ANY($2) AND state = 'dead' ORDER BY id FOR UPDATE) l
 WHERE h.consumer = $1 AND h.id = l.id";

impl DeadLetters for Postgres {
    async fn letters(&self, filter: &LetterFilter) -> Result<Vec<DeadLetter>, StoreError> {
        let doing = while_doing("listing held messages");
        let sql = match (&filter.consumer, filter.state) {
            (None, None) => LETTERS,
            (None, Some(_)) => LETTERS_IN,
            (Some(_), None) => LETTERS_OF,
            (Some(_), Some(_)) => LETTERS_OF_IN,
        };
        let (after_consumer, after_id) = filter.after.clone().unwrap_or_default();
        let mut tx = self.own("listing held messages").await?;
        let query = self.query(sql).bind(filter.consumer.as_ref().map(ConsumerName::as_str));
        let query = query
            .bind(filter.state.map(HeldState::as_str))
            .bind(&filter.key)
            .bind(after_consumer);
        let query = query.bind(after_id).bind(i64::from(filter.limit.unwrap_or(LIMIT)));
        let rows = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        rows.iter().map(letter).collect::<Result<_, _>>().map_err(doing)
    }

    async fn letter(&self, consumer: &ConsumerName, id: &str) -> Result<Option<DeadLetter>, StoreError> {
        let doing = while_doing("showing a held message");
        let mut tx = self.own("showing a held message").await?;
        let query = self.query(LETTER).bind(consumer.as_str()).bind(id);
        let row = query.fetch_optional(&mut *tx).await.map_err(&doing)?;
        row.as_ref().map(letter).transpose().map_err(doing)
    }

    async fn redrive(
        &self,
        consumer: &ConsumerName,
        which: &Redrive,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut revived = 0;
        let mut after = String::new();
        loop {
            let (rows, last) = self.redrive_batch(consumer, which, &after, now).await?;
            revived += rows;
            match last {
                Some(last) => after = last,
                None => return Ok(revived),
            }
        }
    }

    async fn delete_letters(
        &self,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let doing = while_doing("deleting dead letters");
        let mut tx = self.own("deleting dead letters").await?;
        let query = self.query(DEAD_ONES).bind(consumer.as_str()).bind(ids);
        let (dead, keys) = dead_of(&query.fetch_all(&mut *tx).await.map_err(&doing)?).map_err(&doing)?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.lock_keys(&mut tx, consumer, &keys).await.map_err(&doing)?;
        let query = self.query(DELETE).bind(consumer.as_str()).bind(dead);
        let deleted = query.execute(&mut *tx).await.map_err(&doing)?.rows_affected();
        for key in keys {
            self.look_at_head(&mut tx, consumer, key, now).await.map_err(&doing)?;
        }
        tx.commit_own().await?;
        Ok(deleted)
    }
}

impl Postgres {
    /// One transaction of a redrive; the id after which the next one goes on, when there may be more.
    async fn redrive_batch(
        &self,
        consumer: &ConsumerName,
        which: &Redrive,
        after: &str,
        now: Option<OffsetDateTime>,
    ) -> Result<(u64, Option<String>), StoreError> {
        let doing = while_doing("sending dead letters again");
        let mut tx = self.own("sending dead letters again").await?;
        let query = match which {
            Redrive::One(id) => self.query(DEAD_ONES).bind(consumer.as_str()).bind(vec![id.as_str()]),
            Redrive::Key(key) => self.query(DEAD_OF_KEY).bind(consumer.as_str()).bind(key),
            Redrive::All => self.query(DEAD_AFTER).bind(consumer.as_str()).bind(after).bind(BATCH),
        };
        let (dead, keys) = dead_of(&query.fetch_all(&mut *tx).await.map_err(&doing)?).map_err(&doing)?;
        if dead.is_empty() {
            return Ok((0, None));
        }
        let revived = self.revive(&mut tx, consumer, &dead, keys, now).await.map_err(doing)?;
        faults::point("redrive.before_commit");
        tx.commit_own().await?;
        faults::point("redrive.after_commit");
        let more = *which == Redrive::All && dead.len() as i64 == BATCH;
        Ok((revived, dead.last().filter(|_| more).cloned()))
    }

    async fn revive(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        dead: &[String],
        keys: BTreeSet<String>,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, sqlx::Error> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.lock_keys(connection, consumer, &keys).await?;
        let query = self.query(REVIVE).bind(consumer.as_str()).bind(dead).bind(now);
        let revived = query.execute(&mut *connection).await?.rows_affected();
        // A reset can have queued earlier messages before the one that was dead: then they are the head, without a due time.
        for key in keys {
            self.look_at_head(connection, consumer, key, now).await?;
        }
        Ok(revived)
    }
}

/// Ids of dead letters, and the keys in whose queues they stand.
fn dead_of(rows: &[PgRow]) -> Result<(Vec<String>, BTreeSet<String>), sqlx::Error> {
    let mut dead = (Vec::new(), BTreeSet::new());
    for row in rows {
        dead.0.push(row.try_get(0)?);
        dead.1.extend(row.try_get::<Option<String>, _>(1)?);
    }
    Ok(dead)
}

fn letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    let (state, more) = (rows::COLUMNS, rows::COLUMNS + 5);
    let message = rows::recorded(row, 0)?;
    let held_by: String = row.try_get(more + 7)?;
    let (of, held_at) = (state_of(row.try_get(state + 1)?), row.try_get(more + 6)?);
    let mut letter = DeadLetter::new(row.try_get::<String, _>(more)?, message, of, held_at, held_by);
    letter.queued = row.try_get(state)?;
    letter.attempts = row.try_get::<i32, _>(state + 2)?.unsigned_abs();
    letter.due_at = row.try_get(more + 1)?;
    letter.error = row.try_get(more + 2)?;
    letter.fingerprint = row.try_get(more + 3)?;
    letter.first_failed_at = row.try_get(more + 4)?;
    letter.last_failed_at = row.try_get(more + 5)?;
    letter.redrives = row.try_get::<i32, _>(state + 4)?.unsigned_abs();
    Ok(letter)
}
