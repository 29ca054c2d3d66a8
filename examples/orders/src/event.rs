//! The fact that everything here is about.

use eventloom::{Event, Topic};
use serde::{Deserialize, Serialize};

/// Where orders are announced.
pub(crate) const ORDERS: Topic = Topic::new("orders");

/// An order was placed.
#[derive(Debug, Clone, PartialEq, Eq, Event, Serialize, Deserialize)]
#[event(type = "order.placed", version = 1)]
pub(crate) struct OrderPlaced {
    /// Its number: the line of the input.
    pub(crate) order: i64,
    /// Who bought. The orders of a customer stay in order.
    #[event(key)]
    pub(crate) customer: String,
    /// When, as `1997-01-31`.
    pub(crate) day: String,
    /// How many CDs.
    pub(crate) discs: i64,
    /// What it cost.
    pub(crate) cents: i64,
}

impl OrderPlaced {
    /// `1997-01`.
    pub(crate) fn month(&self) -> &str {
        self.day.get(..7).unwrap_or(&self.day)
    }
}
