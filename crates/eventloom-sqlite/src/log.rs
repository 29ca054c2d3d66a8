//! Reading the log. Order of commits is order of positions, so one snapshot answers everything.

use crate::{
    Sqlite,
    error::failed,
    prune,
    rows::{MESSAGE_COLUMNS, array, message_columns, micros, optional_text, recorded_of_log},
};
use eventloom_core::{
    Lane, OffsetDateTime, Payload, Position, Recorded, StoreError, StoreErrorKind, Uuid,
    ports::{Horizon, Log, LogStatus, Page, Pruned, ReadError, ReadLimits},
};
use futures::TryStreamExt;
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};
use std::time::Duration;

/// The last position that was committed, also when its row is pruned.
macro_rules! horizon {
    () => {
        "max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'eventloom_outbox'), 0), \
         coalesce((SELECT max(position) FROM eventloom_outbox), 0))"
    };
}
pub(crate) use horizon;

/// A payload column, where the payload is no larger than `?3`.
macro_rules! whole {
    ($column:literal) => {
        concat!(
            "iif(coalesce(octet_length(o.data), length(o.data_bytes), 0) <= ?3, ",
            $column,
            ", NULL)"
        )
    };
}
/// The size of a payload that is larger.
macro_rules! omitted {
    () => {
        "nullif(max(coalesce(octet_length(o.data), length(o.data_bytes), 0), ?3), ?3)"
    };
}

/// Everything in one snapshot: what was pruned, the horizon, and the rows. One row without a message where there is none.
const PAGE: &str = concat!(
    "SELECT ",
    message_columns!("o", "source", whole!("o.data"), whole!("o.data_bytes")),
    ", l.pruned_to, ",
    horizon!(),
    ", ",
    omitted!(),
    " FROM eventloom_logs l LEFT JOIN eventloom_outbox o ON o.position > ?1 WHERE l.name = 'outbox' \
     ORDER BY o.position LIMIT ?2"
);
const HORIZON: &str = concat!("SELECT ", horizon!());
const PRUNED_TO: &str = "SELECT pruned_to FROM eventloom_logs WHERE name = 'outbox'";
/// What a lane is computed from, and how large the payload is. A key without bytes is none, whether it is text or a BLOB.
const KEYS: &str = "SELECT position, iif(octet_length(key) > 0, key, id), coalesce(octet_length(data), length(data_bytes), 0) \
                    FROM eventloom_outbox WHERE position > ?1 AND position <= ?2 ORDER BY position LIMIT ?3";
const ROWS: &str = concat!(
    "SELECT ",
    message_columns!("o", "source", whole!("o.data"), whole!("o.data_bytes")),
    ", ",
    omitted!(),
    " FROM eventloom_outbox o WHERE o.position IN (SELECT value FROM json_each(?1)) ORDER BY o.position"
);
const NEXT_TIME: &str =
    "SELECT position, recorded_at FROM eventloom_outbox WHERE position >= ?1 ORDER BY position LIMIT 1";
const STATUS: &str = concat!(
    "SELECT identity, pruned_to, ",
    horizon!(),
    " FROM eventloom_logs WHERE name = 'outbox'"
);

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("log.page", PAGE),
    ("log.horizon", HORIZON),
    ("log.keys", KEYS),
    ("log.rows", ROWS),
    ("log.next_time", NEXT_TIME),
    ("log.status", STATUS),
];

/// Keys that one statement of [`Log::read_lane`] looks at.
const KEYS_AT_ONCE: u32 = 4096;
/// Keys that one call of [`Log::read_lane`] looks at, at most: a lane is one of many, and a call must end.
const KEYS_MAX: usize = 65_536;

