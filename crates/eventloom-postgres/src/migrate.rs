//! Makes and changes the tables: explicit, repeatable, one step a transaction, and the same text as a script.

use crate::{error, transaction::PostgresTransaction};
use eventloom_core::{LaneCount, SchemaName, StoreError, StoreErrorKind, chain, faults};
use sqlx::{AssertSqlSafe, PgPool, Row};
use std::time::Duration;

/// One numbered file.
struct Step {
    version: i32,
    /// The oldest program that can use the tables after this step. An additive step keeps that of the one before.
    min_program: i32,
    name: &'static str,
    sql: &'static str,
}

const STEPS: &[Step] = &[
    Step {
        version: 1,
        min_program: 1,
        name: "log",
        sql: include_str!("../migrations/0001_log.sql"),
    },
    Step {
        version: 2,
        min_program: 2,
        name: "readers",
        sql: include_str!("../migrations/0002_readers.sql"),
    },
];

/// Before the first step. Rights to make a schema are needed only where there is none.
const PREPARE: &str = "
DO $do$ BEGIN
    IF to_regnamespace('eventloom') IS NULL THEN
        EXECUTE 'CREATE SCHEMA eventloom';
    END IF;
END $do$;
CREATE TABLE IF NOT EXISTS eventloom.schema_versions (
    version     int PRIMARY KEY,
    min_program int NOT NULL,
    name        text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now()
);
";

/// Migrations of one database run one after the other, whatever their schemas: they hand out namespaces of logs.
const LOCK: &str = "SELECT pg_catalog.pg_advisory_xact_lock(29801, 0);\n";

/// How long one try of a step waits for a lock unless chosen.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a step is tried unless chosen.
const LOCK_TRIES: u32 = 5;
/// The longest pause between two tries.
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// What to migrate.
///
/// ```
/// use eventloom_postgres::MigrateOptions;
/// use std::time::Duration;
/// let options = MigrateOptions::default().lock_timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MigrateOptions {
    /// The schema; `eventloom` unless chosen.
    pub schema: SchemaName,
    /// Lanes of the log. `None`: 64 for new tables, and those that are there stay as they are.
    pub lanes: Option<LaneCount>,
    /// How long one try of a step waits for a lock; 5 s unless chosen. Everybody who comes later waits behind it, so a
    /// try is short, and between tries the service goes on.
    pub lock_timeout: Option<Duration>,
    /// How often a step is tried before it gives up; 5 times unless chosen.
    pub lock_tries: Option<u32>,
}

impl MigrateOptions {
    /// Sets the schema.
    #[must_use]
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the number of lanes; other tables than with that many are an error.
    #[must_use]
    pub fn lanes(mut self, lanes: LaneCount) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Sets how long one try of a step waits for a lock.
    #[must_use]
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = Some(limit);
        self
    }

    /// Sets how often a step is tried, at least once.
    #[must_use]
    pub fn lock_tries(mut self, tries: u32) -> Self {
        self.lock_tries = Some(tries);
        self
    }
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// Version before; 0 for none.
    pub from: i32,
    /// Version now.
    pub to: i32,
    /// Names of the steps applied by this call.
    pub applied: Vec<&'static str>,
}

/// A migration was refused or failed. Steps before the one that failed stay applied; running it again goes on there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The tables have another number of lanes.
    #[error(
        "schema {schema} was made with {found} lanes, {asked} were asked for; the number cannot be changed after the first migration"
    )]
    Lanes {
        /// The schema.
        schema: SchemaName,
        /// Lanes of the tables.
        found: i32,
        /// Lanes asked for.
        asked: u16,
    },
    /// A lock was not free within `lock_timeout`, in none of `lock_tries`. Nothing of this step happened.
    #[error(
        "step {step} did not get its locks in {tries} tries of {limit:?}, nothing of it happened; \
         run it again at a quieter moment"
    )]
    Locked {
        /// Name of the step.
        step: &'static str,
        /// How often it was tried.
        tries: u32,
        /// How long each try waited.
        limit: Duration,
    },
    /// The store failed.
    #[error("step {step} of the migration failed")]
    Store {
        /// Name of the step.
        step: &'static str,
        /// Why.
        source: StoreError,
    },
}

/// Applies the steps that are missing. Safe to run again, and from several processes at once.
pub async fn migrate(pool: &PgPool, options: MigrateOptions) -> Result<Migrated, MigrateError> {
    let lanes = options.lanes.unwrap_or_default();
    let mut migrated = Migrated {
        from: 0,
        to: 0,
        applied: Vec::new(),
    };
    for step in STEPS {
        faults::point("migrate.before_step");
        let applied = try_to_apply(pool, &options, lanes, step).await?;
        faults::point("migrate.after_step");
        match applied {
            true => migrated.applied.push(step.name),
            false => migrated.from = migrated.from.max(step.version),
        }
    }
    let (version, found) = versions(pool, &options.schema)
        .await
        .map_err(|error| MigrateError::Store {
            step: "check",
            source: error::while_doing("migrating")(error),
        })?;
    migrated.to = version;
    if migrated.applied.is_empty() {
        // A newer program may have been here.
        migrated.from = version;
    }
    match options.lanes {
        Some(asked) if i32::from(asked.get()) != found => Err(MigrateError::Lanes {
            schema: options.schema,
            found,
            asked: asked.get(),
        }),
        _ => Ok(migrated),
    }
}

