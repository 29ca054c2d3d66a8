//! A database of its own on a server of Postgres, gone at the end.

use eventloom::{
    Uuid,
    postgres::{MigrateOptions, Postgres, migrate},
};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

pub(crate) const SERVER: &str = "EVENTLOOM_TEST_PG15";
/// In front of the same server.
pub(crate) const POOLER: &str = "EVENTLOOM_TEST_PGBOUNCER";

/// Where a server is; says so when a test is left out.
pub(crate) fn url(test: &str, variable: &str) -> Option<PgConnectOptions> {
    match std::env::var(variable) {
        Ok(url) => Some(url.parse().unwrap()),
        Err(_) => {
            println!("left out: {test}: {variable} is not set");
            None
        }
    }
}

/// A migrated database.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) name: String,
    /// Straight to the server.
    pub(crate) options: PgConnectOptions,
}

impl Database {
    pub(crate) async fn pool(&self, connections: u32) -> PgPool {
        PgPoolOptions::new()
            .max_connections(connections)
            .connect_with(self.options.clone())
            .await
            .unwrap()
    }

    pub(crate) async fn store(&self, connections: u32) -> Postgres {
        Postgres::builder(self.pool(connections).await).open().await.unwrap()
    }
}

async fn execute(options: &PgConnectOptions, sql: String) {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// Removes the database when it is dropped, also by a panic; not on the thread of the test, which is inside of a runtime.
struct Removed {
    admin: PgConnectOptions,
    name: String,
}

impl Drop for Removed {
    fn drop(&mut self) {
        let (admin, drop) = (self.admin.clone(), format!("DROP DATABASE {} WITH (FORCE)", self.name));
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(execute(&admin, drop));
        });
        let _ = removed.join();
    }
}

/// Runs a test in a database of its own, where the server is given.
pub(crate) async fn with_database(name: &str, test: impl AsyncFnOnce(Database)) {
    let Some(admin) = url(name, SERVER) else { return };
    let name = format!("eventloom_test_{}", Uuid::new_v4().simple());
    execute(&admin, format!("CREATE DATABASE {name}")).await;
    let database = Database {
        options: admin.clone().database(&name),
        name: name.clone(),
    };
    let _removed = Removed { admin, name };
    migrate(&database.pool(1).await, MigrateOptions::default())
        .await
        .unwrap();
    test(database).await;
}
