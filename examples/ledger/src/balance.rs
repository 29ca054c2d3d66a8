//! What should have happened, against what did.
//!
//! A group should have handled, for each customer, the orders that were committed, in the order of the input, without
//! those that it still holds. A key is a customer and a held one keeps its whole queue, so what is left is a sequence too.

use crate::{
    books::{Books, TotalRow},
    explain::explain,
    input::{Input, Purchase},
    mail::Mail,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// One consumer group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// Effects found.
    pub handled: u64,
    /// Messages set aside.
    pub held: u64,
    /// Orders without an effect that are not held.
    pub missing: u64,
    /// Effects beyond the first.
    pub duplicated: u64,
    /// Customers whose orders were handled in another order; `None` where no order was asked.
    pub out_of_order: Option<u64>,
}

/// One month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Month {
    /// `1997-01`.
    pub month: String,
    /// What the group `revenue` has added up.
    pub cents: i64,
}

/// The ledger.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Name of the input.
    pub input_name: String,
    /// Purchases that are to be placed.
    pub purchases: u64,
    /// Orders that were committed.
    pub committed: u64,
    /// Customers among them.
    pub customers: u64,
    /// The groups.
    pub groups: [Group; 3],
    /// A plain sum over the purchases that are to be placed.
    pub input_cents: i64,
    /// The sum over the customer totals.
    pub totals_cents: i64,
    /// The sum over the months.
    pub revenue_cents: i64,
    /// Monthly revenue.
    pub revenue: Vec<Month>,
    /// Lines that the mailer wrote.
    pub mail_raw: u64,
    /// Idempotency keys among them.
    pub mail_distinct: u64,
    /// What is wrong, one sentence each.
    pub findings: Vec<String>,
}

impl Ledger {
    /// Purchases that were not placed yet.
    pub fn unplaced(&self) -> u64 {
        self.purchases.saturating_sub(self.committed)
    }

    /// Everything was placed, and nothing is missing, duplicated or out of order.
    pub fn is_clean(&self) -> bool {
        self.unplaced() == 0 && self.findings.is_empty()
    }
}

/// Works the ledger out.
pub fn balance(input: &Input, books: &Books, mail: &Mail) -> Ledger {
    let wanted = input
        .purchases
        .len()
        .min(usize::try_from(books.run.purchases).unwrap_or(usize::MAX));
    let wanted = &input.purchases[..wanted];
    let mut findings = Vec::new();
    let committed = committed(wanted, books, &mut findings);
    let held = |group: &str| -> (u64, HashSet<i64>) {
        let held = books.held.iter().filter(|held| held.group == group);
        (
            held.clone().count() as u64,
            held.filter_map(|held| held.order).collect(),
        )
    };
    let without = |held: &HashSet<i64>| -> Vec<&Purchase> {
        committed
            .iter()
            .filter(|purchase| !held.contains(&purchase.number))
            .copied()
            .collect()
    };
    let [totals, revenue, mailer] = ["totals", "revenue", "mailer"].map(|name| {
        let (count, orders) = held(name);
        (
            Group {
                name,
                held: count,
                ..Group::default()
            },
            without(&orders),
        )
    });
    let groups = [
        check_totals(totals, books, &mut findings),
        check_revenue(revenue, books, &mut findings),
        check_mail(mailer, mail, &mut findings),
    ];
    Ledger {
        input_name: books.run.input_name.clone(),
        purchases: wanted.len() as u64,
        committed: committed.len() as u64,
        customers: committed
            .iter()
            .map(|purchase| &purchase.customer)
            .collect::<HashSet<_>>()
            .len() as u64,
        groups,
        input_cents: wanted.iter().map(|purchase| purchase.cents).sum(),
        totals_cents: books.totals.iter().map(|total| total.cents).sum(),
        revenue_cents: books.revenue.iter().map(|month| month.cents).sum(),
        revenue: books
            .revenue
            .iter()
            .map(|row| Month {
                month: row.month.clone(),
                cents: row.cents,
            })
            .collect(),
        mail_raw: mail.raw,
        mail_distinct: mail.letters.len() as u64,
        findings,
    }
}

