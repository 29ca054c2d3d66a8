//! Telling an outage from poison: when most distinct keys fail, the messages are not to blame.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

/// Outcomes that are looked back on.
const WINDOW: usize = 64;
/// Distinct failing keys below which it is poison, not an outage.
const KEYS_MIN: usize = 8;
const PROBE_FIRST: Duration = Duration::from_millis(250);
const PROBE_MOST: Duration = Duration::from_secs(15);

/// A consumer's recent outcomes by key, in one process.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    recent: VecDeque<(u64, bool)>,
    /// Since when nothing but probes runs, when the next one may, and how many have failed.
    open: Option<(Instant, Instant, u32)>,
}

impl Outage {
    /// A message of this key was handled. Returns `true` when that ended an outage.
    pub(crate) fn succeeded(&mut self, key: &str) -> bool {
        self.push(key, true);
        if self.open.take().is_some() {
            self.recent.clear();
            return true;
        }
        false
    }

    /// A message of this key failed, and trying again may help. Returns `true` when that began an outage.
    pub(crate) fn failed(&mut self, key: &str, now: Instant) -> bool {
        self.push(key, false);
        if let Some((_, next, failed)) = &mut self.open {
            *failed += 1;
            *next = now + PROBE_FIRST.saturating_mul(1 << (*failed).min(16)).min(PROBE_MOST);
            return false;
        }
        let mut keys: HashMap<u64, bool> = HashMap::new();
        for (key, ok) in &self.recent {
            // The last outcome of a key counts.
            keys.insert(*key, *ok);
        }
        let failing = keys.values().filter(|ok| !**ok).count();
        if failing >= KEYS_MIN && failing * 2 > keys.len() {
            self.open = Some((now, now + PROBE_FIRST, 0));
            return true;
        }
        false
    }

    /// Whether only probes run now.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// How long until the next probe may run; `None` when there is no outage.
    pub(crate) fn probe_in(&self, now: Instant) -> Option<Duration> {
        self.open.map(|(_, next, _)| next.saturating_duration_since(now))
    }

    fn push(&mut self, key: &str, ok: bool) {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back((hasher.finish(), ok));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_key_is_poison_and_many_are_an_outage() {
        let mut outage = Outage::default();
        for _ in 0..100 {
            assert!(!outage.failed("the one bad key", Instant::now()));
        }
        for n in 0..30 {
            outage.succeeded(&format!("k{n}"));
        }
        let began: Vec<_> = (0..31)
            .filter(|n| outage.failed(&format!("k{n}"), Instant::now()))
            .collect();
        assert_eq!(began.len(), 1, "it begins once");
        assert!(outage.is_open());
        assert!(outage.succeeded("k1"), "one success ends it");
        assert!(!outage.is_open());
    }

    #[test]
    fn poison_in_a_hundred_is_no_outage() {
        let mut outage = Outage::default();
        for n in 0..5000 {
            let key = format!("k{n}");
            if n % 100 == 0 {
                assert!(!outage.failed(&key, Instant::now()));
            } else {
                outage.succeeded(&key);
            }
        }
    }
}
