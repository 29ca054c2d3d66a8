//! What happened to a customer whose totals are not as they should be: the least that explains count, sum and digest.

use crate::{
    books::TotalRow,
    digest::{Digest, digest_of},
    input::Purchase,
};

/// Beyond this many orders of one customer no single cause is looked for: the search is cubic.
const ORDERS_MAX: usize = 300;

/// What is wrong, in orders, and in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) missing: u64,
    pub(crate) doubled: u64,
    pub(crate) disordered: u64,
    pub(crate) words: String,
}

/// `None` when all is as it should be.
pub(crate) fn explain(expected: &[&Purchase], found: &TotalRow) -> Option<Fault> {
    let numbers: Vec<i64> = expected.iter().map(|purchase| purchase.number).collect();
    let cents: i64 = expected.iter().map(|purchase| purchase.cents).sum();
    let digest = Digest(found.digest);
    let count = numbers.len() as i64;
    if found.orders == count && found.cents == cents && digest == digest_of(numbers.iter().copied()) {
        return None;
    }
    let cause = (numbers.len() <= ORDERS_MAX)
        .then(|| cause(&numbers, found.orders, digest))
        .flatten();
    let at_least_one = |difference: i64| u64::try_from(difference).unwrap_or(0);
    let mut fault = Fault {
        missing: at_least_one(count - found.orders),
        doubled: at_least_one(found.orders - count),
        disordered: 0,
        words: String::new(),
    };
    if found.orders == count && found.cents == cents {
        fault.disordered = 1;
    } else if found.orders == count {
        // One for another: the count hides it, the sum does not.
        (fault.missing, fault.doubled) = (1, 1);
    }
    let what = cause.unwrap_or_else(|| {
        format!(
            "{} orders of {} cents, expected {count} of {cents} in the order of the input",
            found.orders, found.cents
        )
    });
    fault.words = format!("customer {}: {what}", found.customer);
    Some(fault)
}

/// The one order whose loss, doubling or move leads to this digest.
fn cause(numbers: &[i64], found: i64, digest: Digest) -> Option<String> {
    let places = 0..numbers.len();
    let with = |mut orders: Vec<i64>, place: usize, order: i64| {
        orders.insert(place, order);
        digest_of(orders) == digest
    };
    let without = |place: usize| {
        let mut orders = numbers.to_vec();
        let order = orders.remove(place);
        (orders, order)
    };
    match found - numbers.len() as i64 {
        -1 => places
            .clone()
            .map(without)
            .find(|(orders, _)| digest_of(orders.iter().copied()) == digest)
            .map(|(_, order)| format!("order {order} is missing")),
        1 => numbers
            .iter()
            .find(|order| (0..=numbers.len()).any(|place| with(numbers.to_vec(), place, **order)))
            .map(|order| format!("order {order} was handled twice")),
        0 => places.clone().find_map(|from| {
            let (orders, order) = without(from);
            let to = places
                .clone()
                .find(|to| *to != from && with(orders.clone(), *to, order))?;
            let side = if to > from { "late" } else { "early" };
            Some(format!("order {order} was handled too {side}"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn faults_are_named() {
        let purchases: Vec<Purchase> = [(5, 100), (9, 250), (12, 75)]
            .map(|(number, cents)| Purchase {
                number,
                customer: "c".to_owned(),
                month: "1997-01".to_owned(),
                cents,
            })
            .into();
        let cents = |orders: &[i64]| -> i64 {
            orders
                .iter()
                .map(|order| purchases.iter().find(|p| p.number == *order).unwrap().cents)
                .sum()
        };
        type Wanted = Option<(u64, u64, u64, &'static str)>;
        let cases: &[(&[i64], Wanted)] = &[
            (&[5, 9, 12], None),
            (&[5, 12], Some((1, 0, 0, "customer c: order 9 is missing"))),
            (&[5, 9, 9, 12], Some((0, 1, 0, "customer c: order 9 was handled twice"))),
            (&[5, 9, 12, 5], Some((0, 1, 0, "customer c: order 5 was handled twice"))),
            (&[9, 12, 5], Some((0, 0, 1, "customer c: order 5 was handled too late"))),
            (
                &[12, 5, 9],
                Some((0, 0, 1, "customer c: order 12 was handled too early")),
            ),
            (
                &[5, 5, 12],
                Some((
                    1,
                    1,
                    0,
                    "customer c: 3 orders of 275 cents, expected 3 of 425 in the order of the input",
                )),
            ),
            (
                &[],
                Some((
                    3,
                    0,
                    0,
                    "customer c: 0 orders of 0 cents, expected 3 of 425 in the order of the input",
                )),
            ),
        ];
        let expected: Vec<&Purchase> = purchases.iter().collect();
        for (handled, wanted) in cases {
            let found = TotalRow {
                customer: "c".to_owned(),
                orders: handled.len() as i64,
                cents: cents(handled),
                digest: digest_of(handled.iter().copied()).0,
            };
            let fault = explain(&expected, &found);
            let fault = fault
                .as_ref()
                .map(|f| (f.missing, f.doubled, f.disordered, f.words.as_str()));
            assert_eq!(fault, *wanted, "{handled:?}");
        }
    }
}
