//! Eventloom's store on Postgres, version 14 and later.
//!
//! Read it in this order:
//!
//! 1. `migrations/`: the tables, and the fence that makes the log readable without gaps.
//! 2. [`Postgres`]: the store, how it is opened, and what it checks then.
//! 3. `log.rs` and `wake.rs`: reading the log, and sleeping beside it without missing a commit.
//! 4. `leases.rs`: who may move which cursor.
//! 5. `inbox.rs`, `held.rs`: what was handled, what waits.
//!
//! # What a log asks of its database
//!
//! - `synchronous_commit` must not be turned off *after* an insert in the same transaction; the fence raises it before.
//! - No two-phase commit of transactions that publish: one that is prepared can notify nobody, and holds readers back
//!   until it is decided.
//! - The log is no target of a logical-replication subscription while it is read: its rows keep the positions of
//!   the other side.
//! - Readers read on the primary. Listening needs a direct connection; without one they poll.
//!
//! # Behind a transaction pooler
//!
//! PgBouncer and its like give each transaction another server connection, so nothing may outlive a transaction: no
//! prepared statement, no `LISTEN`, no setting. [`PostgresBuilder::pooled`] says that the store stands behind one. It
//! then sends unnamed statements only, each inside an explicit transaction, polls instead of listening, and ends no
//! foreign backend. Two things are left to the service:
//!
//! - its own statements on the same connections need `.persistent(false)` too. `statement_cache_capacity(0)` is *not*
//!   enough: sqlx then still gives every statement a name, only never closes it, and the name of one client meets that
//!   of another on the shared server connection;
//! - transactions of its own that publish hand [`Store::tables`](eventloom_core::ports::Store::tables) of the store on,
//!   which know that they are pooled; the default ones prepare named statements.

mod dead_letters;
mod error;
mod held;
mod inbox;
mod leases;
mod log;
mod marks;
mod migrate;
mod once;
mod opening;
mod outbox;
mod prune;
mod readers;
mod relays;
mod renewals;
mod rows;
mod store;
mod transaction;
mod wake;

pub use migrate::{MigrateError, MigrateOptions, Migrated, grants_sql, migrate, migration_sql};
pub use store::{OpenError, Postgres, PostgresBuilder, Tables};
pub use transaction::PostgresTransaction;
