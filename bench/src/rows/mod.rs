//! The rows of the table, one file each. A further row is a file and a line here.

mod consume;
mod effects;
mod idle;
mod lane_behind;
mod latency;
mod memory;
mod obix;
mod poison;
mod publish;
mod publish_sqlite;
mod relay;
mod relay_held_back;
mod writers;

use crate::{Bench, figure::Figure};
use anyhow::Result;
use futures::future::LocalBoxFuture;

/// Measures a row.
type Run = for<'a> fn(&'a Bench<'a>) -> LocalBoxFuture<'a, Result<Vec<Figure>>>;

pub(crate) struct Row {
    /// What `--only` takes.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: Run,
}

macro_rules! rows {
    ($($module:ident)*) => {
        &[$(Row { name: $module::NAME, about: $module::ABOUT, run: |bench| Box::pin($module::figures(bench)) }),*]
    };
}

/// In the order of the table.
pub(crate) const ROWS: &[Row] = rows![publish publish_sqlite latency writers consume poison effects lane_behind relay relay_held_back obix memory idle];

pub(crate) fn named(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}