/// The purchases that are orders by now, as the input says they are.
fn committed<'i>(wanted: &'i [Purchase], books: &Books, findings: &mut Vec<String>) -> Vec<&'i Purchase> {
    let by_number: HashMap<i64, &Purchase> = wanted.iter().map(|purchase| (purchase.number, purchase)).collect();
    let mut committed = Vec::new();
    for order in &books.orders {
        match by_number.get(&order.number) {
            Some(purchase) => {
                if (&order.customer, order.cents) != (&purchase.customer, purchase.cents) {
                    findings.push(format!(
                        "order {} is not what line {} of the input says",
                        order.number, order.number
                    ));
                }
                committed.push(*purchase);
            }
            None => findings.push(format!("order {} is not in the input", order.number)),
        }
    }
    committed
}

fn check_totals((mut group, expected): (Group, Vec<&Purchase>), books: &Books, findings: &mut Vec<String>) -> Group {
    let mut by_customer: BTreeMap<&str, Vec<&Purchase>> = BTreeMap::new();
    for purchase in expected {
        by_customer.entry(&purchase.customer).or_default().push(purchase);
    }
    let nothing = |customer: &str| TotalRow {
        customer: customer.to_owned(),
        orders: 0,
        cents: 0,
        digest: 0,
    };
    let mut disordered = 0;
    let mut note = |expected: &[&Purchase], found: &TotalRow| {
        group.handled += u64::try_from(found.orders).unwrap_or(0);
        if let Some(fault) = explain(expected, found) {
            group.missing += fault.missing;
            group.duplicated += fault.doubled;
            disordered += fault.disordered;
            findings.push(format!("totals: {}", fault.words));
        }
    };
    for found in &books.totals {
        let expected = by_customer.remove(found.customer.as_str()).unwrap_or_default();
        note(&expected, found);
    }
    for (customer, expected) in by_customer {
        note(&expected, &nothing(customer));
    }
    group.out_of_order = Some(disordered);
    group
}

fn check_revenue((mut group, expected): (Group, Vec<&Purchase>), books: &Books, findings: &mut Vec<String>) -> Group {
    let mut months: BTreeMap<&str, [i64; 4]> = BTreeMap::new();
    for purchase in expected {
        let [orders, cents, _, _] = months.entry(&purchase.month).or_default();
        *orders += 1;
        *cents += purchase.cents;
    }
    for row in &books.revenue {
        let [_, _, orders, cents] = months.entry(&row.month).or_default();
        *orders += row.orders;
        *cents += row.cents;
        group.handled += u64::try_from(row.orders).unwrap_or(0);
    }
    for (month, [orders, cents, found_orders, found_cents]) in months {
        if (orders, cents) == (found_orders, found_cents) {
            continue;
        }
        let difference = found_orders - orders;
        group.missing += if difference == 0 {
            1
        } else {
            u64::try_from(-difference).unwrap_or(0)
        };
        group.duplicated += if difference == 0 {
            1
        } else {
            u64::try_from(difference).unwrap_or(0)
        };
        findings.push(format!(
            "revenue: {month} has {found_orders} orders of {found_cents} cents, expected {orders} of {cents}"
        ));
    }
    group
}

