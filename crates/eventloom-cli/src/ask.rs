//! What changes much asks first: on a terminal, or with `--yes` where nobody can answer.

use crate::failure::{Exit, Failure};
use std::io::{self, BufRead, IsTerminal, Write};

/// The options of every verb that changes much.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Consent {
    /// Do it without asking
    #[arg(long, short = 'y')]
    yes: bool,
    /// Say what would be done, and do nothing
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
}

impl Consent {
    /// Asks, unless the answer was given on the command line.
    pub(crate) fn ask(self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(
                Failure::usage(format!("this needs a yes, and there is no terminal to ask on: {what}"))
                    .next("add --yes, or --dry-run to see what would be done"),
            );
        }
        let mut answer = String::new();
        let asked = write!(io::stderr(), "{what}? [y/N] ").and_then(|()| io::stdin().lock().read_line(&mut answer));
        match asked {
            Ok(_) if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") => Ok(()),
            _ => Err(Failure::new("nothing was changed")),
        }
    }

    /// Says what would be done, when only that was asked for.
    pub(crate) fn only_told(self, what: &str) -> Option<Exit> {
        self.dry_run.then(|| {
            crate::output::talk(&format!("dry run: {what}; nothing was changed"));
            Exit::Done
        })
    }
}
