//! Placing orders: **the business row and its event in one transaction**.
//!
//! The number of an order is its line in the input and the primary key of its row, so placing can be killed and begun
//! again anywhere: what is placed is read from the business table, and an order that somebody has placed in between is
//! refused together with its event.

use crate::{
    event::{ORDERS, OrderPlaced},
    store::{Shop, ShopError},
};
use eventloom::{StoreErrorKind, chain, publish_all};
use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// How often in a row a batch may fail before the placer gives up.
const FAILURES_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// The customers of one placer. By customer and not by line: two placers must not race with orders of one customer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) part: u64,
    pub(crate) parts: u64,
}

impl Share {
    pub(crate) const ALL: Share = Share { part: 0, parts: 1 };

    fn owns(self, customer: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        customer.hash(&mut hasher);
        hasher.finish() % self.parts == self.part
    }
}

/// Places what is not placed yet of these purchases, in their order, until all are or `stop` says so.
pub(crate) async fn place<S: Shop>(
    shop: &S,
    purchases: &[OrderPlaced],
    share: Share,
    batch: usize,
    stop: &CancellationToken,
) -> Result<(), ShopError> {
    let mut failures = 0;
    loop {
        // Read anew after each failure: a commit whose answer was lost may have happened.
        let placed: HashSet<i64> = shop.placed().await?.into_iter().collect();
        let open = |purchase: &&OrderPlaced| share.owns(&purchase.customer) && !placed.contains(&purchase.order);
        let open: Vec<OrderPlaced> = purchases.iter().filter(open).cloned().collect();
        let mut failed = None;
        for orders in open.chunks(batch) {
            if stop.is_cancelled() {
                return Ok(());
            }
            if let Err(error) = place_together(shop, orders).await {
                failed = Some(error);
                break;
            }
            failures = 0;
        }
        let Some(error) = failed else { return Ok(()) };
        failures += 1;
        if failures == FAILURES_MAX || !can_be_repeated::<S>(&error) {
            return Err(error);
        }
        tracing::warn!(error = %chain(&error), failures, "placing failed, and goes on");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Rows and events exist together, if and when this commits.
async fn place_together<S: Shop>(shop: &S, orders: &[OrderPlaced]) -> Result<(), ShopError> {
    let mut sale = shop.begin_sale().await?;
    S::insert_orders(&mut sale, orders).await?;
    publish_all::<S::Connection, S, _>(&mut sale, ORDERS, orders).await?;
    S::commit_sale(sale).await
}

fn can_be_repeated<S: Shop>(error: &ShopError) -> bool {
    use StoreErrorKind::{Conflict, Constraint, Full, Indeterminate, Timeout, Unreachable};
    // Constraint: a placer that was killed had its commit on the way, and now the order is there.
    let repeatable = [Conflict, Constraint, Full, Indeterminate, Timeout, Unreachable];
    error.kind::<S>().is_some_and(|kind| repeatable.contains(&kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_customer_belongs_to_one_placer() {
        for customer in 0..1000 {
            let customer = format!("{customer:05}");
            let owners = (0..3)
                .filter(|part| Share { part: *part, parts: 3 }.owns(&customer))
                .count();
            assert_eq!(owners, 1, "{customer}");
        }
    }
}
