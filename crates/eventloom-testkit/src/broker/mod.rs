//! A broker in memory, for tests: it keeps what it is sent, and refuses, delays or forgets when a test says so.

mod memory;

pub use memory::{Arrived, Memory, MemoryProducer, Then};
