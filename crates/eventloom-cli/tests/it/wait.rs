//! Waiting on a condition: the one place where tests look at the clock.

use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// Polls until `look` finds something, or fails after a minute.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} did not happen within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20)); // pacing: between two looks at the condition
    }
}
