//! Deliveries that come twice, and in another order than they were meant, as far as a log allows.

use eventloom_core::NewEvent;
use std::collections::{HashMap, VecDeque};

/// Every row twice, under the same logical id: at once, and once more behind all others. A consumer with an inbox has one
/// effect of each. What a producer does that was not told whether its transaction was committed.
///
/// ```
/// use eventloom_core::{NewEvent, Topic};
/// use eventloom_testkit::faults::doubled;
/// let row = |event: &str| NewEvent::untyped(Topic::new("orders"), event);
/// let rows = doubled(vec![row("a"), row("b")]);
/// let types: Vec<_> = rows.iter().map(NewEvent::event_type).collect();
/// assert_eq!(types, ["a", "b", "a", "b"]);
/// assert_eq!(rows[0].id(), rows[2].id());
/// ```
pub fn doubled(rows: Vec<NewEvent>) -> Vec<NewEvent> {
    let again = rows.clone();
    rows.into_iter().chain(again).collect()
}

/// The rows in a random order that keeps the order of each key; what has no key may stand anywhere. The same for the same
/// seed.
///
/// ```
/// use eventloom_core::{NewEvent, Topic};
/// use eventloom_testkit::faults::reordered;
/// let row = |key: &str, event: &str| NewEvent::untyped(Topic::new("orders"), event).with_key(key);
/// let rows = reordered(vec![row("a", "1"), row("a", "2"), row("b", "1"), row("b", "2")], 17);
/// let of_a: Vec<_> = rows.iter().filter(|row| row.key() == Some("a")).map(NewEvent::event_type).collect();
/// assert_eq!(of_a, ["1", "2"]);
/// ```
pub fn reordered(rows: Vec<NewEvent>, seed: u64) -> Vec<NewEvent> {
    reordered_by(rows, seed, |row| row.key().map(str::to_owned))
}

pub(super) fn reordered_by<T>(items: Vec<T>, seed: u64, key: impl Fn(&T) -> Option<String>) -> Vec<T> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut queues: Vec<VecDeque<T>> = Vec::new();
    let mut of_key: HashMap<String, usize> = HashMap::new();
    for item in items {
        let own = queues.len();
        let queue = key(&item).map_or(own, |key| *of_key.entry(key).or_insert(own));
        match queues.get_mut(queue) {
            Some(queue) => queue.push_back(item),
            None => queues.push(VecDeque::from([item])),
        }
    }
    let mut shuffled = Vec::new();
    while !queues.is_empty() {
        let at = random.usize(..queues.len());
        shuffled.extend(queues[at].pop_front());
        if queues[at].is_empty() {
            queues.swap_remove(at);
        }
    }
    shuffled
}

#[cfg(test)]
mod tests {
    use super::reordered_by;

    #[test]
    fn keys_keep_their_order_and_others_do_not() {
        let rows: Vec<(char, u32)> = (0..20).flat_map(|n| [('a', n), ('b', n), ('-', n)]).collect();
        let shuffle = |seed| reordered_by(rows.clone(), seed, |(key, _)| (*key != '-').then(|| key.to_string()));
        let of = |rows: &[(char, u32)], key| -> Vec<u32> {
            rows.iter().filter(|row| row.0 == key).map(|row| row.1).collect()
        };
        for seed in 0..20 {
            let shuffled = shuffle(seed);
            assert_eq!(shuffled, shuffle(seed), "the same for the same seed");
            assert_ne!(shuffled, rows);
            assert_eq!(shuffled.len(), rows.len());
            assert!(of(&shuffled, 'a').is_sorted() && of(&shuffled, 'b').is_sorted());
            assert!(!of(&shuffled, '-').is_sorted(), "seed {seed}");
        }
    }
}
