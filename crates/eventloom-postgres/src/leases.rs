//! Who may move which cursor: one lease an instance for liveness, an epoch for each lane for safety.

use crate::{
    error::while_doing,
    prune::micros,
    store::{Postgres, label},
    transaction,
};
use eventloom_core::{
    ConsumerName, Epoch, Lane, OffsetDateTime, OwnerId, Position, StoreError, faults,
    ports::{
        Cursor, FenceError, Leases, Move, RegisterError, Registration, Reserve, Start, Store, Taken, Tenure,
        Transaction as _,
    },
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::{
    collections::{BTreeSet, HashSet},
    time::{Duration, Instant},
};

/// The row that the pruner locks too: between the look at `pruned_to` and the commit of the cursors nothing is deleted.
const LOCK_LOG: &str = "SELECT pruned_to, lanes FROM eventloom.logs WHERE name = 'outbox' FOR UPDATE";
const REGISTER: &str = "INSERT INTO eventloom.readers (name, created_at) VALUES ($1, coalesce($2, clock_timestamp()))
    ON CONFLICT DO NOTHING";
/// Lanes that are missing begin where the reader's slowest lane stands.
const FILL: &str = "
INSERT INTO eventloom.cursors (reader, lane, position, batch_end)
SELECT $1, lane, $2, $2 FROM generate_series(0, $3 - 1) lane ON CONFLICT DO NOTHING";
const SLOWEST: &str = "SELECT min(position) FROM eventloom.cursors WHERE reader = $1";

const READER: &str = "SELECT paused FROM eventloom.readers WHERE name = $1 FOR KEY SHARE";
/// An expired member that is renewing at the moment is passed over: its lock decides.
const EXPIRE: &str = "
WITH expired AS (SELECT owner FROM eventloom.members
                  WHERE reader = $1 AND owner <> $2 AND lease_until <= coalesce($3, clock_timestamp())
                  ORDER BY owner FOR UPDATE SKIP LOCKED)
DELETE FROM eventloom.members m USING expired e WHERE m.reader = $1 AND m.owner = e.owner";
const RENEW: &str = "
UPDATE eventloom.members SET lease_until = coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond'
 WHERE reader = $1 AND owner = $2 AND lease_until > coalesce($3, clock_timestamp())";
const JOIN: &str = "
INSERT INTO eventloom.members (reader, owner, lease_until)
VALUES ($1, $2, coalesce($3, clock_timestamp()) + $4 * interval '1 microsecond')
ON CONFLICT (reader, owner) DO UPDATE SET lease_until = EXCLUDED.lease_until";
/// Members count from here on whether or not their lease has run out: expired ones were deleted before.
const MEMBERS: &str = "SELECT count(*) FROM eventloom.members WHERE reader = $1";
/// After a lapse nothing is owned any more. What its own unfinished transactions lock comes with the next call.
const LET_LAPSED_GO: &str = "
WITH mine AS (SELECT lane FROM eventloom.cursors WHERE reader = $1 AND owner = $2 ORDER BY lane FOR UPDATE SKIP LOCKED)
UPDATE eventloom.cursors c SET owner = NULL FROM mine m WHERE c.reader = $1 AND c.lane = m.lane";
/// Lanes that the tables give to this instance, but not as it believes: left from a commit whose answer was lost, or reset.
const RETAKE: &str = "
WITH mine AS (SELECT lane FROM eventloom.cursors c
               WHERE reader = $1 AND owner = $2
                 AND NOT EXISTS (SELECT FROM unnest($3::smallint[], $4::bigint[]) h (lane, epoch)
                                  WHERE h.lane = c.lane AND h.epoch = c.epoch)
               ORDER BY lane FOR UPDATE SKIP LOCKED)
UPDATE eventloom.cursors c SET epoch = c.epoch + $5 FROM mine m WHERE c.reader = $1 AND c.lane = m.lane
RETURNING c.lane, c.epoch, c.position, c.batch_end, NULL::text";
/// Lanes without a live owner. One that is locked belongs to a transaction of its former owner, and waiting for that
/// would let a frozen process hold up this one. Epoch and owner are compared once more when the row is locked: somebody
/// who joined later than this statement's snapshot may have taken the lane, and would not be found among the members.
const TAKE: &str = "
WITH free AS MATERIALIZED
     (SELECT lane, epoch, owner FROM eventloom.cursors
       WHERE reader = $1
         AND (owner IS NULL OR owner NOT IN (SELECT m.owner FROM eventloom.members m WHERE m.reader = $1))),
     picked AS
     (SELECT c.lane, f.owner
        FROM eventloom.cursors c
        JOIN free f ON c.lane = f.lane AND c.epoch = f.epoch AND c.owner IS NOT DISTINCT FROM f.owner
       WHERE c.reader = $1 ORDER BY c.lane LIMIT $3 FOR UPDATE OF c SKIP LOCKED)
UPDATE eventloom.cursors c SET owner = $2, epoch = c.epoch + $4 FROM picked p WHERE c.reader = $1 AND c.lane = p.lane
RETURNING c.lane, c.epoch, c.position, c.batch_end, p.owner";
const OWNED: &str = "SELECT lane, epoch FROM eventloom.cursors WHERE reader = $1 AND owner = $2 ORDER BY lane";
const DEAD_OWNERS: &str = "
SELECT DISTINCT owner FROM eventloom.cursors
 WHERE reader = $1 AND owner NOT IN (SELECT m.owner FROM eventloom.members m WHERE m.reader = $1)";
/// In a statement after the epochs were raised: what a former owner commits later than this is fenced.
const HOLDS: &str = "
SELECT l.lane FROM unnest($2::smallint[]) l (lane)
 WHERE (SELECT true FROM eventloom.held_keys k WHERE (k.consumer, k.lane) >= ($1, l.lane)
           AND (k.consumer, k.lane) <= ($1, l.lane) ORDER BY k.consumer, k.lane LIMIT 1)
    OR (SELECT true FROM eventloom.held h WHERE (h.consumer, h.lane) >= ($1, l.lane)
           AND (h.consumer, h.lane) <= ($1, l.lane) ORDER BY h.consumer, h.lane LIMIT 1)";

const RELEASE: &str = "
WITH mine AS (SELECT c.lane FROM eventloom.cursors c JOIN unnest($3::smallint[], $4::bigint[]) h (lane, epoch)
                     ON c.lane = h.lane AND c.epoch = h.epoch
               WHERE c.reader = $1 AND c.owner = $2 ORDER BY c.lane FOR UPDATE OF c)
UPDATE eventloom.cursors c SET owner = NULL FROM mine m WHERE c.reader = $1 AND c.lane = m.lane";
const LEAVE: &str = "DELETE FROM eventloom.members WHERE reader = $1 AND owner = $2";

/// By its label and not by a pid that was written down: this finds the transaction itself, on whatever connection it
/// runs, and no connection that the pool has given to something else meanwhile. It waits for the end, so that the next
/// call of `keep` finds the locks gone.
const TERMINATE: &str = "
SELECT pg_terminate_backend(pid, 200) FROM pg_catalog.pg_stat_activity
 WHERE datname = current_database() AND application_name = ANY($1) AND xact_start IS NOT NULL
   AND pid <> pg_backend_pid()";

/// Longer than what it waits for each of a few.
const TERMINATE_LIMIT: Duration = Duration::from_secs(5);

/// Moves nothing outside of the transaction that `begin` began: whatever ended that one has undone what the cursors are
/// to move for. The same in the two below.
const ADVANCE: &str = "
WITH moves AS (SELECT * FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
                         m (lane, epoch, come_from, go_to, batch_end, confirmed)),
     locked AS (SELECT c.lane FROM eventloom.cursors c JOIN moves m USING (lane)
                 WHERE c.reader = $1 AND c.epoch = m.epoch AND c.position = m.come_from
                   AND current_setting('eventloom_store.transaction', true) = 'open' ORDER BY c.lane FOR UPDATE OF c)
UPDATE eventloom.cursors c
   SET position = m.go_to, batch_end = greatest(c.batch_end, m.batch_end), confirmed = coalesce(m.confirmed, c.confirmed)
  FROM moves m JOIN locked l USING (lane)
 WHERE c.reader = $1 AND c.lane = m.lane AND c.epoch = m.epoch AND c.position = m.come_from";
const MARK: &str = "
WITH marks AS (SELECT * FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) m (lane, epoch, batch_end)),
     locked AS (SELECT c.lane FROM eventloom.cursors c JOIN marks m USING (lane)
                 WHERE c.reader = $1 AND c.epoch = m.epoch
                   AND current_setting('eventloom_store.transaction', true) = 'open' ORDER BY c.lane FOR UPDATE OF c)
