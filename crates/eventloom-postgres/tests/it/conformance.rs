//! The conformance suites of the store ports and of the engine, on each server and through the pooler.

use crate::servers::{BOUNCER, DIRECT, Database, Server, number, run, schema};
use eventloom_core::{SchemaName, ports::Store};
use eventloom_postgres::{MigrateOptions, Postgres, migrate};
use eventloom_testkit::{
    engine,
    store::{self, Capabilities, Fixture, Report, fill_in},
};
use sqlx::{Connection, postgres::PgConnectOptions};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

/// The databases of one run: a case gets them emptied, since making and dropping one costs a checkpoint each.
#[derive(Clone)]
struct Scratch {
    admin: PgConnectOptions,
    through: PgConnectOptions,
    pooled: bool,
    /// Another one than the default on one of the servers: everything must be found under whatever name it has.
    schema: SchemaName,
    /// Connections of each store's pool.
    connections: u32,
    /// Whether the engine's cases publish each message twice.
    doubles: bool,
    made: Arc<Mutex<Vec<Database>>>,
    /// How many of them the case uses.
    used: Arc<AtomicUsize>,
}

impl Scratch {
    fn on(server: Server) -> Option<Self> {
        let through = server.url()?;
        // The pooler stands in front of the first.
        let admin = if server == BOUNCER {
            DIRECT[0].url()?
        } else {
            through.clone()
        };
        let pooled = server == BOUNCER;
        Some(Scratch {
            admin,
            through,
            pooled,
            schema: if server == DIRECT[1] {
                schema("shop_events")
            } else {
                SchemaName::default()
            },
            connections: if pooled { 2 } else { 8 },
            doubles: false,
            made: Arc::default(),
            used: Arc::default(),
        })
    }

    async fn open(&self, database: &Database) -> Postgres {
        let pool = database.pool(self.connections).await.unwrap();
        let builder = Postgres::builder(pool).schema(self.schema.clone());
        let builder = if self.pooled { builder.pooled() } else { builder };
        builder.open().await.unwrap()
    }

    async fn next(&self) -> Database {
        let nth = self.used.fetch_add(1, Ordering::SeqCst);
        if let Some(database) = self.made.lock().unwrap().get(nth) {
            return database.clone();
        }
        let database = Database::create(&self.admin, &self.through).await.unwrap();
        self.made.lock().unwrap().push(database.clone());
        database
    }

    fn made(&self) -> Vec<Database> {
        self.made.lock().unwrap().clone()
    }

    fn database_of(&self, store: &Postgres) -> Database {
        let name = store.pool().connect_options().get_database().unwrap().to_owned();
        self.made().into_iter().find(|database| database.name == name).unwrap()
    }
}

impl Fixture for Scratch {
    type Store = Postgres;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            concurrent_writers: true,
            terminates_former_owners: !self.pooled,
        }
    }

    fn doubles(&self) -> bool {
        self.doubles
    }

    async fn fresh(&self) -> Postgres {
        let database = self.next().await;
        let mut connection = database.connect().await.unwrap();
        let empty = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        run(&mut connection, &empty).await.unwrap();
        connection.close().await.unwrap();
        let options = MigrateOptions::default().schema(self.schema.clone());
        migrate(&database.pool(1).await.unwrap(), options).await.unwrap();
        self.open(&database).await
    }

    async fn again(&self, store: &Postgres) -> Postgres {
        self.open(&self.database_of(store)).await
    }

    async fn execute(&self, store: &Postgres, statement: &str) {
        let schema = store.tables().schema().clone();
        let mut connection = self.database_of(store).connect().await.unwrap();
        run(
            &mut connection,
            &fill_in(statement, |table| format!("{schema}.{table}")),
        )
        .await
        .unwrap();
        connection.close().await.unwrap();
    }

    /// Ends what the case has left open, also in other processes' stores: the next one empties the tables.
    async fn clean_up(&self) {
        self.used.store(0, Ordering::SeqCst);
        for database in self.made() {
            let mut connection = database.connect().await.unwrap();
            let others = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                           WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
            number(&mut connection, others).await.unwrap();
            connection.close().await.unwrap();
        }
    }
}

/// Which suite is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suite {
    Store,
    Engine,
    /// With every message delivered twice.
    EngineDoubled,
    /// With one connection for each store: everything has to give it back before it waits for anything else.
    EngineOnOneConnection,
}

fn conforms(server: Server, suite: Suite) {
    let Some(mut scratch) = Scratch::on(server) else { return };
    scratch.doubles = suite == Suite::EngineDoubled;
    if suite == Suite::EngineOnOneConnection {
        scratch.connections = 1;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let report: Report = match suite {
            Suite::Store => store::run_all(async || scratch.clone()).await,
            _ => engine::run_all(async || scratch.clone()).await,
        };
        for database in scratch.made() {
            database.drop().await.unwrap();
        }
        assert!(report.failed.is_empty(), "{} {suite:?}: {report}", server.name);
    });
}

#[test]
fn store_on_postgres_15() {
    conforms(DIRECT[0], Suite::Store);
}

#[test]
fn store_on_postgres_18() {
    conforms(DIRECT[1], Suite::Store);
}

#[test]
fn store_through_pgbouncer() {
    conforms(BOUNCER, Suite::Store);
}

#[test]
fn engine_on_postgres_15() {
    conforms(DIRECT[0], Suite::Engine);
}

#[test]
fn engine_on_postgres_18() {
    conforms(DIRECT[1], Suite::Engine);
}

#[test]
fn engine_through_pgbouncer() {
    conforms(BOUNCER, Suite::Engine);
}

#[test]
fn engine_on_postgres_15_with_everything_delivered_twice() {
    conforms(DIRECT[0], Suite::EngineDoubled);
}

#[test]
fn engine_on_postgres_15_over_one_connection() {
    conforms(DIRECT[0], Suite::EngineOnOneConnection);
}