impl Log for Sqlite {
    async fn read_after(&self, after: Position, limits: ReadLimits) -> Result<Page, ReadError> {
        let reading = failed("reading the log");
        let mut rows = sqlx::query(PAGE)
            .bind(after.0)
            .bind(limits.rows_max)
            .bind(each_of(limits))
            .fetch(&self.0.pool);
        let mut page = Page::default();
        let (mut pruned_to, mut payload_bytes, mut full) = (0, 0, false);
        while !full && let Some(row) = rows.try_next().await.map_err(reading)? {
            pruned_to = row.try_get_unchecked(MESSAGE_COLUMNS).map_err(reading)?;
            page.horizon = Position(row.try_get_unchecked(MESSAGE_COLUMNS + 1).map_err(reading)?);
            if row.try_get_unchecked::<Option<i64>, _>(0).map_err(reading)?.is_none() {
                break;
            }
            let recorded = self.recorded(&row, MESSAGE_COLUMNS + 2).map_err(reading)?;
            payload_bytes += payload_len(&recorded);
            page.rows.push(recorded);
            full = payload_bytes >= limits.payload_bytes_max || page.rows.len() >= limits.rows_max as usize;
        }
        if after.0 < pruned_to {
            return Err(ReadError::Pruned {
                after,
                pruned_to: Position(pruned_to),
            });
        }
        page.scanned_to = match page.rows.last() {
            Some(last) if full => last.position,
            _ => page.horizon.max(after),
        };
        Ok(page)
    }

    async fn read_lane(
        &self,
        lane: Lane,
        after: Position,
        up_to: Position,
        limits: ReadLimits,
    ) -> Result<Page, ReadError> {
        let reading = failed("reading a lane of the log");
        let mut connection = self.0.pool.acquire().await.map_err(reading)?;
        let wanted = self
            .positions_of_lane(&mut connection, lane, after, up_to, limits)
            .await
            .map_err(reading)?;
        let mut rows = Vec::with_capacity(wanted.positions.len());
        if !wanted.positions.is_empty() {
            let found = sqlx::query(ROWS)
                .bind(array(wanted.positions))
                .bind(None::<i64>)
                .bind(each_of(limits))
                .fetch_all(&mut *connection)
                .await;
            for row in found.map_err(reading)? {
                rows.push(self.recorded(&row, MESSAGE_COLUMNS).map_err(reading)?);
            }
        }
        // Last, so that what was pruned between the statements is not taken for never written.
        let pruned_to = sqlx::query_scalar(PRUNED_TO)
            .fetch_one(&mut *connection)
            .await
            .map_err(reading)?;
        if after.0 < pruned_to {
            return Err(ReadError::Pruned {
                after,
                pruned_to: Position(pruned_to),
            });
        }
        Ok(Page {
            rows,
            scanned_to: wanted.scanned_to,
            horizon: up_to,
        })
    }

    async fn horizon(&self) -> Result<Horizon, ReadError> {
        let position = sqlx::query_scalar(HORIZON)
            .fetch_one(&self.0.pool)
            .await
            .map_err(failed("reading the horizon"))?;
        Ok(Horizon {
            position: Position(position),
            handed_out: Position(position),
        })
    }

    async fn doze(&self, seen: Position, at_most: Duration) -> Result<(), ReadError> {
        let look = || async move { Ok(self.horizon().await?.position > seen) };
        self.0.wake.doze(at_most, look).await
    }

    async fn prune(&self, keep: Duration, rows_max: u32, now: Option<OffsetDateTime>) -> Result<Pruned, StoreError> {
        prune::prune(self, keep, rows_max, now).await
    }

    async fn log_status(&self) -> Result<LogStatus, StoreError> {
        let asking = failed("asking for the state of the log");
        let row = sqlx::query(STATUS).fetch_one(&self.0.pool).await.map_err(asking)?;
        let identity = optional_text(&row, 0).map_err(asking)?.unwrap_or_default();
        let identity = Uuid::parse_str(&identity)
            .map_err(|error| StoreError::new(StoreErrorKind::Other, "reading the identity of the log", error))?;
        let horizon = Position(row.try_get(2).map_err(asking)?);
        let pruned_to = Position(row.try_get(1).map_err(asking)?);
        Ok(LogStatus::new(identity, horizon, pruned_to))
    }

