//! `cargo xtask bench`: starts Postgres, and runs the measurements on it, built for release.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::places;
use crate::services::{Keep, Lease, SERVICES};

const SERVER: &str = "pg15";

pub(crate) fn command(arguments: &[&str]) -> Result<ExitCode> {
    // Dropped at the end: that stops the server, unless it was there before.
    let _lease = Lease::take()?;
    let server = SERVICES
        .iter()
        .find(|service| service.name == SERVER)
        .context("no such server")?;
    server.up(Keep::ForARun)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--release", "--quiet", "--package", "bench", "--"])
        .args(arguments)
        .envs(server.variables())
        .current_dir(places::root())
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the measurements failed");
    Ok(ExitCode::SUCCESS)
}
