//! The conformance suite of brokers, and a broker in memory, for tests: it keeps what it is sent, and refuses, delays or
//! forgets when a test says so.

mod conformance;
mod memory;

pub use conformance::{BrokerFixture, conformance};
pub use memory::{Arrived, Memory, MemoryProducer, Then};
