//! Who may move which cursor. One writer at a time makes every transaction here a lock on all of it.

use crate::{
    Sqlite,
    error::failed,
    log::{horizon, position_at},
    readers::{forget_leftovers, has_leftovers},
    rows::{array, bound, now, span},
};
use eventloom_core::{
    ConsumerName, Epoch, Lane, OffsetDateTime, OwnerId, Position, StoreError, faults,
    ports::{Cursor, FenceError, Leases, Move, RegisterError, Registration, Start, Taken, Tenure},
};
use serde_json::json;
use sqlx::SqliteConnection;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

const PRUNED_TO: &str = "SELECT pruned_to FROM eventloom_logs WHERE name = 'outbox'";
const LATEST: &str = concat!("SELECT ", horizon!());
const REGISTER: &str = concat!(
    "INSERT INTO eventloom_readers (name, log, created_at) VALUES (?1, 'outbox', ",
    now!("?2"),
    ") ON CONFLICT DO NOTHING"
);
const ADD_CURSORS: &str = "INSERT INTO eventloom_cursors (reader, lane, position, batch_end) \
                           SELECT ?1, value, ?2, ?2 FROM json_each(?3) WHERE true ON CONFLICT DO NOTHING";
const SLOWEST: &str = "SELECT min(position) FROM eventloom_cursors WHERE reader = ?1";
const PAUSED: &str = "SELECT paused FROM eventloom_readers WHERE name = ?1";
const EXPIRE: &str = concat!(
    "DELETE FROM eventloom_members WHERE reader = ?1 AND owner <> ?2 AND lease_until <= ",
    now!("?3")
);
const RENEW: &str = concat!(
    "UPDATE eventloom_members SET lease_until = ",
    now!("?3"),
    " + ?4 WHERE reader = ?1 AND owner = ?2 AND lease_until > ",
    now!("?3")
);
const JOIN: &str = concat!(
    "INSERT INTO eventloom_members (reader, owner, lease_until) VALUES (?1, ?2, ",
    now!("?3"),
    " + ?4) ON CONFLICT (reader, owner) DO UPDATE SET lease_until = excluded.lease_until"
);
/// What an owner had before its lease lapsed is as free as anything else.
const LAPSE: &str = "UPDATE eventloom_cursors SET owner = NULL WHERE reader = ?1 AND owner = ?2";
const MEMBERS: &str = "SELECT count(*) FROM eventloom_members WHERE reader = ?1";
const CURSORS: &str = "SELECT c.lane, c.epoch, c.owner, c.owner IS NULL OR m.owner IS NULL \
                       FROM eventloom_cursors c LEFT JOIN eventloom_members m ON m.reader = c.reader AND m.owner = c.owner \
                       WHERE c.reader = ?1 ORDER BY c.lane";
const TAKE: &str = "UPDATE eventloom_cursors SET owner = ?2, epoch = epoch + ?4 \
                    WHERE reader = ?1 AND lane IN (SELECT value FROM json_each(?3)) \
                    RETURNING lane, epoch, position, batch_end";
const HOLDS: &str = "SELECT value FROM json_each(?2) \
                     WHERE EXISTS (SELECT 1 FROM eventloom_held WHERE consumer = ?1 AND lane = value) \
                        OR EXISTS (SELECT 1 FROM eventloom_held_keys WHERE consumer = ?1 AND lane = value)";
/// The reader stands in each row: with `reader = ?` the planner goes through all of its cursors instead of the rows asked for.
const RELEASE: &str = "UPDATE eventloom_cursors SET owner = NULL FROM json_each(?2) AS j \
                       WHERE reader = (j.value ->> 0) AND lane = (j.value ->> 1) AND epoch = (j.value ->> 2) AND owner = ?1";
const LEAVE: &str = "DELETE FROM eventloom_members WHERE reader = ?1 AND owner = ?2";
const ADVANCE: &str = "UPDATE eventloom_cursors \
                       SET position = (j.value ->> 4), batch_end = max(batch_end, coalesce(j.value ->> 5, 0)), \
                           confirmed = coalesce(j.value ->> 6, confirmed) \
                       FROM json_each(?1) AS j \
                       WHERE reader = (j.value ->> 0) AND lane = (j.value ->> 1) \
                         AND (?2 OR (epoch = (j.value ->> 2) AND position = (j.value ->> 3)))";
