//! Stores for tests: a file in a folder of its own, or a database of its own, both gone at the end.

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use std::{
    future::Future,
    path::{Path, PathBuf},
};
use uuid::Uuid;

const SERVER: &str = "EVENTLOOM_TEST_PG15";

/// A folder that is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("eventloom-cli-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A place for a store; nothing is migrated yet.
pub(crate) struct TestStore {
    folder: Folder,
    url: String,
    /// URL of the server, and the database on it.
    database: Option<(String, String)>,
}

/// Runs a test on SQLite, and on Postgres where a server is named.
pub(crate) fn on_each(name: &str, test: impl Fn(&TestStore)) {
    test(&TestStore::sqlite());
    on_postgres(name, test);
}

/// Runs a test on Postgres where a server is named.
pub(crate) fn on_postgres(name: &str, test: impl Fn(&TestStore)) {
    match std::env::var(SERVER) {
        Ok(server) => test(&TestStore::postgres(server)),
        Err(_) => println!("left out: {name}: {SERVER} is not set"),
    }
}

impl TestStore {
    pub(crate) fn sqlite() -> Self {
        let folder = Folder::new();
        let url = format!("sqlite://{}", folder.path().join("shop.db").display());
        TestStore {
            folder,
            url,
            database: None,
        }
    }

    fn postgres(server: String) -> Self {
        let database = format!("eventloom_cli_{}", Uuid::new_v4().simple());
        block_on(async {
            let mut admin = PgConnection::connect(&server).await.unwrap();
            let create = AssertSqlSafe(format!("CREATE DATABASE {database}"));
            sqlx::raw_sql(create).execute(&mut admin).await.unwrap();
        });
        let (begin, _) = server.rsplit_once('/').unwrap();
        let url = format!("{begin}/{database}");
        TestStore {
            folder: Folder::new(),
            url,
            database: Some((server, database)),
        }
    }

    /// The same database through a pooler, which is named by the URL of any database behind it.
    pub(crate) fn url_through(&self, pooler: &str) -> String {
        let (begin, _) = pooler.rsplit_once('/').unwrap();
        let (_, database) = self.database.as_ref().unwrap();
        format!("{begin}/{database}")
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.database.is_some()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs SQL, past Eventloom. `{t}` stands for what comes before the name of a table.
    pub(crate) fn execute(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.replace("{t}", if self.is_postgres() { "eventloom." } else { "eventloom_" }));
        block_on(async {
            if self.is_postgres() {
                let mut connection = PgConnection::connect(&self.url).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            } else {
                let mut connection = SqliteConnection::connect(&format!("{}?mode=rwc", self.url))
                    .await
                    .unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
        });
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Some((server, database)) = &self.database {
            block_on(async {
                let mut admin = PgConnection::connect(server).await.unwrap();
                let remove = AssertSqlSafe(format!("DROP DATABASE {database} WITH (FORCE)"));
                sqlx::raw_sql(remove).execute(&mut admin).await.unwrap();
            });
        }
    }
}

/// Tasks go on while the calling thread waits for a program.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}