UPDATE eventloom.cursors c SET batch_end = greatest(c.batch_end, m.batch_end)
  FROM marks m JOIN locked l USING (lane)
 WHERE c.reader = $1 AND c.lane = m.lane AND c.epoch = m.epoch";
const FENCE: &str = "
SELECT c.lane FROM eventloom.cursors c JOIN unnest($2::smallint[], $3::bigint[]) m (lane, epoch) USING (lane)
 WHERE c.reader = $1 AND c.epoch = m.epoch AND current_setting('eventloom_store.transaction', true) = 'open'
 ORDER BY c.lane FOR UPDATE OF c";

/// The planted defect: cursors move whoever owns them.
const ADVANCE_UNFENCED: &str = "
UPDATE eventloom.cursors c SET position = greatest(c.position, m.go_to)
  FROM unnest($2::smallint[], $3::bigint[]) m (lane, go_to) WHERE c.reader = $1 AND c.lane = m.lane";

impl Leases for Postgres {
    async fn register(
        &self,
        reader: &ConsumerName,
        start: Start,
        now: Option<OffsetDateTime>,
    ) -> Result<Registration, RegisterError> {
        let doing = while_doing("registering a reader");
        let (mut tx, pruned_to, lanes, created) = loop {
            let mut tx = self.own("registering a reader").await?;
            let (pruned_to, lanes) = self.lock_log(&mut tx).await?;
            let query = self.query(REGISTER).bind(reader.as_str()).bind(now);
            let created = query.execute(&mut *tx).await.map_err(&doing)?.rows_affected() == 1;
            // What one of this name has left behind that was dropped must not be taken for this one's.
            if !created || !self.has_leftovers(&mut tx, reader).await? {
                break (tx, pruned_to, lanes, created);
            }
            tx.rollback().await?;
            self.forget_leftovers(reader).await?;
        };
        let slowest = self
            .query(SLOWEST)
            .bind(reader.as_str())
            .fetch_one(&mut *tx)
            .await
            .map_err(&doing)?;
        let slowest: Option<i64> = slowest.try_get(0).map_err(&doing)?;
        let begins_after = match slowest {
            Some(position) if !created => Position(position),
            _ => match self.start_of(&mut tx, start, pruned_to).await {
                Ok(position) => position,
                Err(refused) => {
                    tx.rollback().await?;
                    return Err(refused);
                }
            },
        };
        let query = self.query(FILL).bind(reader.as_str()).bind(begins_after.0).bind(lanes);
        query.execute(&mut *tx).await.map_err(&doing)?;
        tx.commit_own().await?;
        Ok(Registration::new(created, begins_after, pruned_to))
    }

