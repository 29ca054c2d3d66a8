//! Making the tables and bringing them up to date: explicit, in numbered steps, each a transaction of its own.

use crate::{
    error::failed,
    store::{OpenError, connect_options, open_first},
};
use eventloom_core::{LaneCount, StoreError, StoreErrorKind, faults};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use std::{path::Path, time::Duration};

/// How long a step waits for other writers unless chosen.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The version of the tables that this program makes and needs.
pub(crate) const SCHEMA_VERSION: i32 = 1;

struct Step {
    version: i32,
    /// The oldest program that can use the tables after this step.
    min_program: i32,
    name: &'static str,
    sql: &'static str,
}

const STEPS: &[Step] = &[Step {
    version: 1,
    min_program: 1,
    name: "log_and_consumers",
    sql: include_str!("../migrations/0001_log_and_consumers.sql"),
}];

/// What to migrate.
///
/// ```
/// use eventloom_sqlite::MigrateOptions;
/// use std::time::Duration;
/// let options = MigrateOptions::default().lock_timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MigrateOptions {
    /// Lanes of the log. `None`: 64 for new tables, and those that are there stay as they are.
    pub lanes: Option<LaneCount>,
    /// How long a step waits for other writers before it gives up; 10 s unless chosen.
    pub lock_timeout: Option<Duration>,
}

impl MigrateOptions {
    /// Sets the number of lanes; other tables than with that many are an error.
    #[must_use]
    pub fn lanes(mut self, lanes: LaneCount) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Sets how long a step waits.
    #[must_use]
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = Some(limit);
        self
    }
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// Version before; 0 for none.
    pub from: i32,
    /// Version now. Above what this program knows when a newer one has migrated.
    pub to: i32,
    /// Names of the steps applied by this call.
    pub applied: Vec<&'static str>,
}

/// A migration was refused or failed. Steps before the one that failed stay applied; running it again goes on there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The tables have another number of lanes.
    #[error(
        "the tables in {place} were made with {found} lanes, {asked} were asked for; the number cannot be changed after the first migration"
    )]
    Lanes {
        /// The file.
        place: String,
        /// Lanes of the tables.
        found: i64,
        /// Lanes asked for.
        asked: u16,
    },
    /// Others wrote for longer than `lock_timeout`. Nothing of this step happened.
    #[error("step {step} did not get its turn to write in time, nothing of it happened; run it again")]
    Locked {
        /// Name of the step.
        step: &'static str,
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

/// Makes the tables in the file at `path` (or a `sqlite://path` URL), or applies the steps that are missing. Makes the file
/// when it is missing. Safe to run again, and from several processes at once.
pub async fn migrate(path: impl AsRef<Path>, options: MigrateOptions) -> Result<Migrated, MigrateError> {
    let timeout = options.lock_timeout.unwrap_or(LOCK_TIMEOUT);
    let (connect, place) = connect_options(path.as_ref(), timeout)?;
    let unreachable = |error: sqlx::Error| OpenError::Unreachable {
        place: place.clone(),
        source: error.into(),
    };
    let mut connection = open_first(&connect, timeout).await.map_err(unreachable)?;
    let from = version(&mut connection).await.map_err(unreachable)?;
    let mut applied = Vec::new();
    for step in STEPS {
        faults::point("migrate.before_step");
        let done = apply(&mut connection, step, options.lanes.unwrap_or_default()).await;
        let done = done
            .map_err(failed("migrating"))
            .map_err(|source| match source.kind() {
                StoreErrorKind::Conflict => MigrateError::Locked { step: step.name },
                _ => MigrateError::Store {
                    step: step.name,
                    source,
                },
            })?;
        applied.extend(done.then_some(step.name));
        faults::point("migrate.after_step");
    }
    let to = version(&mut connection).await.map_err(unreachable)?;
    let lanes = "SELECT lanes FROM eventloom_logs WHERE name = 'outbox'";
    let found: i64 = sqlx::query_scalar(lanes)
        .fetch_one(&mut connection)
        .await
        .map_err(unreachable)?;
    connection.close().await.map_err(unreachable)?;
    match options.lanes.map(LaneCount::get) {
        Some(asked) if i64::from(asked) != found => Err(MigrateError::Lanes { place, found, asked }),
        _ => Ok(Migrated { from, to, applied }),
    }
}

/// The SQL that [`migrate`] runs on an empty file, for other migration tools.
pub fn migration_sql(lanes: LaneCount) -> String {
    let mut script = String::new();
    for step in STEPS {
        script += &format!("-- step {}: {}\nBEGIN IMMEDIATE;\n", step.version, step.name);
        script += &sql_of(step, lanes);
        script += &format!(
            "INSERT INTO eventloom_schema_versions (version, min_program, name) VALUES ({}, {}, '{}');\nCOMMIT;\n",
            step.version, step.min_program, step.name
        );
    }
    script
}

fn sql_of(step: &Step, lanes: LaneCount) -> String {
    step.sql.replace("{lanes}", &lanes.get().to_string())
}

/// Whether it was missing.
async fn apply(connection: &mut SqliteConnection, step: &Step, lanes: LaneCount) -> Result<bool, sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    // Looked at inside the transaction: another program may have been faster.
    if version(&mut tx).await? >= step.version {
        tx.rollback().await?;
        return Ok(false);
    }
    sqlx::raw_sql(AssertSqlSafe(sql_of(step, lanes)))
        .execute(&mut *tx)
        .await?;
    let done = "INSERT INTO eventloom_schema_versions (version, min_program, name) VALUES (?1, ?2, ?3)";
    sqlx::query(done)
        .bind(step.version)
        .bind(step.min_program)
        .bind(step.name)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(true)
}

/// The version of the tables; 0 without tables.
async fn version(connection: &mut SqliteConnection) -> Result<i32, sqlx::Error> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'eventloom_schema_versions'";
    if sqlx::query_scalar::<_, i64>(there).fetch_one(&mut *connection).await? == 0 {
        return Ok(0);
    }
    let version = "SELECT coalesce(max(version), 0) FROM eventloom_schema_versions";
    sqlx::query_scalar(version).fetch_one(connection).await
}
