//! Reading the log: the horizon first, the rows with a later snapshot, and never a gap in between.

use crate::{error::while_doing, rows, store::Postgres};
use eventloom_core::{
    Lane, OffsetDateTime, Position, Recorded, StoreError, faults,
    ports::{Blocker, Horizon, Log, LogStatus, Page, Pruned, ReadError, ReadLimits},
};
use futures::{Stream, TryStreamExt};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::time::Duration;

const HORIZON: &str = "SELECT horizon, handed_out FROM eventloom.outbox_horizon()";
/// The same along with BEGIN, kept for the statement that reads the rows: that one has a later snapshot.
const READ_UP_TO: &str =
    "SELECT set_config('eventloom_store.read_up_to', horizon::text, true) FROM eventloom.outbox_horizon()";
const READ_UP_TO_HANDED_OUT: &str =
    "SELECT set_config('eventloom_store.read_up_to', handed_out::text, true) FROM eventloom.outbox_horizon()";

/// How large a payload is. One that is stored plainly has the size of its column; only a compressed one must be unpacked to be
/// measured. (`octet_length` of a bytea never unpacks.)
macro_rules! payload_bytes {
    () => {
        "CASE WHEN o.data IS NULL THEN coalesce(octet_length(o.data_bytes), 0)
              WHEN pg_column_compression(o.data) IS NULL THEN pg_column_size(o.data)
              ELSE octet_length(o.data::text) END::bigint"
    };
}

