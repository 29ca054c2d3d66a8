//! What `open` looks at before it trusts a log: server, versions, and whatever the reader's safety rests on.

use crate::{OpenError, Tables};
use eventloom_core::{LaneCount, SchemaName};
use sqlx::{PgPool, Row};

/// What this program knows of the schema: a database whose steps ask for more is not opened.
pub(crate) const PROGRAM: i32 = 2;
/// The oldest server whose snapshots and functions the fence relies on.
const VERSION_MIN: i32 = 140_000;

/// READ COMMITTED whatever is the default here: the horizon refuses to be asked for in anything else.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The catalogue alone, whatever is or is not there.
///
/// A table that inherits from the log, or that the log inherits from or is a part of, brings rows into it past its triggers.
/// A table that is not logged is empty after a crash. A trigger behind the fence can change key and position of what the
/// fence has passed; triggers run in the order of their names.
const CATALOGUE: &str = "
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       to_regclass('eventloom.schema_versions') IS NOT NULL AND to_regclass('eventloom.logs') IS NOT NULL,
       (SELECT tgenabled::text FROM pg_catalog.pg_trigger
         WHERE tgrelid = to_regclass('eventloom.outbox') AND tgname = 'zz_eventloom_fence'),
       s.seqcache, s.seqincrement,
       coalesce(c.relrowsecurity, false),
       (SELECT CASE WHEN inhrelid = c.oid THEN inhparent ELSE inhrelid END::regclass::text FROM pg_catalog.pg_inherits
         WHERE inhrelid = c.oid OR inhparent = c.oid LIMIT 1),
       (SELECT relname::text FROM pg_catalog.pg_class
         WHERE relnamespace = c.relnamespace AND relkind = 'r' AND relpersistence <> 'p'
           AND relname IN ('schema_versions', 'logs', 'outbox', 'readers', 'members', 'cursors', 'inbox', 'attempts',
                           'held_keys', 'held') LIMIT 1),
       (SELECT tgname::text FROM pg_catalog.pg_trigger
         WHERE tgrelid = c.oid AND tgtype & 7 = 7 AND tgenabled <> 'D' AND tgname > 'zz_eventloom_fence' LIMIT 1),
       pg_is_in_recovery() OR NOT coalesce(has_table_privilege(c.oid, 'SELECT'), false)
  FROM (SELECT) one
  LEFT JOIN pg_catalog.pg_class c ON c.oid = to_regclass('eventloom.outbox')
  LEFT JOIN pg_catalog.pg_sequence s ON s.seqrelid = to_regclass('eventloom.outbox_position_seq')";
const VERSIONS: &str = "
SELECT coalesce(max(version), 0), coalesce(max(min_program), 0),
       coalesce((SELECT lanes FROM eventloom.logs WHERE name = 'outbox'), 0)
  FROM eventloom.schema_versions";
/// The statement's snapshot is older than the look at the sequence: every row that it sees was handed out by then.
const PLACES: &str = "
SELECT h.handed_out, greatest(l.pruned_to, (SELECT max(position) FROM eventloom.outbox))
  FROM eventloom.outbox_horizon() h, eventloom.logs l WHERE l.name = 'outbox'";
/// What `outbox_horizon` says of a sequence that has handed out nothing since it was restarted.
const NOTHING_HANDED_OUT: &str = "EV005";

/// What was found.
pub(crate) struct Found {
    pub(crate) server_version: i32,
    server_version_text: String,
    fence: Option<String>,
    cache: Option<i64>,
    increment: Option<i64>,
    row_security: bool,
    relative: Option<String>,
    unlogged: Option<String>,
    behind_the_fence: Option<String>,
    version: i32,
    program_min: i32,
    lanes: i32,
    /// What the sequence has handed out, where it is less than what stands in the log or was pruned from it; and that.
    went_back: Option<(i64, i64)>,
}

/// One look at catalogue and tables.
pub(crate) async fn look(pool: &PgPool, tables: &Tables) -> Result<Found, sqlx::Error> {
    let mut tx = pool.begin_with(BEGIN).await?;
    let row = tables.query(CATALOGUE).fetch_one(&mut *tx).await?;
    let mut found = Found {
        server_version: row.try_get(0)?,
        server_version_text: row.try_get(1)?,
        fence: row.try_get(3)?,
        cache: row.try_get(4)?,
        increment: row.try_get(5)?,
        row_security: row.try_get(6)?,
        relative: row.try_get(7)?,
        unlogged: row.try_get(8)?,
        behind_the_fence: row.try_get(9)?,
        version: 0,
        program_min: 0,
        lanes: 0,
        went_back: None,
    };
    if row.try_get(2)? {
        let row = tables.query(VERSIONS).fetch_one(&mut *tx).await?;
        (found.version, found.program_min, found.lanes) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    }
    // A standby is told of when it is read; a role that may not read the log does not follow it.
    let unreadable: bool = row.try_get(10)?;
    if found.version >= PROGRAM && !unreadable && !found.row_security {
        found.went_back = match tables.query(PLACES).fetch_one(&mut *tx).await {
            Ok(row) => Some((row.try_get(0)?, row.try_get(1)?)).filter(|(handed_out, there)| handed_out < there),
            Err(error) if is(&error, NOTHING_HANDED_OUT) => Some((0, 1)),
            Err(error) => return Err(error),
        };
    }
    tx.rollback().await?;
    Ok(found)
}

