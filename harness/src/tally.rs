//! What passed and what failed, and the line that says so.

use std::process::ExitCode;

/// Counts the checks of a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    void: Vec<String>,
    silent: bool,
}

impl Tally {
    /// For a run that prints its closing line.
    pub(crate) fn new() -> Self {
        Tally {
            silent: false,
            ..Tally::default()
        }
    }

    /// For a process that is part of a run.
    pub(crate) fn silent() -> Self {
        Tally {
            silent: true,
            ..Tally::default()
        }
    }

    /// Notes one check; `violations` are printed, and none means that it passed.
    pub(crate) fn note(&mut self, what: &str, violations: &[String]) {
        if violations.is_empty() {
            self.passed += 1;
            println!("passed  {what}");
            return;
        }
        self.failed += 1;
        println!("FAILED  {what}");
        for violation in violations.iter().take(20) {
            println!("        {violation}");
        }
        if violations.len() > 20 {
            println!("        … and {} more", violations.len() - 20);
        }
    }

    /// The run proved nothing: too little happened.
    pub(crate) fn void(&mut self, why: String) {
        self.void.push(why);
    }

    /// Whether anything speaks against the run so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed == 0 && self.void.is_empty()
    }

    /// Whether nothing was wrong, and too little happened for that to mean anything.
    pub(crate) fn is_void(&self) -> bool {
        self.failed == 0 && !self.void.is_empty()
    }

    /// Says why the run proves nothing.
    pub(crate) fn tell_void(&self) {
        for why in &self.void {
            println!("VOID    {why}");
        }
    }

    /// Prints the closing line.
    pub(crate) fn close(self) -> ExitCode {
        if self.silent {
            return ExitCode::SUCCESS;
        }
        self.tell_void();
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.is_clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