    fn reserve(&self) -> Reserve {
        match self.capacity().connections_max {
            0 | 1 => Reserve::default(),
            _ => Reserve::holding(self.renewals().keep()),
        }
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
        let doing = "keeping the lease";
        let asked = Instant::now();
        if let Some(tenure) = self.keep_quietly(reader, owner, lease, held, now).await? {
            faults::point("lease.after_keep");
            return Ok(tenure);
        }
        let waited;
        let (mut tenure, former) = match self.renewal(lease, doing).await? {
            Some(mut kept) => {
                waited = asked.elapsed();
                let found = self.keep_on(&mut kept, reader, owner, lease, held, now).await?;
                kept.commit().await?;
                found
            }
            None => {
                let mut tx = self.own_within(lease, doing).await?;
                waited = asked.elapsed();
                let found = self.keep_on(&mut tx, reader, owner, lease, held, now).await?;
                tx.commit_own().await?;
                found
            }
        };
        tenure.waited = waited;
        if !former.is_empty() && !self.is_pooled() {
            self.terminate(reader, former).await;
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
        faults::point("lease.before_release");
        let doing = while_doing("handing lanes over");
        let mut tx = self.own("handing lanes over").await?;
        if leaving {
            // First, as in `keep`: members before cursors.
            let query = self.query(LEAVE).bind(reader.as_str()).bind(owner.as_str());
            query.execute(&mut *tx).await.map_err(&doing)?;
        }
        let (numbers, epochs) = arrays(lanes);
        let query = self
            .query(RELEASE)
            .bind(reader.as_str())
            .bind(owner.as_str())
            .bind(numbers)
            .bind(epochs);
        query.execute(&mut *tx).await.map_err(&doing)?;
        tx.commit_own().await
    }

    async fn advance(
        &self,
        connection: &mut PgConnection,
        reader: &ConsumerName,
        moves: &[Move],
    ) -> Result<(), FenceError> {
        let lanes: Vec<i16> = moves.iter().map(|step| step.cursor.lane.0).collect();
        let to: Vec<i64> = moves.iter().map(|step| step.to.0).collect();
        if faults::defect("no_epoch_check") {
            let query = self.query(ADVANCE_UNFENCED).bind(reader.as_str()).bind(lanes).bind(to);
            query
                .execute(connection)
                .await
                .map_err(while_doing("advancing cursors"))?;
            return Ok(());
        }
        let query = self.query(ADVANCE).bind(reader.as_str()).bind(lanes);
        let query = query.bind(moves.iter().map(|step| step.cursor.epoch.0).collect::<Vec<_>>());
        let query = query
            .bind(moves.iter().map(|step| step.from.0).collect::<Vec<_>>())
            .bind(to);
        let query = query.bind(
            moves
                .iter()
                .map(|step| step.batch_end.map(|end| end.0))
                .collect::<Vec<_>>(),
        );
        let query = query.bind(
            moves
                .iter()
                .map(|step| step.confirmed.map(|confirmed| confirmed.0))
                .collect::<Vec<_>>(),
        );
        let moved = query
            .execute(&mut *connection)
            .await
            .map_err(while_doing("advancing cursors"))?;
        all_or_fenced(connection, moved.rows_affected(), moves.len()).await
    }

    async fn mark(
        &self,
        connection: &mut PgConnection,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
    ) -> Result<(), FenceError> {
        let (lanes, epochs) = arrays(marks.iter().map(|(cursor, _)| cursor));
        let ends: Vec<i64> = marks.iter().map(|(_, end)| end.0).collect();
        let query = self
            .query(MARK)
            .bind(reader.as_str())
            .bind(lanes)
            .bind(epochs)
            .bind(ends);
        let marked = query
            .execute(&mut *connection)
            .await
            .map_err(while_doing("recording the end of a batch"))?;
        all_or_fenced(connection, marked.rows_affected(), marks.len()).await
    }

    async fn mark_alone(
        &self,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
        flushed: bool,
    ) -> Result<(), FenceError> {
        self.mark_at_once(reader, marks, flushed).await
    }

    async fn fence(
        &self,
        connection: &mut PgConnection,
        reader: &ConsumerName,
        cursors: &[Cursor],
    ) -> Result<(), FenceError> {
        let (lanes, epochs) = arrays(cursors);
        let query = self.query(FENCE).bind(reader.as_str()).bind(lanes).bind(epochs);
        let locked = query
            .execute(&mut *connection)
            .await
            .map_err(while_doing("locking cursors"))?;
        all_or_fenced(connection, locked.rows_affected(), cursors.len()).await
    }
}

async fn all_or_fenced(connection: &mut PgConnection, rows: u64, expected: usize) -> Result<(), FenceError> {
    if rows == expected as u64 || faults::defect("no_epoch_check") {
        return Ok(());
    }
    // Nothing was found, for one of two reasons.
    transaction::must_be_open(connection, "moving cursors").await?;
    Err(FenceError::Fenced)
}

pub(crate) fn arrays<'a>(cursors: impl IntoIterator<Item = &'a Cursor>) -> (Vec<i16>, Vec<i64>) {
    cursors
        .into_iter()
        .map(|cursor| (cursor.lane.0, cursor.epoch.0))
        .unzip()
}

