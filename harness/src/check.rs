//! What is right: nothing missing, no effect twice, order kept, nothing left behind. Pure functions over evidence.

use crate::{
    evidence::Evidence,
    workload::{Followed, Kind},
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What to judge by.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The groups that ran, of `ledger`, `hot`, `caller`, `follower`.
    pub(crate) groups: Vec<&'static str>,
    /// Calls that may have been made twice, since a process ended or lost its lanes between call and result.
    pub(crate) repeated_calls_max: usize,
}

/// One rule and what speaks against it.
pub(crate) type Verdict = (&'static str, Vec<String>);

/// Applies every rule.
pub(crate) fn check(evidence: &Evidence, expected: &Expected) -> Vec<Verdict> {
    let ran = |group: &str| expected.groups.contains(&group);
    let mut verdicts = vec![
        ("what was acknowledged is committed", unacknowledged(evidence)),
        ("no effect without an order", made_up(evidence)),
        ("no effect twice", doubled(evidence)),
        ("every key in order", disordered(evidence)),
        ("no queued message without its held key", evidence.orphans.clone()),
        ("nothing is left in held, held_keys and attempts", evidence.left.clone()),
    ];
    for (group, what) in [
        ("ledger", "every order has its effect in ledger"),
        ("hot", "every order has its effect in hot"),
    ] {
        if ran(group) {
            verdicts.push((what, missing(evidence, group)));
        }
    }
    if ran("hot") {
        verdicts.push(("shared rows count what was committed", miscounted(evidence)));
    }
    if ran("follower") {
        verdicts.push(("every follow-up has its effect", unfollowed(evidence, &expected.groups)));
    }
    if ran("caller") {
        verdicts.push(("every order was called for", uncalled(evidence)));
        verdicts.push(("calls of a key in order", calls_disordered(evidence)));
        verdicts.push((
            "no call repeated without a reason",
            repeated(evidence, expected.repeated_calls_max),
        ));
    }
    verdicts.push((
        "what was published alone is everywhere or nowhere",
        alone(evidence, &expected.groups),
    ));
    verdicts
}

fn unacknowledged(evidence: &Evidence) -> Vec<String> {
    let committed: HashSet<(&str, i64)> = evidence
        .orders
        .iter()
        .map(|order| (order.key.as_str(), order.seq))
        .collect();
    let acknowledged = evidence.acknowledged.orders.iter().filter(|(key, _)| !is_alone(key));
    acknowledged
        .filter(|(key, seq)| !committed.contains(&(key.as_str(), *seq)))
        .map(|(key, seq)| format!("{key} {seq} was acknowledged and is not there"))
        .collect()
}

fn is_alone(key: &str) -> bool {
    key.rsplit('/').next().unwrap_or(key).starts_with("solo-")
}

fn missing(evidence: &Evidence, group: &str) -> Vec<String> {
    let there: HashSet<&str> = effects_of(evidence, group).map(|effect| effect.id.as_str()).collect();
    let orders = evidence
        .orders
        .iter()
        .filter(|order| !there.contains(order.id.as_str()));
    orders
        .map(|order| format!("{group}: {} {} ({:?}) has no effect", order.key, order.seq, order.kind))
        .collect()
}

fn effects_of<'a>(evidence: &'a Evidence, group: &'a str) -> impl Iterator<Item = &'a crate::evidence::Effect> {
    evidence.effects.iter().filter(move |effect| effect.consumer == group)
}

fn made_up(evidence: &Evidence) -> Vec<String> {
    let ids: HashSet<&str> = evidence.orders.iter().map(|order| order.id.as_str()).collect();
    let made_up = evidence
        .effects
        .iter()
        .filter(|effect| effect.consumer != "follower" && !is_alone(&effect.key) && !ids.contains(effect.id.as_str()));
    made_up
        .map(|effect| format!("{}: {} {} was never placed", effect.consumer, effect.key, effect.seq))
        .collect()
}

fn doubled(evidence: &Evidence) -> Vec<String> {
    let mut times: BTreeMap<(&str, &str, i64), usize> = BTreeMap::new();
    for effect in &evidence.effects {
        *times.entry((&effect.consumer, &effect.key, effect.seq)).or_default() += 1;
    }
    let doubled = times.into_iter().filter(|(_, times)| *times > 1);
    doubled
        .map(|((consumer, key, seq), times)| format!("{consumer}: {key} {seq} has {times} effects"))
        .collect()
}

fn disordered(evidence: &Evidence) -> Vec<String> {
    let wrong = evidence.effects.iter().filter(|effect| match effect.consumer.as_str() {
        // Only some orders are followed up.
        "follower" => effect.prev >= effect.seq,
        _ => effect.prev != effect.seq - 1,
    });
    wrong
        .map(|effect| {
            format!(
                "{}: {} {} came after {}",
                effect.consumer, effect.key, effect.seq, effect.prev
            )
        })
        .collect()
}

fn miscounted(evidence: &Evidence) -> Vec<String> {
    let effects = effects_of(evidence, "hot").count() as i64;
    let wrong = (evidence.touched != effects).then(|| format!("{} counted, {effects} effects", evidence.touched));
    wrong.into_iter().collect()
}

fn unfollowed(evidence: &Evidence, groups: &[&str]) -> Vec<String> {
    let there: HashSet<(&str, i64)> = effects_of(evidence, "follower")
        .map(|effect| (effect.key.as_str(), effect.seq))
        .collect();
    let publishing = evidence.orders.iter().filter(|order| order.kind == Kind::Publishes);
    let by = ["ledger", "caller"].into_iter().filter(|by| groups.contains(by));
    let wanted = publishing.flat_map(|order| by.clone().map(|by| (Followed::key_of(by, &order.key), order.seq)));
    wanted
        .filter(|(key, seq)| !there.contains(&(key.as_str(), *seq)))
        .map(|(key, seq)| format!("{key} {seq} was not followed up"))
        .collect()
}

fn uncalled(evidence: &Evidence) -> Vec<String> {
    let called: HashSet<&str> = evidence
        .calls
        .iter()
        .map(|call| call.idempotency_key.as_str())
        .collect();
    let orders = evidence
        .orders
        .iter()
        .filter(|order| !called.contains(format!("caller/{}", order.id).as_str()));
    orders
        .map(|order| format!("{} {} ({:?}) was not called for", order.key, order.seq, order.kind))
        .collect()
}

/// The receiver dedups, so the first call under a key is the one that counts.
fn calls_disordered(evidence: &Evidence) -> Vec<String> {
    let mut seen = HashSet::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut wrong = Vec::new();
    for call in &evidence.calls {
        if seen.insert(call.idempotency_key.as_str()) {
            let before = last.insert(&call.key, call.seq).unwrap_or_default();
            if before != call.seq - 1 {
                wrong.push(format!("{} {} was called for after {before}", call.key, call.seq));
            }
        }
    }
    wrong
}

fn repeated(evidence: &Evidence, at_most: usize) -> Vec<String> {
    let distinct: HashSet<&str> = evidence
        .calls
        .iter()
        .map(|call| call.idempotency_key.as_str())
        .collect();
    let repeated = evidence.calls.len() - distinct.len();
    let wrong = (repeated > at_most)
        .then(|| format!("{repeated} calls were repeated; {at_most} were in flight when something ended"));
    wrong.into_iter().collect()
}

fn alone(evidence: &Evidence, groups: &[&str]) -> Vec<String> {
    let mut keys: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for key in evidence
        .acknowledged
        .orders
        .iter()
        .map(|(key, _)| key.as_str())
        .filter(|key| is_alone(key))
    {
        keys.insert(key, HashSet::new());
    }
    for effect in evidence
        .effects
        .iter()
        .filter(|effect| is_alone(&effect.key) && effect.consumer != "follower")
    {
        keys.entry(&effect.key).or_default().insert(&effect.consumer);
    }
    for call in evidence.calls.iter().filter(|call| is_alone(&call.key)) {
        keys.entry(&call.key).or_default().insert("caller");
    }
    let mut wrong = Vec::new();
    for (key, there) in keys {
        if !evidence.acknowledged.begun_alone.contains(key) {
            wrong.push(format!("{key} was never published"));
        }
        let lacking = groups
            .iter()
            .filter(|group| **group != "follower" && !there.contains(**group));
        wrong.extend(lacking.map(|group| format!("{key} has no effect in {group}")));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Call, Effect, Order};

    fn evidence() -> Evidence {
        let order = |seq| Order {
            key: "k".to_owned(),
            seq,
            id: format!("id{seq}"),
            kind: Kind::Ok,
        };
        let effect = |seq: i64| Effect {
            consumer: "ledger".to_owned(),
            key: "k".to_owned(),
            seq,
            prev: seq - 1,
            id: format!("id{seq}"),
        };
        let call = |seq: i64| Call {
            idempotency_key: format!("caller/id{seq}"),
            key: "k".to_owned(),
            seq,
        };
        let mut evidence = Evidence {
            orders: [1, 2, 3].map(order).to_vec(),
            effects: [1, 2, 3].map(effect).to_vec(),
            calls: [1, 2, 3].map(call).to_vec(),
            ..Evidence::default()
        };
        evidence.acknowledged.orders.insert(("k".to_owned(), 2));
        evidence
    }

    fn broken(evidence: &Evidence) -> Vec<&'static str> {
        let expected = Expected {
            groups: vec!["ledger", "caller"],
            repeated_calls_max: 0,
        };
        check(evidence, &expected)
            .into_iter()
            .filter(|(_, wrong)| !wrong.is_empty())
            .map(|(what, _)| what)
            .collect()
    }

    #[test]
    fn what_is_right_is_right() {
        assert_eq!(broken(&evidence()), [""; 0]);
    }

    #[test]
    fn each_wrong_is_seen() {
        type Spoil = fn(&mut Evidence);
        let cases: [(&str, Spoil); 8] = [
            ("every order has its effect in ledger", |e| drop(e.effects.pop())),
            ("no effect twice", |e| e.effects.push(e.effects[0].clone())),
            ("every key in order", |e| e.effects[1].prev = 2),
            ("what was acknowledged is committed", |e| {
                e.acknowledged.orders.extend([("k".to_owned(), 9)])
            }),
            ("no effect without an order", |e| e.effects[0].id = "other".to_owned()),
            ("every order was called for", |e| drop(e.calls.pop())),
            ("calls of a key in order", |e| e.calls.swap(0, 1)),
            ("no call repeated without a reason", |e| {
                e.calls.push(e.calls[0].clone())
            }),
        ];
        for (what, spoil) in cases {
            let mut evidence = evidence();
            spoil(&mut evidence);
            assert!(broken(&evidence).contains(&what), "{what}: {:?}", broken(&evidence));
        }
    }
}