/// Tries a step until it gets its locks, as often as the options say. Whether it was missing.
async fn try_to_apply(
    pool: &PgPool,
    options: &MigrateOptions,
    lanes: LaneCount,
    step: &Step,
) -> Result<bool, MigrateError> {
    let limit = options.lock_timeout.unwrap_or(LOCK_TIMEOUT);
    let tries = options.lock_tries.unwrap_or(LOCK_TRIES).max(1);
    let mut tried = 0;
    loop {
        match apply(pool, options, limit, lanes, step).await {
            Ok(applied) => return Ok(applied),
            Err(source) if source.kind() != StoreErrorKind::Conflict => {
                return Err(MigrateError::Store {
                    step: step.name,
                    source,
                });
            }
            Err(source) => {
                tried += 1;
                if tried == tries {
                    return Err(MigrateError::Locked {
                        step: step.name,
                        tries,
                        limit,
                    });
                }
                tracing::warn!(step = step.name, tried, tries, error = %chain(&source),
                    "a step of the migration did not get its locks, and is tried again");
                // Who has queued up behind this try goes first.
                tokio::time::sleep(limit.min(PAUSE_MOST)).await;
            }
        }
    }
}

async fn apply(
    pool: &PgPool,
    options: &MigrateOptions,
    lock_timeout: Duration,
    lanes: LaneCount,
    step: &Step,
) -> Result<bool, StoreError> {
    let doing = error::while_doing("migrating");
    let lock_timeout_ms = lock_timeout.as_millis().clamp(1, i32::MAX as u128);
    let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {lock_timeout_ms}");
    let mut tx = PostgresTransaction::begin(pool, begin, "migrating").await?;
    let prepare = in_schema(&format!("{LOCK}{PREPARE}"), &options.schema, lanes);
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *tx)
        .await
        .map_err(&doing)?;
    let recorded = in_schema(RECORD, &options.schema, lanes);
    let recorded = sqlx::query(AssertSqlSafe(recorded))
        .persistent(false)
        .bind(step.version)
        .bind(step.min_program)
        .bind(step.name)
        .execute(&mut *tx)
        .await
        .map_err(&doing)?;
    let missing = recorded.rows_affected() == 1;
    if missing {
        let sql = in_schema(step.sql, &options.schema, lanes);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut *tx)
            .await
            .map_err(&doing)?;
    }
    tx.commit_own().await?;
    Ok(missing)
}

const RECORD: &str = "INSERT INTO eventloom.schema_versions (version, min_program, name) VALUES ($1, $2, $3)
    ON CONFLICT DO NOTHING";

async fn versions(pool: &PgPool, schema: &SchemaName) -> Result<(i32, i32), sqlx::Error> {
    let sql = in_schema(
        "SELECT (SELECT max(version) FROM eventloom.schema_versions),
                (SELECT lanes FROM eventloom.logs WHERE name = 'outbox')",
        schema,
        LaneCount::default(),
    );
    let mut tx = pool.begin().await?;
    let row = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .fetch_one(&mut *tx)
        .await?;
    tx.rollback().await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Everything as one script, for those whose own tool runs migrations.
pub fn migration_sql(schema: &SchemaName, lanes: LaneCount) -> String {
    let mut script = format!("BEGIN;\n{LOCK}{PREPARE}");
    for step in STEPS {
        script += &format!(
            "\n-- Step {}: {}\n{}\nINSERT INTO eventloom.schema_versions (version, min_program, name) VALUES ({}, {}, '{}');\n",
            step.version, step.name, step.sql, step.version, step.min_program, step.name
        );
    }
    script += "COMMIT;\n";
    in_schema(&script, schema, lanes)
}

/// Roles and their rights: a writer inserts and nothing else, a reader runs consumers, an operator mends.
pub fn grants_sql(schema: &SchemaName) -> String {
    in_schema(include_str!("../migrations/grants.sql"), schema, LaneCount::default())
}

/// The files name the default schema and the default number of lanes; both are validated values, never text from outside.
fn in_schema(sql: &str, schema: &SchemaName, lanes: LaneCount) -> String {
    let mut sql = sql.replace("64 /* lanes */", &lanes.get().to_string());
    if *schema != SchemaName::default() {
        let places = [("", "."), ("SCHEMA ", ""), ("regnamespace('", "'")];
        let roles = [("regrole('", "_"), ("ROLE ", "_"), ("GRANT ", "_"), ("TO ", "_")];
        for (before, after) in places.into_iter().chain(roles) {
            sql = sql.replace(
                &format!("{before}eventloom{after}"),
                &format!("{before}{schema}{after}"),
            );
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_schema_is_replaced_wherever_it_is_one() {
        let schema = SchemaName::parse("shop").unwrap();
        let script = migration_sql(&schema, LaneCount::new(128).unwrap()) + &grants_sql(&schema);
        let left: Vec<&str> = script.lines().filter(|line| line.contains("eventloom.")).collect();
        assert!(left.is_empty(), "{left:#?}");
        let names = [
            "eventloom_writer",
            "eventloom_reader",
            "eventloom_operator",
            "'eventloom'",
            "SCHEMA eventloom",
        ];
        let left: Vec<&str> = names.into_iter().filter(|name| script.contains(name)).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(script.contains("CREATE SCHEMA shop") && script.contains("% 128;") && script.contains("shop_writer"));
        assert!(
            script.contains("eventloom_fence.m"),
            "settings keep their names: the namespace tells logs apart"
        );
    }

    #[test]
    fn versions_count_up() {
        assert!(
            STEPS
                .iter()
                .zip(1..)
                .all(|(step, number)| step.version == number && step.min_program <= step.version)
        );
        assert_eq!(STEPS.last().map(|step| step.version), Some(crate::opening::PROGRAM));
    }
}
