//! The production clock: SQL uses the database's own, waits use the runtime's timer.

use eventloom_core::{Awake, BoxFuture, Clock, OffsetDateTime};
use std::time::{Duration, Instant};

/// The database's clock for SQL and tokio's timer for waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn bind(&self) -> Option<OffsetDateTime> {
        None
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn wake_at(&self, until: Instant) -> BoxFuture<'static, Awake> {
        Box::pin(async move {
            tokio::time::sleep_until(until.into()).await;
            Awake::default()
        })
    }
}

/// A pause in real time, under any clock: it lets another transaction go ahead, or a store come back, and those live in the
/// real world. On a virtual clock whoever works would stand still until somebody moves it.
pub(crate) async fn pace(pause: Duration) {
    tokio::time::sleep(pause).await;
}
