//! Eventloom's store on SQLite: one file, nothing else installed.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("eventloom-guide-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("shop.db");
//! use eventloom_core::{NewEvent, Topic, ports::Outbox};
//! use eventloom_sqlite::{MigrateOptions, Sqlite, migrate};
//!
//! migrate(&path, MigrateOptions::default()).await?; // tables are made here and nowhere else
//! let store = Sqlite::connect(&path).await?;
//!
//! let mut tx = store.begin_write().await?; // BEGIN IMMEDIATE, after those who came before
//! let event = NewEvent::untyped(Topic::new("orders"), "order.placed").with_key("order-17");
//! Sqlite::append(&Default::default(), &mut tx, &[event]).await?;
//! tx.commit().await?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! What SQLite is, and what follows from it here:
//!
//! - **One writer at a time.** The order of positions is the order of commits, so every committed row is visible to the
//!   next reader and the horizon is the last position. Write transactions must be short.
//! - **Writers queue.** SQLite's own waiting is unfair between processes, so ours stand in line at two lock files beside the
//!   database before they begin ([`Sqlite::begin_write`]).
//! - **A transaction that reads first cannot write later** once another one has written
//!   ([`StoreErrorKind::ReadTransaction`](eventloom_core::StoreErrorKind::ReadTransaction)): begin it with BEGIN IMMEDIATE.
//! - **A change of the `-wal` file wakes** readers of other processes, not a query.
//! - **The lane of a row is computed by its reader**: SQLite has no MD5, so there is no column for it.
//!
//! # What the tables cannot refuse
//!
//! Rows of the log are facts: UPDATE, DELETE, INSERT OR REPLACE and positions that were handed out before are refused to
//! every program. SQLite has no roles, so whoever may write the file can still drop the triggers or the tables, open the
//! pruner's door (`eventloom_pruning`) and delete, lower `sqlite_sequence`, or insert at a position above the last one. The
//! last leaves a hole, which harms no reader.
//!
//! # Read on
//!
//! 1. `migrations/`: the tables, and the triggers that keep rows facts.
//! 2. [`Sqlite`]: the store, how it is opened, and what it checks then.
//! 3. `turn.rs` and `transaction.rs`: how writers of all processes stand in line.
//! 4. `log.rs` and `wake.rs`: reading the log, and sleeping beside it without missing a commit.
//! 5. `leases.rs`, `inbox.rs`, `held.rs`: who may move which cursor, what was handled, what waits.

mod dead_letters;
mod error;
mod held;
mod inbox;
mod leases;
mod log;
mod migrate;
mod once;
mod opening;
mod outbox;
mod prune;
mod readers;
mod relays;
mod rows;
mod store;
mod transaction;
mod turn;
mod wake;

pub use migrate::{MigrateError, MigrateOptions, Migrated, migrate, migration_sql};
pub use store::{OpenError, Sqlite, SqliteBuilder, Tables};
pub use transaction::SqliteTransaction;

/// Every statement that is run over a table which grows, by name: for tests of their plans.
#[doc(hidden)]
pub fn shipped_statements() -> Vec<(&'static str, &'static str)> {
    let all = [
        log::STATEMENTS,
        prune::STATEMENTS,
        leases::STATEMENTS,
        inbox::STATEMENTS,
        held::STATEMENTS,
        dead_letters::STATEMENTS,
        readers::STATEMENTS,
    ];
    all.concat()
}