const MARK: &str = "UPDATE eventloom_cursors SET batch_end = max(batch_end, (j.value ->> 3)) FROM json_each(?1) AS j \
                    WHERE reader = (j.value ->> 0) AND lane = (j.value ->> 1) AND (?2 OR epoch = (j.value ->> 2))";
/// No lock is asked for: the transaction is the only one that writes.
const FENCE: &str = "SELECT count(*) FROM json_each(?1) AS j CROSS JOIN eventloom_cursors c \
                     WHERE c.reader = (j.value ->> 0) AND c.lane = (j.value ->> 1) \
                       AND (?2 OR c.epoch = (j.value ->> 2))";

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("leases.take", TAKE),
    ("leases.holds", HOLDS),
    ("leases.release", RELEASE),
    ("leases.advance", ADVANCE),
    ("leases.mark", MARK),
    ("leases.fence", FENCE),
];

impl Leases for Sqlite {
    async fn register(
        &self,
        reader: &ConsumerName,
        start: Start,
        now: Option<OffsetDateTime>,
    ) -> Result<Registration, RegisterError> {
        let registering = failed("registering a reader");
        let (mut tx, created) = loop {
            // What a drop that was cut short has left behind must not be taken for this reader's.
            forget_leftovers(self, reader).await?;
            let mut tx = self.begin_write().await?;
            // Asked again: somebody may have registered and dropped the name meanwhile.
            if has_leftovers(&mut tx, reader.as_str()).await.map_err(registering)? {
                tx.rollback().await?;
                continue;
            }
            let add = sqlx::query(REGISTER).bind(reader.as_str()).bind(bound(now));
            let added = add.execute(&mut *tx).await.map_err(registering)?;
            break (tx, added.rows_affected() == 1);
        };
        let pruned_to = sqlx::query_scalar(PRUNED_TO)
            .fetch_one(&mut *tx)
            .await
            .map_err(registering)?;
        let pruned_to = Position(pruned_to);
        let slowest: Option<i64> = sqlx::query_scalar(SLOWEST)
            .bind(reader.as_str())
            .fetch_one(&mut *tx)
            .await
            .map_err(registering)?;
        let begins_after = match slowest {
            // Lanes that it lacks begin where its slowest stands: nothing is passed over, the inbox knows the rest.
            Some(slowest) if !created => Position(slowest),
            _ => place_of(&mut tx, start, pruned_to).await?,
        };
        sqlx::query(ADD_CURSORS)
            .bind(reader.as_str())
            .bind(begins_after.0)
            .bind(array(self.0.lanes.all().map(|lane| lane.0)))
            .execute(&mut *tx)
            .await
            .map_err(registering)?;
        tx.commit().await?;
        Ok(Registration::new(created, begins_after, pruned_to))
    }

