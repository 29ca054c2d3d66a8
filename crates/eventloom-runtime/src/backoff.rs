//! Waiting between attempts: exponential, with full jitter, capped.

use std::time::Duration;

/// Exponential back-off with full jitter: a random wait between nothing and `first * 2^(attempt-1)`, `most` at most.
///
/// Full jitter spreads what failed together, after AWS's "Exponential Backoff and Jitter".
///
/// ```
/// use eventloom_runtime::Backoff;
/// use std::time::Duration;
/// let backoff = Backoff::default().first(Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// Ceiling of the wait after the first attempt.
    pub first: Duration,
    /// Ceiling of all waits.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_millis(500),
            most: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// Sets the ceiling of the wait after the first attempt; 500 ms unless changed.
    #[must_use]
    pub fn first(mut self, wait: Duration) -> Self {
        self.first = wait;
        self
    }

    /// Sets the ceiling of all waits; 5 minutes unless changed.
    #[must_use]
    pub fn most(mut self, wait: Duration) -> Self {
        self.most = wait;
        self
    }

    /// The longest wait that may follow this attempt (counted from 1).
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(30);
        self.first.saturating_mul(1 << doublings).min(self.most)
    }

    /// A wait to follow this attempt.
    pub fn after(&self, attempt: u32) -> Duration {
        self.ceiling(attempt).mul_f64(fastrand::f64())
    }

    /// The longest time that `attempts` attempts can be spread over.
    pub fn horizon(&self, attempts: u32) -> Duration {
        (1..attempts)
            .map(|attempt| self.ceiling(attempt))
            .fold(Duration::ZERO, Duration::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            most: Duration::from_secs(1),
        };
        let ceilings: Vec<_> = (1..=6).map(|attempt| backoff.ceiling(attempt).as_millis()).collect();
        assert_eq!(ceilings, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.horizon(4), Duration::from_millis(700));
        assert!((1..200).all(|attempt| backoff.after(attempt) <= backoff.ceiling(attempt)));
    }
}