/// The rows of a page, beside up to where the log was pruned in the same snapshot. Without rows there is one row of NULLs.
///
/// First all of the page is measured. Mostly it is small enough and no payload is to be left out, and then nothing more is
/// computed; only a page that is too large has its sizes added up row by row, to be cut with the row that reaches the limit.
/// What is left out weighs nothing. The inner LIMITs keep index range scans whatever the statistics say.
macro_rules! page {
    ($where:literal, $until:literal, $order:literal, $up_to:literal) => {
        concat!(
            "
SELECT l.pruned_to, ",
            $up_to,
            " AS up_to, e.until IS NOT NULL AS reached,
       p.position, p.lane, p.id, p.topic, p.type, p.key, p.source, p.subject, p.time, p.data, p.data_bytes,
       p.datacontenttype, p.dataschema, p.schemaversion, p.correlationid, p.causationid, p.traceparent, p.tracestate,
       p.headers, p.origin, p.omitted
  FROM eventloom.logs l
 CROSS JOIN LATERAL (
       SELECT m.largest > $4 AS omits,
              CASE WHEN m.bytes >= $1 THEN
                   (SELECT max(c.position)
                      FROM (SELECT w.position, w.bytes, sum(w.bytes) OVER (ORDER BY w.position) AS running
                              FROM (SELECT o.position, CASE WHEN s.bytes <= $4 THEN s.bytes ELSE 0 END AS bytes
                                      FROM eventloom.outbox o
                                     CROSS JOIN LATERAL (SELECT ",
            payload_bytes!(),
            " AS bytes OFFSET 0) s
                                     WHERE ",
            $where,
            " AND ",
            $until,
            " ORDER BY ",
            $order,
            " LIMIT $2) w) c
                     WHERE c.running - c.bytes < $1) END AS until
         FROM (SELECT sum(r.bytes) AS bytes, max(r.bytes) AS largest
                 FROM (SELECT ",
            payload_bytes!(),
            " AS bytes FROM eventloom.outbox o WHERE ",
            $where,
            " AND ",
            $until,
            " ORDER BY ",
            $order,
            " LIMIT $2) r) m) e
  LEFT JOIN LATERAL (
       SELECT o.position, o.lane, o.id::text, o.topic, o.type, o.key, o.source, o.subject, o.time,
              CASE WHEN e.omits IS NOT TRUE OR ",
            payload_bytes!(),
            " <= $4 THEN o.data END AS data,
              CASE WHEN e.omits IS NOT TRUE OR ",
            payload_bytes!(),
            " <= $4 THEN o.data_bytes END AS data_bytes,
              o.datacontenttype, o.dataschema, o.schemaversion, o.correlationid, o.causationid, o.traceparent, o.tracestate,
              o.headers, o.origin,
              CASE WHEN e.omits THEN nullif(greatest(",
            payload_bytes!(),
            ", $4), $4) END AS omitted
         FROM eventloom.outbox o
        WHERE ",
            $where,
            " AND ",
            $until,
            " AND o.position <= coalesce(e.until, 9223372036854775807)
        ORDER BY ",
            $order,
            " LIMIT $2) p ON true
 WHERE l.name = 'outbox'"
        )
    };
}

const READ_AFTER: &str = page!(
    "o.position > $3",
    "o.position <= (SELECT current_setting('eventloom_store.read_up_to')::bigint)",
    "o.position",
    "(SELECT current_setting('eventloom_store.read_up_to')::bigint)"
);
/// Compared as pairs: with `lane = $5` the planner may find it cheaper to read the whole log in order and to throw the
/// other lanes away.
const READ_LANE: &str = page!(
    "(o.lane, o.position) > ($5, $3)",
    "(o.lane, o.position) <= ($5, $6)",
    "o.lane, o.position",
    "$6::bigint"
);

/// Where the columns of a row begin in a page.
const ROW: usize = 3;

const STATUS: &str = "SELECT l.identity, l.pruned_to, h.horizon, h.handed_out, l.namespace
  FROM eventloom.outbox_horizon() h, eventloom.logs l WHERE l.name = 'outbox'";

/// The holder of the lowest mark. A prepared transaction has no backend; another lock of it names its transaction id.
const BLOCKER: &str = "
SELECT l.pid, coalesce(a.application_name, 'prepared transaction ' || x.gid, ''),
       greatest(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared)) * 1000000, 0)::bigint,
       left(coalesce(a.query, ''), 200)
  FROM pg_catalog.pg_locks l
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_catalog.pg_locks t ON l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid'
        AND t.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = t.transactionid
 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint >> 16) = $1 AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
 ORDER BY ((l.classid::bigint << 32) | l.objid::bigint) LIMIT 1";

impl Log for Postgres {
    async fn read_after(&self, after: Position, limits: ReadLimits) -> Result<Page, ReadError> {
        let up_to = match faults::defect("horizon_ignored") {
            true => READ_UP_TO_HANDED_OUT,
            false => READ_UP_TO,
        };
        let mut tx = self.own_and(up_to, "reading the log").await?;
        let query = self.query(READ_AFTER).bind(bytes_of(limits)).bind(rows_of(limits));
        let query = query.bind(after.0).bind(each_of(limits));
        page(after, limits, query.fetch(&mut *tx)).await.map_err(told)
    }

    async fn read_lane(
        &self,
        lane: Lane,
        after: Position,
        up_to: Position,
        limits: ReadLimits,
    ) -> Result<Page, ReadError> {
        let mut tx = self.own("reading a lane of the log").await?;
        let query = self.query(READ_LANE).bind(bytes_of(limits)).bind(rows_of(limits));
        let query = query.bind(after.0).bind(each_of(limits)).bind(lane.0).bind(up_to.0);
        page(after, limits, query.fetch(&mut *tx)).await.map_err(told)
    }

    async fn horizon(&self) -> Result<Horizon, ReadError> {
        let mut tx = self.own("reading the horizon").await?;
        Ok(self.horizon_on(&mut tx).await?)
    }

    async fn doze(&self, seen: Position, at_most: Duration) -> Result<(), ReadError> {
        self.wake().doze(self, seen, at_most).await
    }

    async fn prune(&self, keep: Duration, rows_max: u32, now: Option<OffsetDateTime>) -> Result<Pruned, StoreError> {
        self.prune_batch(keep, rows_max, now).await
    }

    async fn log_status(&self) -> Result<LogStatus, StoreError> {
        let doing = while_doing("looking at the log");
        let mut tx = self.own("looking at the log").await?;
        let row = self.query(STATUS).fetch_one(&mut *tx).await.map_err(&doing)?;
        let namespace: i32 = row.try_get(4).map_err(&doing)?;
        let blocker = self
            .query(BLOCKER)
            .bind(i64::from(namespace))
            .fetch_optional(&mut *tx)
            .await
            .map_err(&doing)?;
        let status = |row: &PgRow| {
            let held_by = blocker.as_ref().map(held_by).transpose()?;
            let (head, pruned_to) = (Position(row.try_get(3)?), Position(row.try_get(1)?));
            let mut status = LogStatus::new(row.try_get(0)?, head, pruned_to);
            status.horizon = Position(row.try_get(2)?);
            status.held_by = held_by;
            Ok(status)
        };
        status(&row).map_err(doing)
    }

    async fn position_at(&self, time: OffsetDateTime) -> Result<Position, StoreError> {
        let mut tx = self.own("looking for a time in the log").await?;
        self.position_at_on(&mut tx, time).await
    }
}

impl Postgres {
    pub(crate) async fn horizon_on(&self, connection: &mut PgConnection) -> Result<Horizon, StoreError> {
        let doing = while_doing("reading the horizon");
        let row = self.query(HORIZON).fetch_one(connection).await.map_err(&doing)?;
        let (position, handed_out) = (row.try_get(0).map_err(&doing)?, row.try_get(1).map_err(&doing)?);
        Ok(Horizon {
            position: Position(position),
            handed_out: Position(handed_out),
        })
    }

    pub(crate) async fn position_at_on(
        &self,
        connection: &mut PgConnection,
        time: OffsetDateTime,
    ) -> Result<Position, StoreError> {
        let doing = while_doing("looking for a time in the log");
        let query = self.query("SELECT eventloom.outbox_position_at($1)").bind(time);
        let row = query.fetch_one(connection).await.map_err(&doing)?;
        row.try_get(0).map(Position).map_err(doing)
    }
}

fn held_by(row: &PgRow) -> Result<Blocker, sqlx::Error> {
    let open_for: Option<i64> = row.try_get(2)?;
    let open_for = Duration::from_micros(open_for.unwrap_or_default().unsigned_abs());
    let mut blocker = Blocker::new(row.try_get::<String, _>(1)?, open_for);
    blocker.pid = row.try_get(0)?;
    blocker.query = row.try_get(3)?;
    Ok(blocker)
}

/// At least one row is always read: a page without rows says that there are none.
fn rows_of(limits: ReadLimits) -> i64 {
    i64::from(limits.rows_max).max(1)
}

fn bytes_of(limits: ReadLimits) -> i64 {
    i64::try_from(limits.payload_bytes_max).unwrap_or(i64::MAX).max(1)
}

fn each_of(limits: ReadLimits) -> i64 {
    let most = limits.payload_each_max.unwrap_or(u64::MAX);
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// Why a page could not be read.
enum Unread {
    Driver(sqlx::Error),
    Pruned(ReadError),
}

impl From<sqlx::Error> for Unread {
    fn from(error: sqlx::Error) -> Self {
        Unread::Driver(error)
    }
}

fn told(unread: Unread) -> ReadError {
    match unread {
        Unread::Driver(error) => while_doing("reading the log")(error).into(),
        Unread::Pruned(error) => error,
    }
}

/// Decodes rows as they come, while the server makes the next ones.
async fn page(
    after: Position,
    limits: ReadLimits,
    mut rows: impl Stream<Item = Result<PgRow, sqlx::Error>> + Unpin,
) -> Result<Page, Unread> {
    let mut read: Vec<Recorded> = Vec::new();
    let (mut bounds, mut reached) = (None, false);
    while let Some(row) = rows.try_next().await? {
        if bounds.is_none() {
            bounds = Some((Position(row.try_get(0)?), Position(row.try_get(1)?)));
            reached = row.try_get::<Option<bool>, _>(2)? == Some(true);
        }
        if row.try_get::<Option<i64>, _>(ROW)?.is_none() {
            continue;
        }
        let omitted: Option<i64> = row.try_get(ROW + rows::COLUMNS)?;
        let recorded = rows::recorded(&row, ROW)?;
        read.push(Recorded {
            omitted: omitted.map(i64::unsigned_abs),
            ..recorded
        });
    }
    let (pruned_to, up_to) = bounds.ok_or(sqlx::Error::RowNotFound)?;
    if after < pruned_to {
        return Err(Unread::Pruned(ReadError::Pruned { after, pruned_to }));
    }
    // The join keeps the order of the inner scan, but nothing says that it must.
    read.sort_unstable_by_key(|row| row.position);
    let full = reached || read.len() as u64 >= rows_of(limits).unsigned_abs();
    let scanned_to = match read.last() {
        Some(last) if full => last.position,
        // A cursor can stand above the horizon: at what was handed out when its reader began at the latest.
        _ => up_to.max(after),
    };
    Ok(Page {
        rows: read,
        scanned_to,
        horizon: up_to,
    })
}
