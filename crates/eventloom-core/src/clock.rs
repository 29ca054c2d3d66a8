//! Time as a port: production uses the database's clock, tests a virtual one.

use std::{future::Future, pin::Pin, time::Duration};
use time::OffsetDateTime;

/// A boxed future, for the few places that are dispatched dynamically.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where time comes from.
///
/// # Contract
/// [`Clock::bind`] is handed to every statement that compares times. `None` means the database's own clock, which is the
/// only clock that several hosts share; a virtual clock answers `Some`, and then no statement reads the database's.
///
/// # Cancel safety
/// Dropping the future of [`Clock::sleep`] has no effect.
pub trait Clock: Send + Sync + 'static {
    /// What SQL is to take for "now": `None` for the database's own clock.
    fn bind(&self) -> Option<OffsetDateTime>;
    /// Completes after `duration` on this clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}
