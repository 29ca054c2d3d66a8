//! The store against real servers: Postgres 15 and 18, and PgBouncer in transaction mode.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cluster;
mod conformance;
mod ended;
mod facts;
mod full;
mod opening;
mod oracle;
mod plans;
mod pruning;
mod servers;
mod sleeping;
mod standby;
mod takeover;
