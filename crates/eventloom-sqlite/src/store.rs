//! The store itself: how a file is opened, what is checked then, and who gets which connection.

use crate::{
    error::{failed, kind_of},
    opening,
    transaction::{Seat, SqliteTransaction},
    turn::Turnstile,
    wake::Wake,
};
use eventloom_core::{
    LaneCount, PublishLimits, SharedCommit, StoreError, StoreErrorKind,
    ports::{Capacity, ConnectionOf, Scope, Store},
};
use sqlx::{
    Connection, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    error::Error,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Mutex;

/// How long a statement waits for another program's lock. Our own writers wait in line before that.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// What the log file is cut back to after a checkpoint, in bytes.
const WAL_BYTES_KEPT: &str = "67108864";
/// Distinct statements that a connection keeps prepared.
const STATEMENTS_KEPT: usize = 256;
const CONNECTIONS_MAX: u32 = 8;

/// Whether the write connection is as it was opened. Handlers run on it, and what one leaves behind would be everybody's:
/// that nothing may be written, that nobody else may read, or a table that stands before ours.
const IS_AS_IT_WAS: &str = "SELECT (SELECT query_only FROM pragma_query_only) = 0 \
     AND (SELECT locking_mode FROM pragma_locking_mode) = 'normal' \
     AND NOT EXISTS (SELECT 1 FROM sqlite_temp_schema WHERE name LIKE 'eventloom%')";

/// Names of the tables. There is one set in a file, with the prefix `eventloom_`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tables {}

/// A store on one SQLite file. Cloning shares its connections.
///
/// See the [crate's page](crate) for a first example.
#[derive(Debug, Clone)]
pub struct Sqlite(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    /// Reads, and whatever users run themselves.
    pub(crate) pool: SqlitePool,
    /// The one write connection; a pool of one, since that knows how to replace a broken one.
    pub(crate) writer: SqlitePool,
    /// Taken before the write connection: first come, first served.
    pub(crate) seat: Arc<Mutex<Seat>>,
    pub(crate) turnstile: Turnstile,
    /// Whether the write connection may commit at the moment; its commit hook looks here.
    pub(crate) may_commit: Arc<AtomicBool>,
    /// Whether the transaction of the write connection has been rolled back, by itself or by a statement.
    pub(crate) rolled_back: Arc<AtomicBool>,
    pub(crate) wake: Wake,
    pub(crate) shared_commit: SharedCommitOf,
    /// One pruning at a time.
    pub(crate) pruning: Mutex<()>,
    limits: PublishLimits,
    pub(crate) lanes: LaneCount,
    tables: Tables,
    place: String,
}

/// [`SharedCommit`], with the `Debug` that it lacks.
#[derive(Default)]
pub(crate) struct SharedCommitOf(pub(crate) SharedCommit);

impl std::fmt::Debug for SharedCommitOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedCommit")
    }
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be opened, or is no database.
    #[error("the database {place} is unreachable")]
    Unreachable {
        /// The file.
        place: String,
        /// What the driver says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Only files can be shared between a service and its consumers.
    #[error("{place} is no file; a store needs one, since its connections and processes share it")]
    NoFile {
        /// What was asked for.
        place: String,
    },
    /// The tables are not there.
    #[error("the database {place} has no Eventloom tables; run `eventloom migrate`")]
    NotMigrated {
        /// The file.
        place: String,
    },
    /// The tables are older than this program.
    #[error("the tables in {place} are at version {found}, this program needs {needed}; run `eventloom migrate`")]
    TooOld {
        /// The file.
        place: String,
        /// Version of the tables.
        found: i32,
        /// What this program needs at least.
        needed: i32,
    },
    /// The tables ask for a newer program.
    #[error("the tables in {place} need a program of schema version {min_program} or newer, this one is {program}")]
    TooNew {
        /// The file.
        place: String,
        /// The oldest program that may use the tables.
        min_program: i32,
        /// What this program is.
        program: i32,
    },
    /// Another number of lanes was asked for.
    #[error(
        "the tables in {place} were made with {found} lanes, not {asked}; the number cannot be changed, leave it out"
    )]
    Lanes {
        /// The file.
        place: String,
        /// Lanes of the tables.
        found: i64,
        /// Lanes asked for.
        asked: u16,
    },
    /// The SQLite library that the program was linked with is too old.
    #[error("SQLite {found} is too old, 3.43 is needed; build with the feature `sqlite-bundled`")]
    Library {
        /// Its version.
        found: String,
    },
}

