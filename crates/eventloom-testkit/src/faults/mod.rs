//! What goes wrong, on demand: stores that fail or go silent, brokers that lose answers, deliveries that come twice.

mod broker;
mod deliveries;
mod store;

pub use broker::{BrokerFault, FaultyBroker, FaultyProducer};
pub use deliveries::{doubled, reordered};
pub use store::{FaultyStore, StoreFault, StoreFaults};
