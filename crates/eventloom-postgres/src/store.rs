//! The store: how it is opened, what it checks then, and the one way to a transaction.

use crate::{
    error::{self, while_doing},
    opening,
    renewals::{Renewal, Renewals},
    transaction::{self, PostgresTransaction},
    wake::Wake,
};
use eventloom_core::{
    ConsumerName, LaneCount, PublishLimits, SchemaName, SharedCommit, StoreError, StoreErrorKind,
    ports::{Capacity, ConnectionOf, Scope, Store},
};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, SqlSafeStr,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use std::{error::Error, fmt, sync::Arc, time::Duration};

/// From here on a transaction has a time limit of its own.
const VERSION_TRANSACTION_TIMEOUT: i32 = 170_000;
/// Longest that a statement or a pause of the store's own transactions may take.
const OWN_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of an application name that Postgres keeps.
const LABEL_BYTES_MAX: usize = 63;

/// Names of the tables, and how statements are sent to them.
///
/// ```
/// use eventloom_core::SchemaName;
/// use eventloom_postgres::Tables;
/// let tables = Tables::new(SchemaName::parse("shop_events")?).pooled();
/// # Ok::<(), eventloom_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    schema: SchemaName,
    pooled: bool,
}

impl Tables {
    /// The tables of a schema, with named statements that stay prepared on each connection.
    pub fn new(schema: SchemaName) -> Self {
        Tables { schema, pooled: false }
    }

    /// Behind a transaction pooler: unnamed statements.
    #[must_use]
    pub fn pooled(mut self) -> Self {
        self.pooled = true;
        self
    }

    /// The schema.
    pub fn schema(&self) -> &SchemaName {
        &self.schema
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// A statement on these tables; `eventloom.` stands for the schema in every text of this crate.
    pub(crate) fn query<'q>(&self, sql: &'static str) -> Query<'q, sqlx::Postgres, PgArguments> {
        if self.schema == SchemaName::default() {
            sqlx::query(sql).persistent(!self.pooled)
        } else {
            sqlx::query(AssertSqlSafe(self.named(sql)).into_sql_str()).persistent(!self.pooled)
        }
    }

    /// A text with the schema in it, which is a validated name.
    fn named(&self, sql: &str) -> String {
        sql.replace("eventloom.", &format!("{}.", self.schema))
    }
}

/// Eventloom's store on Postgres.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use eventloom_postgres::{MigrateOptions, Postgres, migrate};
/// let pool = sqlx::PgPool::connect("postgres://localhost/shop").await?;
/// migrate(&pool, MigrateOptions::default()).await?;
/// let store = Postgres::builder(pool).open().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    tables: Tables,
    limits: PublishLimits,
    lanes: LaneCount,
    server_version: i32,
    lock_timeout: Option<Duration>,
    begin_own: String,
    shared_commit: SharedCommit,
    wake: Wake,
    renewals: Renewals,
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("place", &self.place())
            .field("tables", &self.inner.tables)
            .finish()
    }
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct PostgresBuilder {
    pool: PgPool,
    tables: Tables,
    limits: PublishLimits,
    lanes: Option<LaneCount>,
    lock_timeout: Option<Duration>,
}