/// Options of a store, before it is opened.
#[derive(Debug, Clone)]
pub struct SqliteBuilder {
    path: PathBuf,
    limits: PublishLimits,
    lanes: Option<LaneCount>,
    connections_max: u32,
    busy_timeout: Duration,
}

impl SqliteBuilder {
    /// Limits at publish.
    #[must_use]
    pub fn limits(mut self, limits: PublishLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Refuses to open when the tables were made with another number of lanes.
    #[must_use]
    pub fn lanes(mut self, lanes: LaneCount) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// Size of the pool that [`Sqlite::pool`] gives, at least 1; the write connection comes on top. 8 unless changed.
    #[must_use]
    pub fn connections_max(mut self, connections: u32) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// How long a statement waits while another program holds the database. 10 s unless changed.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Opens the file, and makes it when it is missing; tables are never made here.
    pub async fn open(self) -> Result<Sqlite, OpenError> {
        let (options, place) = connect_options(&self.path, self.busy_timeout)?;
        let unreachable = |source: Box<dyn Error + Send + Sync>| OpenError::Unreachable {
            place: place.clone(),
            source,
        };
        let mut first = open_first(&options, self.busy_timeout)
            .await
            .map_err(|error| unreachable(error.into()))?;
        let lanes = opening::check(&mut first, &place, self.lanes).await?;
        first.close().await.map_err(|error| unreachable(error.into()))?;

        // The file is there now. Lock and log files lie beside the real one, whatever link led here.
        let path = options
            .get_filename()
            .canonicalize()
            .map_err(|error| unreachable(error.into()))?;
        let turnstile = Turnstile::beside(&path).map_err(|error| unreachable(error.into()))?;
        let options = options.filename(&path);
        let (may_commit, rolled_back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let inner = Inner {
            pool: pool_options(self.connections_max).connect_lazy_with(options.clone()),
            writer: writer_options(&may_commit, &rolled_back).connect_lazy_with(options),
            seat: Arc::default(),
            turnstile,
            may_commit,
            rolled_back,
            wake: Wake::beside(&path),
            shared_commit: SharedCommitOf::default(),
            pruning: Mutex::default(),
            limits: self.limits,
            lanes,
            tables: Tables::default(),
            place,
        };
        Ok(Sqlite(Arc::new(inner)))
    }
}

impl Sqlite {
    /// Options for the file at `path`, which may also be a `sqlite://path` URL.
    pub fn builder(path: impl AsRef<Path>) -> SqliteBuilder {
        SqliteBuilder {
            path: path.as_ref().to_path_buf(),
            limits: PublishLimits::default(),
            lanes: None,
            connections_max: CONNECTIONS_MAX,
            busy_timeout: BUSY_TIMEOUT,
        }
    }

    /// Opens the file with the defaults.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Sqlite, OpenError> {
        Sqlite::builder(path).open().await
    }

    /// Connections for your own queries and transactions.
    ///
    /// A transaction that will write is begun with `pool().begin_with("BEGIN IMMEDIATE")`, or better with
    /// [`Sqlite::begin_write`], which waits in line with the other writers.
    pub fn pool(&self) -> &SqlitePool {
        &self.0.pool
    }

    /// Begins a write transaction when it is this one's turn, first come, first served over all processes.
    ///
    /// Keep it short: everybody else who writes waits. While it is open, do not ask the store for anything that commits
    /// by itself (such as `publish_alone`): that would wait for this transaction to end.
    pub async fn begin_write(&self) -> Result<SqliteTransaction, StoreError> {
        SqliteTransaction::begin(Arc::clone(&self.0)).await
    }

    pub(crate) fn publish_limits(&self) -> &PublishLimits {
        &self.0.limits
    }

    /// Closes all connections, after their transactions have ended.
    pub async fn close(&self) {
        // Nobody sits down meanwhile, or a connection would come back to the seat, for which the pool waits.
        let mut seat = self.0.seat.lock().await;
        drop(seat.warm.take());
        self.0.writer.close().await;
        drop(seat);
        self.0.pool.close().await;
    }
}

impl Store for Sqlite {
    type Connection = SqliteConnection;
    type Transaction = SqliteTransaction;
    type Tables = Tables;

