//! Which keys most messages have at the moment, in bounded memory: a Space-Saving sketch that forgets by halves.
//!
//! Metwally, Agrawal, El Abbadi, *Efficient Computation of Frequent and Top-k Elements in Data Streams* (ICDT 2005). Of
//! each key in the sketch it is known that `weight - excess <= true <= weight`, where the excess is at most the total
//! divided by the counters; so every key with more than that share of all messages is in the sketch. A halving multiplies
//! both sides of each inequality: they hold of messages that count half as much with every half-life.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

/// Keys that are watched: one that has a 64th of the messages is never missed, and looking through them costs tens of
/// nanoseconds.
const COUNTERS: usize = 64;
/// After a minute a message counts half.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// What is kept of a key; other programs may write any.
const KEY_BYTES_MAX: usize = 256;

/// A key that many messages have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKey {
    /// The key; of a long one its first 256 bytes.
    pub key: String,
    /// How many messages, at most. One of a minute ago counts half, one of two minutes ago a quarter.
    pub messages: u64,
    /// How many of these it may not have had: at least `messages - too_many_at_most` are its own.
    pub too_many_at_most: u64,
}

#[derive(Debug)]
struct Counter {
    hash: u64,
    /// Of the whole key: what is kept of it may be less.
    bytes: usize,
    key: Box<str>,
    weight: f64,
    excess: f64,
}

/// The sketch of one consumer or relay in one process.
#[derive(Debug)]
pub(crate) struct HotKeys {
    hasher: RandomState,
    counters: Vec<Counter>,
    total: f64,
    halved: Instant,
}

impl HotKeys {
    pub(crate) fn new(now: Instant) -> Self {
        HotKeys {
            hasher: RandomState::new(),
            counters: Vec::new(),
            total: 0.0,
            halved: now,
        }
    }

    /// Counts the keys of a batch. A key costs an allocation only when it enters the sketch.
    pub(crate) fn count<'k>(&mut self, keys: impl IntoIterator<Item = &'k str>, now: Instant) {
        self.halve(now);
        // Messages of one key often stand together.
        let mut run: Option<(&str, f64)> = None;
        for key in keys {
            match &mut run {
                Some((same, messages)) if *same == key => *messages += 1.0,
                _ => {
                    if let Some((ended, messages)) = run.replace((key, 1.0)) {
                        self.add(ended, messages);
                    }
                }
            }
        }
        if let Some((key, messages)) = run {
            self.add(key, messages);
        }
    }

    /// The hottest, at most this many; those that would be shown with nothing of their own are left out.
    pub(crate) fn hottest(&mut self, most: usize, now: Instant) -> Vec<HotKey> {
        self.halve(now);
        let shown = |counter: &Counter| {
            let messages = counter.weight.ceil();
            let too_many = (messages - (counter.weight - counter.excess)).ceil();
            HotKey {
                key: counter.key.to_string(),
                messages: messages as u64,
                too_many_at_most: too_many as u64,
            }
        };
        let mut keys: Vec<HotKey> = self.counters.iter().map(shown).collect();
        keys.retain(|key| key.messages > key.too_many_at_most);
        keys.sort_by(|a, b| b.messages.cmp(&a.messages).then_with(|| a.key.cmp(&b.key)));
        keys.truncate(most);
        keys
    }

    fn add(&mut self, key: &str, messages: f64) {
        self.total += messages;
        let hash = self.hasher.hash_one(key);
        let kept = kept(key);
        let same = |counter: &&mut Counter| counter.hash == hash && counter.bytes == key.len() && *counter.key == *kept;
        if let Some(counter) = self.counters.iter_mut().find(same) {
            counter.weight += messages;
            return;
        }
        let excess = if self.counters.len() < COUNTERS {
            0.0
        } else {
            // The lightest makes room, and what it had may have been the new one's.
            let lightest = (0..COUNTERS).min_by(|a, b| self.counters[*a].weight.total_cmp(&self.counters[*b].weight));
            self.counters.swap_remove(lightest.unwrap_or_default()).weight
        };
        self.counters.push(Counter {
            hash,
            bytes: key.len(),
            key: kept.into(),
            weight: excess + messages,
            excess,
        });
    }

    /// Halving a float loses nothing, so that the bounds stay exact.
    fn halve(&mut self, now: Instant) {
        let lives = now.saturating_duration_since(self.halved).as_secs() / HALF_LIFE.as_secs();
        if lives == 0 {
            return;
        }
        self.halved += HALF_LIFE * u32::try_from(lives).unwrap_or(u32::MAX);
        let factor = 0.5_f64.powi(i32::try_from(lives.min(1000)).unwrap_or(1000));
        self.total *= factor;
        for counter in &mut self.counters {
            counter.weight *= factor;
            counter.excess *= factor;
        }
    }
}

