//! How often a message may lose against other transactions before it is its own failure.
//!
//! A deadlock or a serialization failure passes when it is run again, and burns no attempt. A lock that somebody holds for an
//! hour, or a conflict of a database that is not ours, does not pass: then the message is set aside as one that failed, and
//! what shares its batch goes on.

use crate::failure::Failed;
use std::time::{Duration, Instant};

/// Losses in a row that are put down to chance.
const LOSSES_MAX: u32 = 20;

/// The losses of one message, from its first on.
#[derive(Debug)]
pub(crate) struct Losses {
    count: u32,
    /// In real time: the locks that it loses against are real.
    begun: Instant,
    time_max: Duration,
}

/// What follows a loss.
#[derive(Debug)]
pub(crate) enum AfterLoss {
    /// It is run again after this pause.
    Again(Duration),
    /// It has lost often enough by its own handler: it failed.
    Fails(Failed),
    /// The engine's own statements lose, which is no message's fault: the work is left for later.
    Later,
}

impl Losses {
    /// Of a consumer with this lease: half of it is spent at most.
    pub(crate) fn new(lease: Duration) -> Self {
        Losses {
            count: 0,
            begun: Instant::now(),
            time_max: lease / 2,
        }
    }

    /// Counts a loss. `failed` is what the handler returned, when it was the handler that lost.
    pub(crate) fn lost(&mut self, failed: Option<Failed>) -> AfterLoss {
        self.count += 1;
        let spent = self.begun.elapsed();
        if self.count < LOSSES_MAX && spent < self.time_max {
            let ceiling = Duration::from_millis(1 << self.count.min(8));
            return AfterLoss::Again(ceiling.mul_f64(fastrand::f64()));
        }
        match failed {
            Some(failed) => AfterLoss::Fails(Failed::transient(format!(
                "lost against other transactions {} times in {} ms, the last time with: {}",
                self.count,
                spent.as_millis(),
                failed.failure.error
            ))),
            None => AfterLoss::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until_enough(losses: &mut Losses, failed: impl Fn() -> Option<Failed>) -> (u32, AfterLoss) {
        let mut again = 0;
        loop {
            match losses.lost(failed()) {
                AfterLoss::Again(_) => again += 1,
                enough => return (again, enough),
            }
        }
    }

    #[test]
    fn losses_are_bounded() {
        let hour = Duration::from_secs(3600);
        let locked = || Some(Failed::transient("row is locked"));
        let (again, enough) = until_enough(&mut Losses::new(hour), locked);
        assert_eq!(again, LOSSES_MAX - 1);
        assert!(
            matches!(&enough, AfterLoss::Fails(failed) if failed.failure.error.contains("20 times")
                && failed.failure.error.ends_with("row is locked")),
            "{enough:?}"
        );
        let (_, enough) = until_enough(&mut Losses::new(hour), || None);
        assert!(matches!(enough, AfterLoss::Later), "{enough:?}");
        let (again, _) = until_enough(&mut Losses::new(Duration::ZERO), locked);
        assert_eq!(again, 0, "its time is up");
    }
}
