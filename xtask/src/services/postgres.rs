//! A Postgres cluster in a folder of its own: made once, configured anew at each start.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::account::Account;
use super::service::Service;

/// The command that serves from the service's folder, which is made on the first call.
pub(super) fn server(service: &Service, bin: &Path, initdb_flags: &[&str]) -> Result<Command> {
    let data = service.folder();
    let account = Account::for_folder(&data, &bin.join("postgres"))?;
    if !data.join("PG_VERSION").exists() || !data.join(COMPLETE).exists() {
        create(account, bin, &data, initdb_flags)?;
    }
    forget_ended_postmaster(&data)?;
    configure(account, &data, service.port)?;
    let mut command = account.command(bin.join("postgres"));
    command.arg("-D").arg(&data);
    Ok(command)
}

/// Written after initdb: a folder without it is the rest of an interrupted one.
const COMPLETE: &str = "eventloom.complete";

fn create(account: Account, bin: &Path, data: &Path, flags: &[&str]) -> Result<()> {
    for entry in fs::read_dir(data)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir_all(&path)?
        } else {
            fs::remove_file(&path)?
        }
    }
    let mut initdb = account.command(bin.join("initdb"));
    initdb
        .arg("-D")
        .arg(data)
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
    let output = initdb
        .args(flags)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .context("initdb")?;
    if !output.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    write(account, &data.join(COMPLETE), "")
}

/// After a crash `postmaster.pid` stays. If its id belongs to another process by now, Postgres would take that one for
/// a postmaster and refuse to start. A postmaster, and each of its children, has the data folder as its working folder.
fn forget_ended_postmaster(data: &Path) -> Result<()> {
    let file = data.join("postmaster.pid");
    let Ok(text) = fs::read_to_string(&file) else {
        return Ok(());
    };
    let working = text
        .lines()
        .next()
        .map(|pid| fs::read_link(format!("/proc/{}/cwd", pid.trim())));
    match working {
        Some(Ok(folder)) if folder != fs::canonicalize(data)? => fs::remove_file(&file).map_err(Into::into),
        _ => Ok(()),
    }
}

/// The whole file, not additions to the one of initdb: a later version of these lines reaches older folders too.
fn configure(account: Account, data: &Path, port: u16) -> Result<()> {
    let lines = format!(
        "listen_addresses = '127.0.0.1'\n\
         port = {port}\n\
         # A socket in the data folder breaks pg_rewind; one elsewhere may exceed the 107 bytes of a socket's path.\n\
         unix_socket_directories = ''\n\
         max_connections = 200\n\
         shared_buffers = 256MB\n\
         wal_level = logical\n\
         wal_log_hints = on\n\
         max_wal_senders = 10\n\
         max_replication_slots = 20\n\
         max_prepared_transactions = 20\n\
         # Durability is part of what is measured.\n\
         fsync = on\n\
         synchronous_commit = on\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         log_line_prefix = '%m [%p] '\n"
    );
    write(account, &data.join("postgresql.conf"), &lines)
}

fn write(account: Account, file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())?;
    account.own(file)
}
