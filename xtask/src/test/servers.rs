//! The servers of a run: they start in the background while the first steps compile.

use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

use super::count::Count;
use super::report::Report;
use crate::services::{Keep, Lease, SERVICES, Service};

type Started = Vec<(&'static Service, Result<&'static str>)>;

/// Stops on drop what this run started, unless another run uses it.
pub(super) struct Servers {
    starting: Option<JoinHandle<Started>>,
    variables: Vec<(&'static str, String)>,
    _lease: Lease,
}

impl Servers {
    pub(super) fn start() -> Result<Self> {
        let lease = Lease::take()?;
        let starting = std::thread::spawn(|| {
            SERVICES
                .iter()
                .map(|service| (service, service.up(Keep::ForARun)))
                .collect()
        });
        Ok(Self {
            starting: Some(starting),
            variables: Vec::new(),
            _lease: lease,
        })
    }

    /// Empty before [`wait`](Self::wait).
    pub(super) fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }

    /// Elsewhere a missing server leaves out what needs it; in CI it is a failure.
    pub(super) fn wait(&mut self, report: &mut Report) -> Count {
        let Some(started) = self.starting.take().map(JoinHandle::join) else {
            return Count::default();
        };
        let started = started.unwrap_or_else(|_panic| {
            SERVICES
                .iter()
                .map(|service| (service, Err(anyhow!("starting it panicked"))))
                .collect()
        });
        let mut missing = 0;
        for (service, outcome) in started {
            match outcome {
                Ok(how) => {
                    println!("{:<10} {:<8} {}", service.name, how, service.url());
                    self.variables.extend(service.variables());
                }
                Err(error) => {
                    missing += 1;
                    report.left_out(service.name, &format!("{error:#}"));
                }
            }
        }
        let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        match missing {
            0 => Count::one(true),
            _ if ci => Count::one(false),
            _ => Count::default(),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // The lease ends after this: a start that is under way must not outlive it.
        if let Some(starting) = self.starting.take() {
            let _panicked = starting.join();
        }
    }
}
