//! The production clock: SQL uses the database's own, waits use the runtime's timer.

use eventloom_core::{BoxFuture, Clock, OffsetDateTime};
use std::time::Duration;

/// The database's clock for SQL and tokio's timer for waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn bind(&self) -> Option<OffsetDateTime> {
        None
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