fn is(error: &sqlx::Error, state: &str) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| code == state)
}

impl Found {
    /// The number of lanes, or what is wrong.
    pub(crate) fn check(&self, place: &str, schema: &SchemaName) -> Result<LaneCount, OpenError> {
        let (place, schema) = (place.to_owned(), schema.clone());
        if self.server_version < VERSION_MIN {
            let found = self.server_version_text.clone();
            return Err(OpenError::ServerTooOld {
                place,
                found,
                needed: VERSION_MIN / 10_000,
            });
        }
        if self.program_min > PROGRAM {
            return Err(OpenError::ProgramTooOld {
                place,
                schema,
                needed: self.program_min,
                known: PROGRAM,
            });
        }
        if self.version < PROGRAM {
            return Err(OpenError::NotMigrated {
                place,
                schema,
                found: self.version,
                needed: PROGRAM,
            });
        }
        if let Some((what, remedy)) = self.danger() {
            return Err(OpenError::Unsafe {
                place,
                schema,
                what,
                remedy,
            });
        }
        let lanes = u16::try_from(self.lanes).ok().and_then(LaneCount::new);
        lanes.ok_or_else(|| OpenError::Unsafe {
            place,
            schema,
            what: format!("its row in the table logs says {} lanes", self.lanes),
            remedy: "restore that row",
        })
    }

    /// What makes the log unsafe to read, and what to do about it.
    fn danger(&self) -> Option<(String, &'static str)> {
        match self.fence.as_deref() {
            Some("A") => {}
            fence => {
                let what = match fence {
                    None => "its fence, the trigger zz_eventloom_fence, is missing".to_owned(),
                    Some(mode) => {
                        format!("its fence is not enabled for every session (mode {mode:?} instead of \"A\")")
                    }
                };
                let remedy = "stop the writers and run ALTER TABLE … ENABLE ALWAYS TRIGGER zz_eventloom_fence";
                return Some((what, remedy));
            }
        }
        if let Some(trigger) = &self.behind_the_fence {
            let what = format!("the trigger {trigger:?} runs behind its fence, and may change what that has passed");
            let remedy = "give the trigger a name that sorts before zz_eventloom_fence, or make it an AFTER trigger";
            return Some((what, remedy));
        }
        if (self.cache, self.increment) != (Some(1), Some(1)) {
            let what = format!(
                "its position sequence has CACHE {} and INCREMENT {}, which must both be 1",
                self.cache.unwrap_or_default(),
                self.increment.unwrap_or_default()
            );
            return Some((what, "stop the writers and run ALTER SEQUENCE … INCREMENT 1 CACHE 1"));
        }
        if self.row_security {
            let what = "its outbox has row level security, by which readers would pass rows unseen".to_owned();
            let remedy = "run ALTER TABLE … DISABLE ROW LEVEL SECURITY, and give each tenant a log of its own";
            return Some((what, remedy));
        }
        if let Some(relative) = &self.relative {
            let what =
                format!("its outbox and the table {relative} inherit from one another, which passes by its fence");
            let remedy = "run ALTER TABLE … NO INHERIT …, or DETACH PARTITION";
            return Some((what, remedy));
        }
        if let Some(unlogged) = &self.unlogged {
            let what = format!("its table {unlogged} is not logged, so a crash of the server empties it");
            return Some((what, "run ALTER TABLE … SET LOGGED"));
        }
        if let Some((handed_out, there)) = self.went_back {
            let what = match handed_out {
                0 => "its position sequence was restarted and has handed out nothing".to_owned(),
                _ => format!(
                    "its position sequence stands at {handed_out}, and positions up to {there} are taken: readers would \
                     pass what comes next"
                ),
            };
            let remedy = "stop the writers and run SELECT setval('….outbox_position_seq', N), where N is no position below \
                          what is in the log, was pruned, or a reader has passed";
            return Some((what, remedy));
        }
        None
    }
}