/// A store was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No answer.
    #[error("cannot reach Postgres at {place}")]
    Unreachable {
        /// Host and database.
        place: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The server is too old.
    #[error("Postgres at {place} is version {found}; {needed} or later is needed")]
    ServerTooOld {
        /// Host and database.
        place: String,
        /// `server_version` as the server spells it.
        found: String,
        /// The oldest that will do.
        needed: i32,
    },
    /// The tables are not there, or older than this program needs.
    #[error("schema {schema} at {place} is at version {found}, this program needs {needed}: run `eventloom migrate`")]
    NotMigrated {
        /// Host and database.
        place: String,
        /// The schema.
        schema: SchemaName,
        /// Version found; 0 for none.
        found: i32,
        /// Version needed.
        needed: i32,
    },
    /// The tables were changed by a newer program in a way that this one does not know.
    #[error(
        "schema {schema} at {place} asks for programs of schema version {needed} or later, this one knows {known}: \
         deploy a newer program"
    )]
    ProgramTooOld {
        /// Host and database.
        place: String,
        /// The schema.
        schema: SchemaName,
        /// The oldest program that may use it.
        needed: i32,
        /// What this program knows.
        known: i32,
    },
    /// The tables were made with another number of lanes.
    #[error("schema {schema} at {place} was made with {found} lanes, {asked} were asked for")]
    Lanes {
        /// Host and database.
        place: String,
        /// The schema.
        schema: SchemaName,
        /// Lanes of the tables.
        found: u16,
        /// Lanes asked for.
        asked: u16,
    },
    /// Somebody changed what the reader's safety rests on.
    #[error("the log {schema}.outbox at {place} is not safe to read: {what}; {remedy}")]
    Unsafe {
        /// Host and database.
        place: String,
        /// The schema.
        schema: SchemaName,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl PostgresBuilder {
    /// Another schema than `eventloom`.
    #[must_use]
    pub fn schema(mut self, schema: SchemaName) -> Self {
        self.tables.schema = schema;
        self
    }

    /// Other limits at publish.
    #[must_use]
    pub fn limits(mut self, limits: PublishLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Refuses to open tables that were made with another number of lanes.
    #[must_use]
    pub fn lanes(mut self, lanes: LaneCount) -> Self {
        self.lanes = Some(lanes);
        self
    }

    /// The pool's connections lead through a transaction pooler; see the crate's documentation for what that asks of
    /// the service itself.
    #[must_use]
    pub fn pooled(mut self) -> Self {
        self.tables.pooled = true;
        self
    }

    /// How long a statement of the store's own transactions waits for a lock: for ever unless set.
    #[must_use]
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = Some(limit);
        self
    }

    /// Connects, and checks that the log is as the reader needs it.
    pub async fn open(self) -> Result<Postgres, OpenError> {
        let place = place(&self.pool);
        let found = match opening::look(&self.pool, &self.tables).await {
            Ok(found) => found,
            Err(source) if error::kind(&source) == StoreErrorKind::Unreachable || is_refused_login(&source) => {
                return Err(OpenError::Unreachable { place, source });
            }
            Err(source) => return Err(error::while_doing("opening the store")(source).into()),
        };
        let lanes = found.check(&place, &self.tables.schema)?;
        if let Some(asked) = self.lanes.filter(|asked| *asked != lanes) {
            let (schema, found, asked) = (self.tables.schema, lanes.get(), asked.get());
            return Err(OpenError::Lanes {
                place,
                schema,
                found,
                asked,
            });
        }
        let begin_own = begin_own(OWN_LIMIT, self.lock_timeout, found.server_version);
        let wake = Wake::new(&self.pool, &self.tables);
        let inner = Inner {
            pool: self.pool,
            tables: self.tables,
            limits: self.limits,
            lanes,
            server_version: found.server_version,
            lock_timeout: self.lock_timeout,
            begin_own,
            shared_commit: SharedCommit::default(),
            wake,
            renewals: Renewals::default(),
        };
        Ok(Postgres { inner: Arc::new(inner) })
    }
}

/// A login that is refused is as good as no server: the message names the place and not the password.
fn is_refused_login(error: &sqlx::Error) -> bool {
    let state = error.as_database_error().and_then(|error| error.code());
    state.is_some_and(|state| state.starts_with("28") || state == "3D000")
}

fn place(pool: &PgPool) -> String {
    let options = pool.connect_options();
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}/{database}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// BEGIN with everything that makes a transaction end by itself.
fn begin_statement(label: &str, limit: Duration, lock_timeout: Option<Duration>, server_version: i32) -> String {
    let limit_ms = limit.as_millis().clamp(1, i32::MAX as u128 / 10);
    let mut statement = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {limit_ms}; \
         SET LOCAL idle_in_transaction_session_timeout = {limit_ms}; {}",
        transaction::SAY_OPEN
    );
    if !label.is_empty() {
        statement += &format!("; SET LOCAL application_name = '{label}'");
    }
    if let Some(lock_timeout) = lock_timeout {
        statement += &format!(
            "; SET LOCAL lock_timeout = {}",
            lock_timeout.as_millis().clamp(1, i32::MAX as u128)
        );
    }
    if server_version >= VERSION_TRANSACTION_TIMEOUT {
        // Against one that goes on for ever with short statements. Ten times the limit, since a batch of many short
        // statements is as it should be while its owner renews its lease.
        statement += &format!("; SET LOCAL transaction_timeout = {}", limit_ms * 10);
    }
    statement
}

/// The same for the store's own. Row level security of a table would hide rows from it, which a reader then passes: they
/// are an error instead. Not in a handler's transaction, whose own tables may have it.
fn begin_own(limit: Duration, lock_timeout: Option<Duration>, server_version: i32) -> String {
    let statement = begin_statement("", limit, lock_timeout, server_version);
    format!("{statement}; SET LOCAL row_security = off")
}

/// What an owner's transactions are called, so that a successor finds them: `eventloom <owner> <reader>`.
///
/// Postgres cuts a longer name off, and readers whose names differ only behind the cut must not be taken for one another.
pub(crate) fn label(owner: &str, reader: &ConsumerName) -> String {
    let label = format!("eventloom {owner} {reader}");
    if label.len() <= LABEL_BYTES_MAX {
        return label;
    }
    // FNV-1a: every program of a rolling deployment must come to the same name.
    let digest = label.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!(
        "{}~{digest:08x}",
        label.chars().take(LABEL_BYTES_MAX - 9).collect::<String>()
    )
}

