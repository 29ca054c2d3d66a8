//! Tests for services on Eventloom, and for stores below it.
//!
//! For a service's own tests, in this order:
//!
//! - [`VirtualClock`] moves when the test says so; leases, due times, back-off, breakers and windows go by it.
//! - [`TestService`] runs a service until it has nothing left to do, and tells what happened.
//! - [`Published`] and [`SetAside`] look at what a log and a consumer hold.
//! - [`faults`] makes stores and brokers fail, and deliveries double; [`broker::Memory`] is a broker without a server.
//!
//! A handler alone needs none of it: [`Context::for_test`](eventloom_runtime::Context::for_test).
//!
//! For authors of stores: the suite of the store ports is in [`store`]. A backend that passes it behaves as the engines
//! expect; the doc comments of [`eventloom_core::ports`] are the contract, and each case is one sentence of it. The suite of
//! the engine on a store is in [`engine`].

#[macro_use]
mod suite;

pub mod broker;
mod clock;
pub mod engine;
pub mod faults;
mod published;
mod service;
pub mod store;

pub use clock::VirtualClock;
pub use published::{Published, SetAside};
pub use service::{Counts, Ran, RunError, TestService};
