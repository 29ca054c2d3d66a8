//! PgBouncer in transaction mode in front of a Postgres: the strict peer, no session state survives a transaction.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::account::Account;
use super::service::Service;

/// The command that pools connections to `behind`.
pub(super) fn server(service: &Service, behind: &Service, program: &Path) -> Result<Command> {
    let account = Account::for_folder(&service.folder(), program)?;
    let file = service.folder().join("pgbouncer.ini");
    fs::write(&file, configuration(service.port, behind.port)).with_context(|| file.display().to_string())?;
    account.own(&file)?;
    let mut command = account.command(program);
    command.arg(file);
    Ok(command)
}

fn configuration(port: u16, postgres: u16) -> String {
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={postgres} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         ; Two, so that a test with three clients already shares: what leans on a session breaks at once.\n\
         default_pool_size = 2\n\
         max_client_conn = 500\n\
         ; Each test has a database of its own: idle connections to the finished ones must go.\n\
         server_idle_timeout = 10\n\
         ignore_startup_parameters = extra_float_digits,options\n\
         admin_users = postgres\n"
    )
}
