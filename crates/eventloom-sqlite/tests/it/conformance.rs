//! The suite that every store passes.

use crate::folder::Folder;
use eventloom_core::ports::Store;
use eventloom_sqlite::Sqlite;
use eventloom_testkit::store::{Capabilities, Fixture, fill_in};
use sqlx::AssertSqlSafe;

/// A folder of databases, and whether the engine's cases publish each message twice.
struct Scratch(Folder, bool);

impl Scratch {
    async fn new() -> Option<Self> {
        Some(Scratch(Folder::new(), false))
    }

    async fn doubling() -> Option<Self> {
        Some(Scratch(Folder::new(), true))
    }
}

impl Fixture for Scratch {
    type Store = Sqlite;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            concurrent_writers: false,
            terminates_former_owners: false,
        }
    }

    fn doubles(&self) -> bool {
        self.1
    }

    async fn fresh(&self) -> Sqlite {
        self.0.another_store().await
    }

    async fn again(&self, store: &Sqlite) -> Sqlite {
        Sqlite::connect(store.place()).await.unwrap()
    }

    async fn execute(&self, store: &Sqlite, statement: &str) {
        let sql = fill_in(statement, |table| format!("eventloom_{table}"));
        sqlx::query(AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
    }
}

eventloom_testkit::store_conformance!(Scratch::new().await);

/// The engine on this store.
mod engine {
    use super::Scratch;
    eventloom_testkit::engine_conformance!(Scratch::new().await);
}

/// The same with every message delivered twice.
mod engine_doubled {
    use super::Scratch;
    eventloom_testkit::engine_conformance!(Scratch::doubling().await);
}
