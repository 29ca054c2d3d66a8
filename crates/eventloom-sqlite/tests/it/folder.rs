//! A folder with a migrated database in it, gone at the end.

use eventloom_core::{
    NewEvent, Payload, Position, Topic,
    ports::{Log, Outbox, ReadLimits},
};
use eventloom_sqlite::{MigrateOptions, Sqlite, SqliteTransaction, Tables, migrate};
use sqlx::SqliteConnection;
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(crate) const TOPIC: Topic = Topic::new("orders");

/// Dropped last: declare it before what uses it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("eventloom-sqlite-{}", eventloom_core::Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("test.db")
    }

    /// A store on new tables.
    pub(crate) async fn store(&self) -> Sqlite {
        migrate(self.database(), MigrateOptions::default()).await.unwrap();
        Sqlite::connect(self.database()).await.unwrap()
    }

    /// A store on new tables in a file of its own.
    pub(crate) async fn another_store(&self) -> Sqlite {
        let path = self.0.join(format!("{}.db", eventloom_core::Uuid::new_v4()));
        migrate(&path, MigrateOptions::default()).await.unwrap();
        Sqlite::connect(&path).await.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn event(key: &str) -> NewEvent {
    NewEvent::untyped(TOPIC, "order.placed")
        .with_key(key)
        .with_payload(Payload::Json(r#"{"total": "12.50"}"#.to_owned()))
}

pub(crate) async fn append(tx: &mut SqliteTransaction, events: &[NewEvent]) {
    append_to(tx, events).await;
}

pub(crate) async fn append_to(connection: &mut SqliteConnection, events: &[NewEvent]) {
    Sqlite::append(&Tables::default(), connection, events).await.unwrap();
}

/// Positions and ids of everything after `after`.
pub(crate) async fn read_all(store: &Sqlite, mut after: Position) -> Vec<(i64, String)> {
    let mut all = Vec::new();
    loop {
        let page = store.read_after(after, ReadLimits::default()).await.unwrap();
        all.extend(page.rows.iter().map(|row| (row.position.0, row.envelope.id.clone())));
        after = page.scanned_to;
        if page.rows.is_empty() {
            return all;
        }
    }
}

/// Waits for a condition, looking every few milliseconds; fails when it does not come true in two minutes.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // pacing: between looks
    }
}
