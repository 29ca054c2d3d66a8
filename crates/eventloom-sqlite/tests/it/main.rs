//! The SQLite store against real files, real processes and full disks.
#![allow(clippy::unwrap_used)]

mod child;
mod conformance;
mod defaults;
mod doze;
mod fairness;
mod folder;
mod full;
mod migrations;
mod oracle;
mod plans;
mod prune;
mod read;
mod refusals;
mod transactions;
mod turn;