fn kept(key: &str) -> &str {
    &key[..key.floor_char_boundary(KEY_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A stream in which the n-th key comes about 1/n^s as often as the first.
    fn zipf(random: &mut fastrand::Rng, keys: usize, s: f64, messages: usize) -> Vec<String> {
        let weights: Vec<f64> = (1..=keys).map(|n| (n as f64).powf(-s)).collect();
        let all: f64 = weights.iter().sum();
        let mut draw = || {
            let mut at = random.f64() * all;
            let found = weights.iter().position(|weight| {
                at -= weight;
                at < 0.0
            });
            format!("key-{}", found.unwrap_or(keys - 1))
        };
        (0..messages).map(|_| draw()).collect()
    }

    /// Feeds a stream in batches, with pauses, beside exact counts that are halved at the same times.
    fn check(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (keys, s) = (random.usize(1..3000), random.f64() * 2.0);
        let stream = zipf(&mut random, keys, s, 6000);
        let begin = Instant::now();
        let mut now = begin;
        let mut sketch = HotKeys::new(begin);
        let mut exact: HashMap<&str, f64> = HashMap::new();
        let mut halvings = 0;
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(random.usize(1..=rest.len().min(500)));
            rest = later;
            now += Duration::from_millis(random.u64(0..40_000));
            let due = (now - begin).as_secs() / HALF_LIFE.as_secs();
            let factor = 0.5_f64.powi((due - halvings) as i32);
            halvings = due;
            exact.values_mut().for_each(|count| *count *= factor);
            batch.iter().for_each(|key| *exact.entry(key).or_default() += 1.0);
            sketch.count(batch.iter().map(String::as_str), now);
        }
        let total: f64 = exact.values().sum();
        let of_seed = format!("seed {seed}, {keys} keys, exponent {s}");
        assert!(sketch.counters.len() <= COUNTERS, "{of_seed}");
        assert!((sketch.total - total).abs() < 1e-6, "{of_seed}");
        let bound = total / COUNTERS as f64 + 1e-6;
        for counter in &sketch.counters {
            let truth = exact.get(&*counter.key).copied().unwrap_or_default();
            assert!(counter.weight + 1e-6 >= truth, "{of_seed}: {counter:?} of {truth}");
            let least = counter.weight - counter.excess;
            assert!(least <= truth + 1e-6, "{of_seed}: {counter:?} of {truth}");
            assert!(counter.excess <= bound, "{of_seed}: {counter:?} above {bound}");
        }
        for (key, truth) in &exact {
            let watched = sketch.counters.iter().any(|counter| *counter.key == **key);
            assert!(
                watched || *truth <= bound,
                "{of_seed}: {key} with {truth} of {total} is missed"
            );
        }
        for hot in sketch.hottest(10, now) {
            let truth = exact.get(hot.key.as_str()).copied().unwrap_or_default();
            assert!(hot.messages as f64 + 1e-6 >= truth, "{of_seed}: {hot:?} of {truth}");
            let least = (hot.messages - hot.too_many_at_most) as f64;
            assert!(least <= truth + 1e-6, "{of_seed}: {hot:?} of {truth}");
        }
    }

    #[test]
    fn the_bounds_hold_against_exact_counts() {
        (0..60).for_each(check);
    }

    #[test]
    fn it_tells_of_now() {
        let begin = Instant::now();
        let mut sketch = HotKeys::new(begin);
        sketch.count(std::iter::repeat_n("yesterday", 10_000), begin);
        let now = begin + HALF_LIFE * 10;
        sketch.count(std::iter::repeat_n("today", 100), now);
        let hottest = sketch.hottest(1, now);
        assert_eq!((hottest[0].key.as_str(), hottest[0].messages), ("today", 100));
    }

    #[test]
    fn long_keys_are_told_apart_by_what_is_not_kept() {
        let mut sketch = HotKeys::new(Instant::now());
        let (long, other) = ("é".repeat(1000), format!("{}x", "é".repeat(999)));
        sketch.count([long.as_str(), other.as_str(), long.as_str()], Instant::now());
        let counts: Vec<u64> = sketch
            .hottest(9, Instant::now())
            .iter()
            .map(|key| key.messages)
            .collect();
        assert_eq!(counts, [2, 1]);
        assert!(sketch.counters.iter().all(|counter| counter.key.len() <= KEY_BYTES_MAX));
    }
}
