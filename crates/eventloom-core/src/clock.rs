//! Time as a port: production uses the database's clock, tests a virtual one.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};
use time::OffsetDateTime;

/// A boxed future, for the few places that are dispatched dynamically.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where an engine's time comes from: leases, due times, back-off, breakers, windows and what is done now and then.
///
/// What waits for the real world keeps real time under any clock: answers of a store or a broker, the deadlines of handlers
/// (which they hand to drivers and clients of their own), and pauses that let another transaction go ahead.
///
/// # Contract
/// The three readings are of one clock: [`Clock::bind`], [`Clock::now`] and the sleeps advance together.
///
/// [`Clock::bind`] is handed to every statement that compares times. `None` means the database's own clock, which is the
/// only clock that several hosts share; a virtual clock answers `Some`, and then no statement reads the database's.
///
/// # Cancel safety
/// Dropping the future of [`Clock::wake_at`] or [`Clock::sleep`] has no effect.
pub trait Clock: Send + Sync + 'static {
    /// What SQL is to take for "now": `None` for the database's own clock.
    fn bind(&self) -> Option<OffsetDateTime>;

    /// The monotonic reading, which this process compares with itself. Never goes back.
    fn now(&self) -> Instant;

    /// Completes once [`Clock::now`] is at or after `until`. The clock knows of it from this call on, not from the first
    /// poll: whoever drops one [`Awake`] after asking for the next loses no time between them. A virtual clock stands still while the [`Awake`] is kept: what
    /// has to be done before more time passes, such as renewing a lease, is done with it in hand.
    fn wake_at(&self, until: Instant) -> BoxFuture<'static, Awake>;

    /// Completes after `duration` on this clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + duration)
    }

    /// Completes once [`Clock::now`] is at or after `until`.
    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        let awake = self.wake_at(until);
        Box::pin(async move { drop(awake.await) })
    }
}

/// Somebody was woken by a clock and is not done yet.
#[derive(Default)]
pub struct Awake(Option<Box<dyn Any + Send + Sync>>);

impl Awake {
    /// The clock stands still until `guard` is dropped. A clock that cannot stand still gives [`Awake::default`].
    pub fn holding(guard: impl Any + Send + Sync) -> Self {
        Awake(Some(Box::new(guard)))
    }
}

impl fmt::Debug for Awake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Awake").field(&self.0.is_some()).finish()
    }
}