fn taken(row: &PgRow) -> Result<Taken, sqlx::Error> {
    Ok(Taken {
        cursor: Cursor {
            lane: Lane(row.try_get(0)?),
            epoch: Epoch(row.try_get(1)?),
        },
        position: Position(row.try_get(2)?),
        batch_end: Position(row.try_get(3)?),
        holds: false,
        former: row.try_get(4)?,
    })
}

impl Postgres {
    /// Locks the row of the log against the pruner; returns `pruned_to` and the number of lanes.
    pub(crate) async fn lock_log(&self, connection: &mut PgConnection) -> Result<(Position, i32), StoreError> {
        let doing = while_doing("locking the row of the log");
        let row = self.query(LOCK_LOG).fetch_one(connection).await.map_err(&doing)?;
        Ok((
            Position(row.try_get(0).map_err(&doing)?),
            row.try_get(1).map_err(&doing)?,
        ))
    }

    /// Where `start` is, now that the row of the log is locked.
    pub(crate) async fn start_of(
        &self,
        connection: &mut PgConnection,
        start: Start,
        pruned_to: Position,
    ) -> Result<Position, RegisterError> {
        match start {
            Start::Earliest => Ok(pruned_to),
            Start::Latest => Ok(self.horizon_on(connection).await?.handed_out),
            Start::After(asked) if asked < pruned_to => Err(RegisterError::Pruned { asked, pruned_to }),
            Start::After(asked) => Ok(asked),
            Start::Since(time) => Ok(self.position_at_on(connection, time).await?.max(pruned_to)),
        }
    }