impl Postgres {
    /// Begins to describe a store over the caller's own pool.
    pub fn builder(pool: PgPool) -> PostgresBuilder {
        PostgresBuilder {
            pool,
            tables: Tables::default(),
            limits: PublishLimits::default(),
            lanes: None,
            lock_timeout: None,
        }
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// Whether it stands behind a transaction pooler.
    pub fn is_pooled(&self) -> bool {
        self.inner.tables.pooled
    }

    /// A transaction of the store's own. Every operation without a connection in its signature goes through here, so that
    /// behind a pooler no statement ever runs outside of a transaction. One that only reads is dropped and not committed.
    pub(crate) async fn own(&self, doing: &'static str) -> Result<PostgresTransaction, StoreError> {
        PostgresTransaction::begin(&self.inner.pool, self.inner.begin_own.clone(), doing).await
    }

    /// The same, with a statement that comes along in the same round trip.
    pub(crate) async fn own_and(
        &self,
        statement: &'static str,
        doing: &'static str,
    ) -> Result<PostgresTransaction, StoreError> {
        let statement = format!("{}; {}", self.inner.begin_own, self.inner.tables.named(statement));
        PostgresTransaction::begin(&self.inner.pool, statement, doing).await
    }

    /// Calls a function of integers in a transaction of its own that is rolled back, all in one round trip. They stand in
    /// the text, since what is bound takes a round trip of its own.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub(crate) async fn call<const N: usize>(
        &self,
        function: &'static str,
        arguments: [i64; N],
        doing: &'static str,
    ) -> Result<PgRow, StoreError> {
        let function = self.inner.tables.named(function);
        let arguments = arguments.map(|argument| argument.to_string()).join(", ");
        let sql = format!("{}; SELECT {function}({arguments}); ROLLBACK", self.inner.begin_own);
        let mut rows = transaction::at_once(&self.inner.pool, sql, doing).await?;
        rows.pop().ok_or_else(|| while_doing(doing)(sqlx::Error::RowNotFound))
    }

    /// The same with another limit for statements and pauses.
    pub(crate) async fn own_within(
        &self,
        limit: Duration,
        doing: &'static str,
    ) -> Result<PostgresTransaction, StoreError> {
        let statement = begin_own(limit, self.inner.lock_timeout, self.inner.server_version);
        PostgresTransaction::begin(&self.inner.pool, statement, doing).await
    }

    /// For statements that no BEGIN of the store's stands before; `None` where none was set.
    pub(crate) fn lock_timeout_setting(&self) -> Option<String> {
        let limit = self.inner.lock_timeout?;
        Some(limit.as_millis().clamp(1, i32::MAX as u128).to_string())
    }

    pub(crate) fn query<'q>(&self, sql: &'static str) -> Query<'q, sqlx::Postgres, PgArguments> {
        self.inner.tables.query(sql)
    }

    pub(crate) fn publish_limits(&self) -> &PublishLimits {
        &self.inner.limits
    }

    pub(crate) fn shared_commit(&self) -> &SharedCommit {
        &self.inner.shared_commit
    }

    pub(crate) fn renewals(&self) -> &Renewals {
        &self.inner.renewals
    }

    /// A transaction of the store's own on the connection that is kept for renewals; `None` where none is.
    pub(crate) async fn renewal(&self, limit: Duration, doing: &'static str) -> Result<Option<Renewal>, StoreError> {
        let statement = begin_own(limit, self.inner.lock_timeout, self.inner.server_version);
        self.inner.renewals.begin(&self.inner.pool, &statement, doing).await
    }

    pub(crate) fn wake(&self) -> &Wake {
        &self.inner.wake
    }
}

impl Store for Postgres {
    type Connection = PgConnection;
    type Transaction = PostgresTransaction;
    type Tables = Tables;

    const NAME: &'static str = "postgres";

    fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    fn capacity(&self) -> Capacity {
        let connections_max = self.inner.pool.options().get_max_connections();
        Capacity {
            connections_max,
            writers_max: connections_max,
        }
    }

    fn lanes(&self) -> LaneCount {
        self.inner.lanes
    }

    fn place(&self) -> String {
        place(&self.inner.pool)
    }

    async fn begin(&self, scope: Scope<'_>) -> Result<PostgresTransaction, StoreError> {
        let label = label(scope.owner.as_str(), scope.reader);
        let statement = begin_statement(&label, scope.limit, self.inner.lock_timeout, self.inner.server_version);
        PostgresTransaction::begin(&self.inner.pool, statement, "beginning a transaction").await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let mut tx = self.own("asking whether the store answers").await?;
        let doing = error::while_doing("asking whether the store answers");
        self.query("SELECT 1").execute(&mut *tx).await.map_err(doing)?;
        Ok(())
    }

    fn kind_of(error: &(dyn Error + 'static)) -> Option<StoreErrorKind> {
        error::kind_in_chain(error)
    }
}

impl ConnectionOf<Postgres> for PgConnection {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn labels_fit_and_differ() {
        let owner = "host-of-16-bytes-4194304-0123abcd";
        let short = label(owner, &ConsumerName::parse("orders").unwrap());
        assert_eq!(short, format!("eventloom {owner} orders"));
        let [one, other] = ["a", "b"].map(|end| format!("a-name-that-is-longer-than-what-fits-{end}"));
        let [one, other] = [one, other].map(|name| label(owner, &ConsumerName::parse(name).unwrap()));
        assert_ne!(one, other);
        assert_eq!(one.len(), LABEL_BYTES_MAX);
    }
}
