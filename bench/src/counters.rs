//! What a lane costs the server and the disk, where a rate says less than a count.

use crate::database::Scratch;
use anyhow::Result;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::timeout;

const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// Names and numbers, for each event.
pub(crate) type Counters = BTreeMap<&'static str, f64>;

/// Sums since the server started. WAL and flushes are those of all databases: nobody else uses the server meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    wal_bytes: f64,
    flushes: f64,
    commits: f64,
    /// Row versions that an UPDATE or DELETE left behind.
    dead: f64,
    round_trips: f64,
}

const SNAPSHOT: &str = "
SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
       (SELECT wal_sync::float8 FROM pg_stat_wal),
       (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()),
       (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables)";
/// From Postgres 18 on, flushes are counted elsewhere.
const SNAPSHOT_18: &str = "
SELECT (pg_current_wal_insert_lsn() - '0/0')::float8,
       (SELECT coalesce(sum(fsyncs), 0)::float8 FROM pg_stat_io WHERE object = 'wal'),
       (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database()),
       (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::float8 FROM pg_stat_user_tables)";

impl Scratch {
    /// Sums up to now, of connections of the pool that nobody uses.
    pub(crate) async fn snapshot(&self) -> Result<Snapshot> {
        let round_trips = self.round_trips();
        // A session hands its sums in once a second at most, unless it is told to.
        let mut sessions = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            // One that was given back a moment ago is on its way; one that is kept for something else does not come.
            match timeout(ON_ITS_WAY, self.pool.acquire()).await {
                Ok(session) => sessions.push(session?),
                Err(_) => break,
            }
        }
        for session in &mut sessions {
            sqlx::query("SELECT pg_stat_force_next_flush()")
                .execute(&mut **session)
                .await?;
        }
        let mut session = match sessions.pop() {
            Some(session) => session,
            None => self.pool.acquire().await?,
        };
        let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
            .fetch_one(&mut *session)
            .await?;
        let sums = if version >= 180_000 { SNAPSHOT_18 } else { SNAPSHOT };
        let (wal_bytes, flushes, commits, dead) = sqlx::query_as(sums).fetch_one(&mut *session).await?;
        Ok(Snapshot {
            wal_bytes,
            flushes,
            commits,
            dead,
            round_trips,
        })
    }

    /// What this many events have cost since then.
    pub(crate) async fn since(&self, before: &Snapshot, events: u32) -> Result<Counters> {
        let round_trips = self.round_trips();
        let after = self.snapshot().await?;
        let each = |before: f64, after: f64| (after - before) / f64::from(events.max(1));
        let mut counters = Counters::from([
            ("WAL bytes per event", each(before.wal_bytes, after.wal_bytes)),
            ("fdatasyncs per event", each(before.flushes, after.flushes)),
            ("commits per event", each(before.commits, after.commits)),
            ("dead tuples per event", each(before.dead, after.dead)),
        ]);
        if self.counts_round_trips() {
            // Those of the snapshot itself are not the lane's.
            counters = Counters::from([("round trips per event", each(before.round_trips, round_trips))]);
        }
        Ok(counters)
    }
}