    async fn keep(
        &self,
        reader: &ConsumerName,
        owner: &OwnerId,
        lease: Duration,
        held: &[Cursor],
        now: Option<OffsetDateTime>,
    ) -> Result<Tenure, StoreError> {
        faults::point("lease.before_keep");
        let asked = Instant::now();
        let mut tx = self.begin_write().await?;
        let waited = asked.elapsed();
        let asked = Asked {
            reader: reader.as_str(),
            owner: owner.as_str(),
            lease,
            held,
            now,
        };
        let mut tenure = keep(&mut tx, asked).await.map_err(failed("keeping a lease"))?;
        tenure.waited = waited;
        if tenure.dropped {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
        faults::point("lease.after_keep");
        Ok(tenure)
    }

    async fn release(
        &self,
        reader: &ConsumerName,
        owner: &OwnerId,
        lanes: &[Cursor],
        leaving: bool,
    ) -> Result<(), StoreError> {
        let releasing = failed("handing lanes over");
        faults::point("lease.before_release");
        let mut tx = self.begin_write().await?;
        let release = sqlx::query(RELEASE).bind(owner.as_str()).bind(cursors(reader, lanes));
        release.execute(&mut *tx).await.map_err(releasing)?;
        if leaving {
            let leave = sqlx::query(LEAVE).bind(reader.as_str()).bind(owner.as_str());
            leave.execute(&mut *tx).await.map_err(releasing)?;
        }
        tx.commit().await
    }

    async fn advance(
        &self,
        connection: &mut SqliteConnection,
        reader: &ConsumerName,
        moves: &[Move],
    ) -> Result<(), FenceError> {
        let rows = moves.iter().map(|step| {
            let Cursor { lane, epoch } = step.cursor;
            json!([
                reader.as_str(),
                lane.0,
                epoch.0,
                step.from.0,
                step.to.0,
                step.batch_end.map(|end| end.0),
                step.confirmed.map(|confirmed| confirmed.0)
            ])
        });
        let advance = sqlx::query(ADVANCE).bind(array(rows)).bind(unfenced());
        let moved = advance.execute(connection).await.map_err(failed("advancing cursors"))?;
        all(moved.rows_affected(), moves.len())
    }

    async fn mark(
        &self,
        connection: &mut SqliteConnection,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
    ) -> Result<(), FenceError> {
        let rows = marks
            .iter()
            .map(|(cursor, end)| json!([reader.as_str(), cursor.lane.0, cursor.epoch.0, end.0]));
        let mark = sqlx::query(MARK).bind(array(rows)).bind(unfenced());
        let marked = mark
            .execute(connection)
            .await
            .map_err(failed("recording the end of a batch"))?;
        all(marked.rows_affected(), marks.len())
    }

    async fn mark_alone(
        &self,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
        _flushed: bool,
    ) -> Result<(), FenceError> {
        let mut tx = self.begin_write().await?;
        self.mark(&mut tx, reader, marks).await?;
        Ok(tx.commit().await?)
    }

    async fn fence(
        &self,
        connection: &mut SqliteConnection,
        reader: &ConsumerName,
        owned: &[Cursor],
    ) -> Result<(), FenceError> {
        let fence = sqlx::query_scalar(FENCE).bind(cursors(reader, owned)).bind(unfenced());
        let found: i64 = fence
            .fetch_one(connection)
            .await
            .map_err(failed("checking the fence"))?;
        all(found.unsigned_abs(), owned.len())
    }
}

/// Where a reader begins that is registered now, or goes on that is reset now.
pub(crate) async fn place_of(
    connection: &mut SqliteConnection,
    start: Start,
    pruned_to: Position,
) -> Result<Position, RegisterError> {
    let looking = failed("looking for the place to begin");
    match start {
        Start::Earliest => Ok(pruned_to),
        Start::Latest => {
            let latest = sqlx::query_scalar(LATEST)
                .fetch_one(connection)
                .await
                .map_err(looking)?;
            Ok(Position(latest))
        }
        Start::After(asked) if asked < pruned_to => Err(RegisterError::Pruned { asked, pruned_to }),
        Start::After(asked) => Ok(asked),
        Start::Since(time) => Ok(position_at(connection, time).await.map_err(looking)?),
    }
}

struct Asked<'a> {
    reader: &'a str,
    owner: &'a str,
    lease: Duration,
    held: &'a [Cursor],
    now: Option<OffsetDateTime>,
}

struct CursorRow {
    lane: i16,
    epoch: i64,
    owner: Option<String>,
    free: bool,
}

