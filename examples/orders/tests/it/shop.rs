//! Runs the two programs in a folder of the test's own.

#![allow(clippy::unwrap_used)]

use orders_ledger::Database;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A folder under the target folder, gone when the test ends well.
pub(crate) struct Shop {
    folder: PathBuf,
    store: Option<String>,
    broker: Option<Database>,
}

/// What a run of a program came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) text: String,
}

impl Shop {
    pub(crate) fn new(name: &str) -> Self {
        let folder = format!("{name}-{:08x}", fastrand::u32(..));
        Shop {
            folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder),
            store: None,
            broker: None,
        }
    }

    pub(crate) fn on(name: &str, store: String) -> Self {
        let mut shop = Shop::new(name);
        shop.store = Some(store);
        shop
    }

    /// The groups follow the log of another database.
    pub(crate) fn with_broker(mut self, broker: Option<String>) -> Self {
        self.broker = Some(match broker {
            Some(url) => Database::Postgres(url),
            None => Database::Sqlite(self.file("market.db")),
        });
        self
    }

    fn command(&self, program: &Path, arguments: &str) -> Command {
        let mut command = Command::new(program);
        command
            .arg("--data")
            .arg(&self.folder)
            .args(arguments.split_whitespace());
        command.env_remove("ORDERS_STORE").stdin(Stdio::null());
        if let Some(store) = &self.store {
            command.env("ORDERS_STORE", store);
        }
        match &self.broker {
            Some(Database::Postgres(url)) => command.env("ORDERS_BROKER", url),
            Some(Database::Sqlite(path)) => command.arg("--broker").arg(path),
            None => command.env_remove("ORDERS_BROKER"),
        };
        command
    }

    /// `orders` with these arguments, to its end.
    pub(crate) fn orders(&self, arguments: &str) -> Ran {
        Ran::of(
            self.command(Path::new(env!("CARGO_BIN_EXE_orders")), arguments)
                .output()
                .unwrap(),
        )
    }

    /// `orders` with these arguments, begun.
    pub(crate) fn begin(&self, arguments: &str) -> Child {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_orders")), arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The mailer's file.
    pub(crate) fn mailbox(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let is_mail = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("mail-");
        entries.find(is_mail).unwrap()
    }

    /// Changes the SQLite file by hand.
    pub(crate) async fn tamper(&self, sql: &'static str) {
        let options = SqliteConnectOptions::new().filename(self.file("orders.db"));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        let done = sqlx::query(sql).execute(&mut connection).await.unwrap();
        assert!(done.rows_affected() > 0, "nothing was changed by {sql}");
        connection.close().await.unwrap();
    }

    /// Sets a customer's digest by hand.
    pub(crate) async fn set_digest(&self, customer: &str, digest: i64) {
        let options = SqliteConnectOptions::new().filename(self.file("orders.db"));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        let query = sqlx::query("UPDATE totals SET digest = $1 WHERE customer = $2")
            .bind(digest)
            .bind(customer);
        query.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Orders placed so far, as the table says; 0 when there is none yet.
    pub(crate) async fn placed(&self) -> i64 {
        let options = SqliteConnectOptions::new().filename(self.file("orders.db"));
        let Ok(mut connection) = SqliteConnection::connect_with(&options).await else {
            return 0;
        };
        sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&mut connection)
            .await
            .unwrap_or(0)
    }

    /// The ledger, by its own library.
    pub(crate) async fn ledger(&self) -> orders_ledger::Ledger {
        let database = match &self.store {
            Some(url) => Database::Postgres(url.clone()),
            None => Database::Sqlite(self.file("orders.db")),
        };
        let effects = self.broker.as_ref().unwrap_or(&database);
        let input =
            orders_ledger::Input::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cdnow.txt.gz")).unwrap();
        orders_ledger::examine(&database, effects, &self.folder, &input)
            .await
            .unwrap()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        // After a failure the folder is what there is to look at.
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ran {
            code: output.status.code(),
            text: text.into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn ended(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for text in says {
            assert!(self.text.contains(text), "{text:?} is not in:\n{}", self.text);
        }
    }
}

/// Waits for a condition, with a deadline.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "waited too long for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // pacing: the condition is asked again
    }
}
