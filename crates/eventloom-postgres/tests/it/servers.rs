//! Servers under test, and a database of its own for each test.

use anyhow::Result;
use eventloom_core::{ConsumerName, NewEvent, SchemaName, Topic};
use eventloom_postgres::{MigrateOptions, Postgres, migrate};
use futures::FutureExt;
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
    time::{Duration, Instant},
};

/// Longest that any condition is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server that a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    variable: &'static str,
}

pub(crate) const DIRECT: [Server; 2] = [
    Server {
        name: "postgres 15",
        variable: "EVENTLOOM_TEST_PG15",
    },
    Server {
        name: "postgres 18",
        variable: "EVENTLOOM_TEST_PG18",
    },
];
pub(crate) const BOUNCER: Server = Server {
    name: "pgbouncer",
    variable: "EVENTLOOM_TEST_PGBOUNCER",
};

impl Server {
    /// Where it is; says so when a test is left out.
    pub(crate) fn url(self) -> Option<PgConnectOptions> {
        match std::env::var(self.variable) {
            Ok(url) => Some(url.parse().expect(self.variable)),
            Err(_) => {
                println!("left out: {}: {} is not set", self.name, self.variable);
                None
            }
        }
    }
}

/// A database of its own.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    admin: PgConnectOptions,
    pub(crate) options: PgConnectOptions,
    pub(crate) name: String,
}

impl Database {
    /// Makes one at `admin`; `behind` is where clients connect, when that is not the same.
    pub(crate) async fn create(admin: &PgConnectOptions, through: &PgConnectOptions) -> Result<Self> {
        let name = format!("eventloom_test_{:016x}", fastrand::u64(..));
        execute_at(admin, &format!("CREATE DATABASE {name}")).await?;
        Ok(Database {
            admin: admin.clone(),
            options: through.clone().database(&name),
            name,
        })
    }

    pub(crate) async fn drop(&self) -> Result<()> {
        execute_at(
            &self.admin,
            &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        )
        .await
    }

    /// Straight to the server, also where clients go through a pooler.
    pub(crate) fn direct(&self) -> PgConnectOptions {
        self.admin.clone().database(&self.name)
    }

    pub(crate) async fn pool(&self, connections: u32) -> Result<PgPool> {
        Ok(PgPoolOptions::new()
            .max_connections(connections)
            .connect_with(self.options.clone())
            .await?)
    }

    /// An opened store over a pool of its own, as another process would have.
    pub(crate) async fn store(&self, connections: u32) -> Result<Postgres> {
        Ok(Postgres::builder(self.pool(connections).await?).open().await?)
    }

    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.direct()).await?)
    }
}

async fn execute_at(options: &PgConnectOptions, sql: &str) -> Result<()> {
    let mut connection = PgConnection::connect_with(options).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Runs a test in a migrated database of its own on each server that is there, one after the other.
pub(crate) fn for_each_server<F, Fut>(test: F)
where
    F: Fn(Database) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    for server in DIRECT {
        if let Some(url) = server.url() {
            on(server, &url, &test);
        }
    }
}

fn on<F, Fut>(server: Server, url: &PgConnectOptions, test: &F)
where
    F: Fn(Database) -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let database = Database::create(url, url).await.expect(server.name);
        let run = async {
            migrate(&database.pool(1).await?, MigrateOptions::default()).await?;
            test(database.clone()).await
        };
        let outcome = AssertUnwindSafe(run).catch_unwind().await;
        database.drop().await.expect(server.name);
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("{}: {error:?}", server.name),
            Err(panic) => {
                eprintln!("on {}", server.name);
                resume_unwind(panic)
            }
        }
    });
}

/// Waits until `condition` holds; the only place where a test passes time.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !condition().await? {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // pacing: between two looks at the condition
    }
    Ok(())
}

/// Runs statements as a program does that knows nothing of Eventloom.
pub(crate) async fn run(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

/// The SQLSTATE with which statements were refused.
pub(crate) async fn state_of(connection: &mut PgConnection, sql: &str) -> Option<String> {
    let error = run(connection, sql).await.err()?;
    error
        .as_database_error()
        .and_then(|error| error.code())
        .map(|code| code.into_owned())
}

/// One number from one row.
pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> Result<i64> {
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await?)
}

/// The server's version, 150000 for the first 15.
pub(crate) async fn version(connection: &mut PgConnection) -> Result<i64> {
    number(connection, "SELECT current_setting('server_version_num')::bigint").await
}

pub(crate) fn event(key: &str) -> NewEvent {
    NewEvent::untyped(Topic::new("orders"), "order.placed").with_key(key)
}

pub(crate) fn consumer(name: &str) -> ConsumerName {
    ConsumerName::parse(name).unwrap()
}

pub(crate) fn schema(name: &str) -> SchemaName {
    SchemaName::parse(name).unwrap()
}

pub(crate) const INSERT: &str =
    "INSERT INTO eventloom.outbox (topic, type, key, data) VALUES ('orders', 'order.placed', 'k', '{}')";
