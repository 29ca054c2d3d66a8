//! What a run tells: a line for each step, and at its end what failed, what was left out and the sum.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::count::Count;
use super::interrupt;

#[derive(Debug, Default)]
pub(super) struct Report {
    sum: Count,
    failed: Vec<String>,
    left_out: Vec<String>,
}

/// The line before a step's own output.
pub(super) fn begin(name: &str, line: &str) {
    println!("== {name}: {line}");
}

impl Report {
    pub(super) fn left_out(&mut self, name: &str, why: &str) {
        self.left_out.push(format!("{name}: {why}"));
    }

    /// A step that was not run because of a signal.
    pub(super) fn interrupted(&mut self, name: &str) {
        self.failed.push(format!("{name} (not run)"));
        self.sum.failed += 1;
    }

    /// The line after a step. A step that could not be run at all has failed.
    pub(super) fn end(&mut self, name: &str, took: Duration, outcome: Result<Count>) {
        let count = outcome.unwrap_or_else(|error| {
            println!("{error:#}");
            Count::one(false)
        });
        let word = if count.failed > 0 { "FAILED" } else { "ok" };
        println!("== {name}: {word} in {:.1} s", took.as_secs_f64());
        if count.failed > 0 {
            self.failed.push(name.to_owned());
        }
        self.sum += count;
    }

    /// Prints the end of the run; the sum stands alone on the last line.
    pub(super) fn close(mut self) -> ExitCode {
        self.left_out.append(&mut self.sum.ignored);
        println!();
        for left_out in &self.left_out {
            println!("left out: {left_out}");
        }
        for failed in &self.failed {
            println!("failed: {failed}");
        }
        if interrupt::came() {
            println!("interrupted: the rest was not run");
        }
        println!("{} passed, {} failed", self.sum.passed, self.sum.failed);
        if self.sum.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
