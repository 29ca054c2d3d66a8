//! The conformance suite of the engine on a store: real services, real handlers, and what they leave in the log.
//!
//! Handlers publish what they did to a topic of its own, so the log is the ledger of effects: what is lost, doubled or out
//! of order shows there, and no table of a case's own is needed. A backend that implements
//! [`Fixture`](crate::store::Fixture) writes one more line:
//!
//! ```text
//! eventloom_testkit::engine_conformance!(Scratch::new().await);
//! ```

mod cases;
mod scene;

pub use cases::{case_names, run_all, test};
