//! Conformance suites: what every backend of Eventloom must do, as tests that a backend gets with a few lines.
//!
//! The suite of the engine on a store is in [`engine`].
//!
//! The suite of the store ports is in [`store`]. A backend that passes it behaves as the engines expect; the doc comments
//! of [`eventloom_core::ports`] are the contract, and each case is one sentence of it.

#[macro_use]
mod suite;

pub mod broker;
pub mod engine;
pub mod store;