fn check_mail((mut group, expected): (Group, Vec<&Purchase>), mail: &Mail, findings: &mut Vec<String>) -> Group {
    let mut open: BTreeMap<i64, &str> = expected
        .iter()
        .map(|purchase| (purchase.number, purchase.customer.as_str()))
        .collect();
    let mut last_of: HashMap<&str, i64> = HashMap::new();
    let mut disordered: HashSet<&str> = HashSet::new();
    let mut sent: HashSet<i64> = HashSet::new();
    group.handled = mail.letters.len() as u64;
    for letter in &mail.letters {
        let known = open.remove(&letter.order);
        if !sent.insert(letter.order) {
            group.duplicated += 1;
            findings.push(format!(
                "mailer: order {} was mailed under two keys, also {}",
                letter.order, letter.key
            ));
        } else if known.is_some_and(|customer| customer != letter.customer) {
            group.missing += 1;
            findings.push(format!(
                "mailer: order {} was mailed to customer {}",
                letter.order, letter.customer
            ));
        }
        let last = last_of.entry(&letter.customer).or_insert(letter.order);
        if *last > letter.order && disordered.insert(&letter.customer) {
            let (customer, order) = (&letter.customer, letter.order);
            findings.push(format!(
                "mailer: customer {customer}: order {order} was mailed after order {last}"
            ));
        }
        *last = (*last).max(letter.order);
    }
    if mail.torn > 0 {
        findings.push(format!(
            "mailer: {} lines of its file are not `key order customer`",
            mail.torn
        ));
    }
    group.missing += open.len() as u64;
    group.out_of_order = Some(disordered.len() as u64);
    findings.extend(
        open.iter()
            .map(|(order, customer)| format!("mailer: customer {customer}: order {order} is missing")),
    );
    group
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{books::*, digest::digest_of};

    const INPUT: &str = "a 19970101 1 1.00\nb 19970102 1 2.00\na 19970201 1 3.00\na 19970202 1 4.00\n";

    fn whole() -> (Input, Books, Mail) {
        let input = Input::parse(INPUT).unwrap();
        let run = RunRow {
            input_name: "test".to_owned(),
            input_sha256: input.sha256.clone(),
            purchases: 4,
            mail_file: "mail".to_owned(),
        };
        let orders = input.purchases.iter();
        let orders = orders
            .map(|p| OrderRow {
                number: p.number,
                customer: p.customer.clone(),
                cents: p.cents,
            })
            .collect();
        let total = |customer: &str, cents, numbers: &[i64]| TotalRow {
            customer: customer.to_owned(),
            orders: numbers.len() as i64,
            cents,
            digest: digest_of(numbers.iter().copied()).0,
        };
        let totals = vec![total("a", 800, &[1, 3, 4]), total("b", 200, &[2])];
        let month = |month: &str, orders, cents| MonthRow {
            month: month.to_owned(),
            orders,
            cents,
        };
        let revenue = vec![month("1997-01", 2, 300), month("1997-02", 2, 700)];
        let books = Books {
            run,
            orders,
            totals,
            revenue,
            held: Vec::new(),
        };
        (input, books, Mail::parse("k1 1 a\nk2 2 b\nk2 2 b\nk3 3 a\nk4 4 a\n"))
    }

    fn check(tamper: impl FnOnce(&mut Books, &mut Mail), wanted: [[u64; 3]; 3]) {
        let (input, mut books, mut mail) = whole();
        tamper(&mut books, &mut mail);
        let ledger = balance(&input, &books, &mail);
        let found = ledger
            .groups
            .map(|g| [g.missing, g.duplicated, g.out_of_order.unwrap_or(0)]);
        assert_eq!(found, wanted, "{:#?}", ledger.findings);
        assert_eq!(ledger.is_clean(), found == [[0; 3]; 3], "{:#?}", ledger.findings);
    }

    #[test]
    fn faults_are_counted_where_they_are() {
        let none = [0; 3];
        check(|_, _| {}, [none; 3]);
        check(|books, _| books.totals.truncate(1), [[1, 0, 0], none, none]);
        check(
            |books, _| books.totals[0].digest = digest_of([3, 1, 4]).0,
            [[0, 0, 1], none, none],
        );
        check(|books, _| books.revenue[1].orders += 1, [none, [0, 1, 0], none]);
        check(|books, _| books.revenue[1].cents += 1, [none, [1, 1, 0], none]);
        check(
            |_, mail| *mail = Mail::parse("k1 1 a\nk4 4 a\nk3 3 a\nk5 3 a\n"),
            [none, none, [1, 1, 1]],
        );
    }

    #[test]
    fn what_is_held_is_not_missing() {
        let hold = |books: &mut Books, _: &mut Mail| {
            books.held.push(HeldOrder {
                group: "totals".to_owned(),
                order: Some(4),
                error: None,
            });
            books.totals[0] = TotalRow {
                customer: "a".to_owned(),
                orders: 2,
                cents: 400,
                digest: digest_of([1, 3]).0,
            };
        };
        check(hold, [[0; 3]; 3]);
    }
}
