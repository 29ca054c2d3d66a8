//! Stops sending to what does not take anything, and asks now and then whether it does again.

use std::time::{Duration, Instant};

const PROBE_FIRST: Duration = Duration::from_millis(100);
const PROBE_MOST: Duration = Duration::from_secs(15);

/// Whether a broker, or a topic of it, takes messages.
#[derive(Debug, Clone, Default)]
pub(crate) struct Breaker {
    /// When it may be asked again, and how often it has failed in a row.
    open: Option<(Instant, u32)>,
}

impl Breaker {
    /// It took a message. Returns `true` when it had not before.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// It took nothing. Returns `true` when that is new.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        match &mut self.open {
            None => {
                self.open = Some((now + PROBE_FIRST, 0));
                true
            }
            // Several workers find out at the same time: that is one failure.
            Some((next, _)) if *next > now => false,
            Some((next, failed)) => {
                *failed += 1;
                *next = now + PROBE_FIRST.saturating_mul(1 << (*failed).min(16)).min(PROBE_MOST);
                false
            }
        }
    }

    /// How long until it may be asked; `None` when it takes messages.
    pub(crate) fn probe_in(&self, now: Instant) -> Option<Duration> {
        self.open.map(|(next, _)| next.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_once_asks_later_and_closes() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        assert_eq!(breaker.probe_in(now), None);
        assert!(breaker.failed(now));
        assert!(!breaker.failed(now), "found out by somebody else at the same time");
        assert!(breaker.probe_in(now).is_some_and(|wait| wait <= PROBE_FIRST));
        breaker.open = Some((now, 3));
        assert!(!breaker.failed(now));
        assert!(breaker.probe_in(now).is_some_and(|wait| wait > PROBE_FIRST * 8));
        breaker.open = Some((now, 40));
        assert!(!breaker.failed(now));
        assert!(breaker.probe_in(now).is_some_and(|wait| wait <= PROBE_MOST));
        assert!(breaker.succeeded());
        assert!(!breaker.succeeded());
    }
}
