//! The servers that tests talk to: installed when missing, started on loopback, stopped by the one that started them.

mod account;
mod install;
mod lease;
mod pgbouncer;
mod postgres;
mod process;
mod service;
mod state;

use std::process::ExitCode;

use anyhow::{Result, bail};

pub(crate) use lease::Lease;
pub(crate) use service::{SERVICES, Service};
pub(crate) use state::Keep;

/// `services up`: the named ones, or all; they stay until `down`.
pub(crate) fn up_command(names: &[&str]) -> Result<ExitCode> {
    let chosen = choose(names)?;
    let mut code = ExitCode::SUCCESS;
    for service in chosen {
        match service.up(Keep::UntilDown) {
            Ok(how) => println!("{:<10} {:<8} {}", service.name, how, service.url()),
            Err(error) => {
                eprintln!("{:<10} missing: {error:#}", service.name);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// `services down`: all that was started under this target folder and still runs.
pub(crate) fn down_command() -> Result<ExitCode> {
    for service in SERVICES.iter().rev() {
        let stopped = service.down()?;
        println!(
            "{:<10} {}",
            service.name,
            if stopped { "stopped" } else { "not running" }
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// `services env`: `export` lines for a shell; a server that does not answer is a comment.
pub(crate) fn env_command() -> Result<ExitCode> {
    for service in SERVICES {
        if service.answers() {
            for (name, value) in service.variables() {
                println!("export {name}='{value}'");
            }
        } else {
            println!(
                "# {} does not answer: cargo xtask services up {}",
                service.name, service.name
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn choose(names: &[&str]) -> Result<Vec<&'static Service>> {
    for name in names {
        if !SERVICES.iter().any(|service| service.name == *name) {
            let known: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
            bail!("no service is called {name}; there are {}", known.join(", "));
        }
    }
    let named = |name: &str| names.is_empty() || names.contains(&name);
    let needed = |name: &str| {
        SERVICES
            .iter()
            .any(|service| named(service.name) && service.needs == Some(name))
    };
    Ok(SERVICES
        .iter()
        .filter(|service| named(service.name) || needed(service.name))
        .collect())
}