    async fn position_at(&self, time: OffsetDateTime) -> Result<Position, StoreError> {
        let looking = failed("looking for a time in the log");
        let mut connection = self.0.pool.acquire().await.map_err(looking)?;
        position_at(&mut connection, time).await.map_err(looking)
    }
}

fn payload_len(recorded: &Recorded) -> u64 {
    recorded
        .envelope
        .payload
        .as_ref()
        .map(Payload::bytes)
        .map_or(0, |bytes| bytes.len() as u64)
}

/// The position before the first row inserted at or after `time`: a binary search, since rows are in the order of their
/// insert times but for what the clock was set back.
pub(crate) async fn position_at(
    connection: &mut SqliteConnection,
    time: OffsetDateTime,
) -> Result<Position, sqlx::Error> {
    let time = micros(time);
    let pruned_to: i64 = sqlx::query_scalar(PRUNED_TO).fetch_one(&mut *connection).await?;
    let horizon: i64 = sqlx::query_scalar(HORIZON).fetch_one(&mut *connection).await?;
    // Rows at or below `before` are older; rows above `until` are not.
    let (mut before, mut until) = (pruned_to, horizon.max(pruned_to));
    while before < until {
        let middle = before + (until - before) / 2;
        let next: Option<(i64, i64)> = sqlx::query_as(NEXT_TIME)
            .bind(middle + 1)
            .fetch_optional(&mut *connection)
            .await?;
        match next {
            Some((position, recorded_at)) if recorded_at < time => before = position.min(until),
            // From the middle to that row there is nothing.
            _ => until = middle,
        }
    }
    Ok(Position(before))
}

struct Wanted {
    positions: Vec<i64>,
    scanned_to: Position,
}

/// The most payload bytes of one row.
fn each_of(limits: ReadLimits) -> i64 {
    let most = limits.payload_each_max.unwrap_or(u64::MAX);
    i64::try_from(most).unwrap_or(i64::MAX)
}

impl Sqlite {
    /// A row of the log, with the size of what was left out of it in a column of its own.
    fn recorded(&self, row: &SqliteRow, omitted: usize) -> Result<Recorded, sqlx::Error> {
        let recorded = recorded_of_log(row, 0, self.0.lanes)?;
        let omitted: Option<i64> = row.try_get_unchecked(omitted)?;
        Ok(Recorded {
            omitted: omitted.map(i64::unsigned_abs),
            ..recorded
        })
    }

    async fn positions_of_lane(
        &self,
        connection: &mut SqliteConnection,
        lane: Lane,
        after: Position,
        up_to: Position,
        limits: ReadLimits,
    ) -> Result<Wanted, sqlx::Error> {
        let mut wanted = Wanted {
            positions: Vec::new(),
            scanned_to: after,
        };
        let (mut scanned, mut payload_bytes) = (0, 0);
        while wanted.scanned_to < up_to && scanned < KEYS_MAX {
            let keys = sqlx::query(KEYS)
                .bind(wanted.scanned_to.0)
                .bind(up_to.0)
                .bind(KEYS_AT_ONCE);
            let keys = keys.fetch_all(&mut *connection).await?;
            for row in &keys {
                let position: i64 = row.try_get_unchecked(0)?;
                wanted.scanned_to = Position(position);
                let key = optional_text(row, 1)?.unwrap_or_default();
                if self.0.lanes.lane_of(&key) != lane {
                    continue;
                }
                wanted.positions.push(position);
                payload_bytes += row.try_get_unchecked::<i64, _>(2)?.unsigned_abs();
                if payload_bytes >= limits.payload_bytes_max || wanted.positions.len() >= limits.rows_max as usize {
                    return Ok(wanted);
                }
            }
            scanned += keys.len();
            if keys.len() < KEYS_AT_ONCE as usize {
                wanted.scanned_to = up_to.max(after);
            }
        }
        Ok(wanted)
    }
}
