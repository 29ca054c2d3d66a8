//! Runs cases: each as a test of its own, or all of them into a report.

use super::{
    cases::{NAMES, cases},
    check::{Failed, Outcome},
    fixture::Fixture,
};
use futures::FutureExt;
use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, pin::Pin, time::Duration};

/// A case that runs for longer hangs.
const CASE_SECONDS_MAX: u64 = 120;

/// A case, ready to be run with a fixture.
pub(crate) struct Case<F> {
    pub(crate) name: &'static str,
    pub(crate) run: for<'a> fn(&'a F) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>,
}

/// What became of all cases.
#[derive(Debug, Default)]
pub struct Report {
    /// Names of cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of cases that failed, with the reason.
    pub failed: Vec<(&'static str, Failed)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, why) in &self.failed {
            writeln!(f, "{name}: {why}")?;
        }
        write!(f, "{} cases passed, {} failed", self.passed.len(), self.failed.len())
    }
}

/// Runs every case, one after the other. `fixture` makes one fixture for each.
///
/// Needs a tokio runtime with time and I/O, as the store itself may.
pub async fn run_all<F: Fixture>(fixture: impl AsyncFnMut() -> F) -> Report {
    run_cases(cases::<F>(), fixture).await
}

/// Names those that are to run, by parts of their names with commas between: for who works on one of them.
const CASES_VARIABLE: &str = "EVENTLOOM_CASES";

/// Runs the cases of any suite, one after the other; those that `EVENTLOOM_CASES` names when it is set.
pub(crate) async fn run_cases<F: Fixture>(cases: Vec<Case<F>>, mut fixture: impl AsyncFnMut() -> F) -> Report {
    let mut report = Report::default();
    let only = std::env::var(CASES_VARIABLE).unwrap_or_default();
    let is_named = |case: &Case<F>| only.split(',').any(|part| case.name.contains(part));
    for case in cases.into_iter().filter(is_named) {
        match run_and_clean_up(&case, &fixture().await).await {
            Ok(()) => report.passed.push(case.name),
            Err(failed) => report.failed.push((case.name, failed)),
        }
    }
    report
}

/// Runs the case of that name (`topic::case`).
pub async fn run_one<F: Fixture>(name: &str, fixture: &F) -> Outcome {
    match cases::<F>().into_iter().find(|case| case.name == name) {
        Some(case) => (case.run)(fixture).await,
        None => Err(Failed::new(format!("there is no case {name:?}"))),
    }
}

/// Runs a case as the body of a test, in a runtime of its own. Returns when the fixture is not available.
///
/// # Panics
/// When the case fails: that is how a test does.
pub fn test<F: Fixture>(name: &str, fixture: impl Future<Output = Option<F>>) {
    run_case(name, fixture, async |fixture: &F| run_one(name, fixture).await);
}

/// Runs a case of any suite as the body of a test, within its time, and cleans up.
///
/// # Panics
/// When the case fails.
pub(crate) fn run_case<F: Fixture>(
    name: &str,
    fixture: impl Future<Output = Option<F>>,
    case: impl AsyncFnOnce(&F) -> Outcome,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = runtime.map_err(Failed::from).and_then(|runtime| {
        runtime.block_on(async {
            match fixture.await {
                Some(fixture) => within_limits(&fixture, case(&fixture)).await,
                None => Ok(()),
            }
        })
    });
    if let Err(failed) = outcome {
        panic!("{name}: {failed}");
    }
}

async fn run_and_clean_up<F: Fixture>(case: &Case<F>, fixture: &F) -> Outcome {
    within_limits(fixture, (case.run)(fixture)).await
}

async fn within_limits<F: Fixture>(fixture: &F, case: impl Future<Output = Outcome>) -> Outcome {
    let limit = Duration::from_secs(CASE_SECONDS_MAX);
    let run = AssertUnwindSafe(tokio::time::timeout(limit, case)).catch_unwind();
    let outcome = match run.await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Failed::new(format!(
            "it was not done after {CASE_SECONDS_MAX} s: something waits for ever"
        ))),
        Err(panic) => Err(Failed::new(format!("it panicked: {}", text_of(panic.as_ref())))),
    };
    fixture.clean_up().await;
    outcome
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// Names of all cases, in the order in which [`run_all`] runs them.
pub fn case_names() -> &'static [&'static str] {
    NAMES
}
