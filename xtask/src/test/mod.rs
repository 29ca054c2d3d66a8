//! `cargo xtask test`: runs every step even if one failed, then says which failed and what was left out.

mod child;
mod count;
mod interrupt;
mod report;
mod servers;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::steps::{STEPS, Step, What, When};
use crate::tidy;
use count::Count;
use report::Report;
use servers::Servers;

pub(crate) fn command(quick: bool) -> Result<ExitCode> {
    interrupt::listen()?;
    let mut report = Report::default();
    // Dropped on every way out, a panic included: that stops the servers.
    let mut servers = Servers::start()?;
    for step in STEPS {
        if interrupt::came() {
            report.interrupted(step.name);
        } else if quick && step.when == When::Full {
            report.left_out(step.name, "--quick");
        } else {
            run(step, &mut servers, &mut report);
        }
    }
    drop(servers);
    Ok(report.close())
}

fn run(step: &Step, servers: &mut Servers, report: &mut Report) {
    let started = Instant::now();
    let variables = servers.variables();
    let outcome = match step.what {
        What::Command(line) => {
            report::begin(step.name, line);
            child::run(line, variables).map(Count::one)
        }
        What::Tests(line) => {
            report::begin(step.name, line);
            child::run_tests(line, variables)
        }
        What::Tidy => tidy::passes().map(Count::one),
        What::Servers => Ok(servers.wait(report)),
    };
    report.end(step.name, started.elapsed(), outcome);
}