    const NAME: &'static str = "sqlite";

    fn tables(&self) -> &Tables {
        &self.0.tables
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            connections_max: self.0.pool.options().get_max_connections(),
            writers_max: 1,
        }
    }

    fn lanes(&self) -> LaneCount {
        self.0.lanes
    }

    fn place(&self) -> String {
        self.0.place.clone()
    }

    /// SQLite has no time limits of its own: the engine enforces `scope.limit`.
    async fn begin(&self, _scope: Scope<'_>) -> Result<SqliteTransaction, StoreError> {
        self.begin_write().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let sql = "SELECT lanes FROM eventloom_logs WHERE name = 'outbox'";
        sqlx::query(sql)
            .fetch_one(&self.0.pool)
            .await
            .map_err(failed("asking whether the store answers"))?;
        Ok(())
    }

    fn kind_of(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
        kind_of(error)
    }
}

impl ConnectionOf<Sqlite> for SqliteConnection {}

/// Options of every connection, and the place for people.
pub(crate) fn connect_options(
    path: &Path,
    busy_timeout: Duration,
) -> Result<(SqliteConnectOptions, String), OpenError> {
    let place = path.display().to_string();
    let options = match path.to_str().filter(|text| text.starts_with("sqlite:")) {
        Some(url) => SqliteConnectOptions::from_str(url).map_err(|error| OpenError::Unreachable {
            place: place.clone(),
            source: error.into(),
        })?,
        None => SqliteConnectOptions::new().filename(path),
    };
    let file = options.get_filename().to_path_buf();
    let name = file.to_string_lossy();
    if name.is_empty() || name == ":memory:" || name.starts_with("file:") {
        return Err(OpenError::NoFile { place });
    }
    let place = file.display().to_string();
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // A row of a log must not be visible before it is durable.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(busy_timeout)
        .pragma("journal_size_limit", WAL_BYTES_KEPT)
        .statement_cache_capacity(STATEMENTS_KEPT);
    Ok((options, place))
}

/// The first connection turns the file to WAL. SQLite does not wait for the lock that this needs, so we do.
pub(crate) async fn open_first(
    options: &SqliteConnectOptions,
    patience: Duration,
) -> Result<SqliteConnection, sqlx::Error> {
    let deadline = Instant::now() + patience;
    loop {
        match SqliteConnection::connect_with(options).await {
            Err(error) if Instant::now() < deadline && kind_of(&error) == Some(StoreErrorKind::Conflict) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            opened => return opened,
        }
    }
}

fn pool_options(connections_max: u32) -> SqlitePoolOptions {
    // A file does not go away as a server does: nothing to test, nothing to renew.
    SqlitePoolOptions::new()
        .max_connections(connections_max)
        .test_before_acquire(false)
        .max_lifetime(None)
        .idle_timeout(None)
}

fn writer_options(may_commit: &Arc<AtomicBool>, rolled_back: &Arc<AtomicBool>) -> SqlitePoolOptions {
    let (may_commit, rolled_back) = (Arc::clone(may_commit), Arc::clone(rolled_back));
    pool_options(1)
        .after_connect(move |connection, _| {
            let (may_commit, rolled_back) = (Arc::clone(&may_commit), Arc::clone(&rolled_back));
            Box::pin(async move {
                // SQLite ends a transaction by itself on some errors, and statements after that would commit one by one.
                let mut handle = connection.lock_handle().await?;
                handle.set_commit_hook(move || may_commit.load(Ordering::Acquire));
                handle.set_rollback_hook(move || rolled_back.store(true, Ordering::Release));
                Ok(())
            })
        })
        .after_release(|connection, _| {
            Box::pin(async move {
                // After the rollback that a drop has queued. A depth that is left then is an error of counting: the
                // transaction had ended by itself. Such a connection is replaced.
                let as_it_was = sqlx::query_scalar(IS_AS_IT_WAS).fetch_one(&mut *connection).await?;
                Ok(as_it_was && !connection.is_in_transaction())
            })
        })
}