    /// The transaction of `keep`. Also returns the owners whose unfinished transactions are to be ended.
    async fn keep_on(
        &self,
        tx: &mut PgConnection,
        reader: &ConsumerName,
        owner: &OwnerId,
        lease: Duration,
        held: &[Cursor],
        now: Option<OffsetDateTime>,
    ) -> Result<(Tenure, BTreeSet<String>), StoreError> {
        let doing = while_doing("keeping the lease");
        let (reader, owner) = (reader.as_str(), owner.as_str());
        let Some(found) = self
            .query(READER)
            .bind(reader)
            .fetch_optional(&mut *tx)
            .await
            .map_err(&doing)?
        else {
            return Ok((
                Tenure {
                    dropped: true,
                    ..Tenure::default()
                },
                BTreeSet::new(),
            ));
        };
        let query = self.query(RENEW).bind(reader).bind(owner).bind(now).bind(micros(lease));
        let mut lapsed = query.execute(&mut *tx).await.map_err(&doing)?.rows_affected() == 0;
        if lapsed {
            let query = self.query(JOIN).bind(reader).bind(owner).bind(now).bind(micros(lease));
            query.execute(&mut *tx).await.map_err(&doing)?;
            lapsed = !faults::defect("lease_renewed_without_epoch");
        }
        // After the own row, which alone is waited for: two that have both expired would otherwise lock each other out.
        self.query(EXPIRE)
            .bind(reader)
            .bind(owner)
            .bind(now)
            .execute(&mut *tx)
            .await
            .map_err(&doing)?;
        let counted = self
            .query(MEMBERS)
            .bind(reader)
            .fetch_one(&mut *tx)
            .await
            .map_err(&doing)?;
        let members = counted.try_get::<i64, _>(0).map_err(&doing)?.max(1) as usize;
        let share = usize::from(self.lanes().get()).div_ceil(members);
        let bump: i64 = if faults::defect("take_without_bump") { 0 } else { 1 };

        let held = if lapsed { &[] } else { held };
        if lapsed {
            self.query(LET_LAPSED_GO)
                .bind(reader)
                .bind(owner)
                .execute(&mut *tx)
                .await
                .map_err(&doing)?;
        }
        let (lanes, epochs) = arrays(held);
        let query = self
            .query(RETAKE)
            .bind(reader)
            .bind(owner)
            .bind(lanes)
            .bind(epochs)
            .bind(bump);
        let mut rows = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        let mine = self
            .query(OWNED)
            .bind(reader)
            .bind(owner)
            .fetch_all(&mut *tx)
            .await
            .map_err(&doing)?;
        let room = share.saturating_sub(mine.len());
        if room > 0 {
            let query = self.query(TAKE).bind(reader).bind(owner).bind(room as i64).bind(bump);
            rows.extend(query.fetch_all(&mut *tx).await.map_err(&doing)?);
        }
        let mut taken: Vec<Taken> = rows.iter().map(taken).collect::<Result<_, _>>().map_err(&doing)?;
        taken.sort_by_key(|taken| taken.cursor.lane);
        taken
            .iter_mut()
            .for_each(|taken| taken.former = taken.former.take().filter(|former| former != owner));

        let mut former: BTreeSet<String> = taken.iter().filter_map(|taken| taken.former.clone()).collect();
        if room > 0 {
            // Lanes that were passed over because the dead hold their rows.
            let dead = self
                .query(DEAD_OWNERS)
                .bind(reader)
                .fetch_all(&mut *tx)
                .await
                .map_err(&doing)?;
            former.extend(dead.iter().filter_map(|row| row.try_get::<String, _>(0).ok()));
        }
        if !taken.is_empty() {
            let numbers: Vec<i16> = taken.iter().map(|taken| taken.cursor.lane.0).collect();
            let holds = self
                .query(HOLDS)
                .bind(reader)
                .bind(numbers)
                .fetch_all(&mut *tx)
                .await
                .map_err(&doing)?;
            let holds: BTreeSet<i16> = holds.iter().filter_map(|row| row.try_get(0).ok()).collect();
            taken
                .iter_mut()
                .for_each(|taken| taken.holds = holds.contains(&taken.cursor.lane.0));
        }
        let owned = self
            .query(OWNED)
            .bind(reader)
            .bind(owner)
            .fetch_all(&mut *tx)
            .await
            .map_err(&doing)?;
        let cursor = |row: &PgRow| {
            Ok(Cursor {
                lane: Lane(row.try_get(0)?),
                epoch: Epoch(row.try_get(1)?),
            })
        };
        let owned: Vec<Cursor> = owned
            .iter()
            .map(cursor)
            .collect::<Result<_, sqlx::Error>>()
            .map_err(&doing)?;
        // A lane that is neither held as the tables have it nor taken now is locked by an unfinished transaction.
        let known: HashSet<Cursor> = held
            .iter()
            .copied()
            .chain(taken.iter().map(|taken| taken.cursor))
            .collect();
        let owned = owned.into_iter().filter(|cursor| known.contains(cursor)).collect();
        let paused = found.try_get(0).map_err(&doing)?;
        Ok((
            Tenure {
                owned,
                taken,
                share,
                members,
                paused,
                ..Tenure::default()
            },
            former,
        ))
    }

    /// Ends unfinished transactions of former owners, after the commit of the takeover: a live process that goes on with
    /// short statements would otherwise hold its locks for as long as it likes. Where the rights are missing, the time
    /// limits of those transactions do it.
    async fn terminate(&self, reader: &ConsumerName, owners: BTreeSet<String>) {
        let labels: Vec<String> = owners.iter().map(|owner| label(owner, reader)).collect();
        let ended = async {
            // Beside the renewal on its connection too: the lease is not known here before this has answered.
            let doing = "ending a former owner's transactions";
            let query = self.query(TERMINATE).bind(labels);
            if let Some(mut kept) = self.renewal(TERMINATE_LIMIT, doing).await? {
                let ended = query.fetch_all(&mut *kept).await.map_err(while_doing(doing))?;
                kept.commit().await?;
                return Ok(ended);
            }
            let mut tx = self.own(doing).await?;
            query.fetch_all(&mut *tx).await.map_err(while_doing(doing))
        };
        let ended: Result<_, StoreError> = ended.await;
        match ended {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                tracing::info!(%reader, ?owners, transactions = rows.len(), "ended a former owner's transactions")
            }
            Err(error) => tracing::debug!(%reader, ?owners, %error, "could not end a former owner's transactions"),
        }
    }
}