async fn keep(connection: &mut SqliteConnection, asked: Asked<'_>) -> Result<Tenure, sqlx::Error> {
    let Asked {
        reader,
        owner,
        lease,
        held,
        now,
    } = asked;
    let (now, lease) = (bound(now), span(lease));
    let paused: Option<bool> = sqlx::query_scalar(PAUSED)
        .bind(reader)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(paused) = paused else {
        return Ok(Tenure {
            dropped: true,
            ..Tenure::default()
        });
    };
    sqlx::query(EXPIRE)
        .bind(reader)
        .bind(owner)
        .bind(now)
        .execute(&mut *connection)
        .await?;
    let renew = |sql| sqlx::query(sql).bind(reader).bind(owner).bind(now).bind(lease);
    let unchecked = faults::defect("lease_renewed_without_epoch");
    let renewed = renew(RENEW).execute(&mut *connection).await?.rows_affected() == 1;
    if !renewed {
        renew(JOIN).execute(&mut *connection).await?;
        if !unchecked {
            sqlx::query(LAPSE)
                .bind(reader)
                .bind(owner)
                .execute(&mut *connection)
                .await?;
        }
    }
    let members: i64 = sqlx::query_scalar(MEMBERS)
        .bind(reader)
        .fetch_one(&mut *connection)
        .await?;
    let members = usize::try_from(members).unwrap_or(1).max(1);
    let cursors: Vec<(i16, i64, Option<String>, bool)> =
        sqlx::query_as(CURSORS).bind(reader).fetch_all(&mut *connection).await?;
    let cursors = cursors.into_iter().map(|(lane, epoch, owner, free)| CursorRow {
        lane,
        epoch,
        owner,
        free,
    });
    let cursors: Vec<CursorRow> = cursors.collect();
    let share = cursors.len().div_ceil(members);

    let believed: HashMap<i16, i64> = held.iter().map(|cursor| (cursor.lane.0, cursor.epoch.0)).collect();
    let mine = |row: &&CursorRow| row.owner.as_deref() == Some(owner);
    let (kept, unknown): (Vec<_>, Vec<_>) = cursors
        .iter()
        .filter(mine)
        .partition(|row| believed.get(&row.lane) == Some(&row.epoch));
    let wanted = share.saturating_sub(kept.len() + unknown.len());
    let free = cursors.iter().filter(|row| row.free).take(wanted);
    let to_take: Vec<&CursorRow> = unknown.into_iter().chain(free).collect();

    let taken = take(connection, reader, owner, &to_take).await?;
    let mut owned: Vec<Cursor> = kept
        .iter()
        .map(|row| Cursor {
            lane: Lane(row.lane),
            epoch: Epoch(row.epoch),
        })
        .collect();
    owned.extend(taken.iter().map(|taken| taken.cursor));
    owned.sort();
    Ok(Tenure {
        owned,
        taken,
        share,
        members,
        paused,
        ..Tenure::default()
    })
}

async fn take(
    connection: &mut SqliteConnection,
    reader: &str,
    owner: &str,
    rows: &[&CursorRow],
) -> Result<Vec<Taken>, sqlx::Error> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let lanes = array(rows.iter().map(|row| row.lane));
    let bump = i64::from(!faults::defect("take_without_bump"));
    let take = sqlx::query_as(TAKE).bind(reader).bind(owner).bind(&lanes).bind(bump);
    let taken: Vec<(i16, i64, i64, i64)> = take.fetch_all(&mut *connection).await?;
    // After the epoch was raised: what a former owner still sets aside from here on is rolled back by its fence.
    let holding: Vec<i16> = sqlx::query_scalar(HOLDS)
        .bind(reader)
        .bind(&lanes)
        .fetch_all(&mut *connection)
        .await?;
    let former = |lane: i16| {
        let former = rows
            .iter()
            .find(|row| row.lane == lane)
            .and_then(|row| row.owner.clone());
        former.filter(|former| former != owner)
    };
    let taken = taken.into_iter().map(|(lane, epoch, position, batch_end)| Taken {
        cursor: Cursor {
            lane: Lane(lane),
            epoch: Epoch(epoch),
        },
        position: Position(position),
        batch_end: Position(batch_end),
        holds: holding.contains(&lane),
        former: former(lane),
    });
    let mut taken: Vec<Taken> = taken.collect();
    taken.sort_by_key(|taken| taken.cursor);
    Ok(taken)
}

fn cursors(reader: &ConsumerName, cursors: &[Cursor]) -> String {
    array(
        cursors
            .iter()
            .map(|cursor| json!([reader.as_str(), cursor.lane.0, cursor.epoch.0])),
    )
}

fn unfenced() -> bool {
    faults::defect("no_epoch_check")
}

fn all(found: u64, asked: usize) -> Result<(), FenceError> {
    if found == asked as u64 {
        Ok(())
    } else {
        Err(FenceError::Fenced)
    }
}
