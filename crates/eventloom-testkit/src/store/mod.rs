//! The conformance suite of the store ports.
//!
//! A backend implements [`Fixture`] and writes one line:
//!
//! ```text
//! mod conformance {
//!     use super::fixture::Scratch;
//!     eventloom_testkit::store_conformance!(Scratch::new().await);
//! }
//! ```
//!
//! That makes one `#[test]` of each case, `conformance::append::keeps_the_order` and so on; a case that is added here
//! reaches every backend by itself. The expression gives an `Option` of a fixture and may await. `None` leaves the case
//! out: whoever returns it has printed `left out: <what>: <why>`.
//!
//! Times are steered through the `now` of the ports, so that no case sleeps to be right. What is random prints its seed,
//! and `EVENTLOOM_SEED=<seed>` runs it again.

mod cases;
mod check;
mod fixture;
mod instance;
mod run;
mod sample;
mod wait;

pub use check::{Failed, Outcome};
pub(crate) use check::{holds, same};
pub use fixture::{Capabilities, Fixture, fill_in};
pub(crate) use run::{Case, run_case, run_cases};
pub use run::{Report, case_names, run_all, run_one, test};
