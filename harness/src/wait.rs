//! The one way to wait here: for a condition, with a limit.

use std::{future::Future, time::Duration};
use tokio::time::Instant;

const PACE: Duration = Duration::from_millis(20);

/// Asks until the answer is `Some`; `None` when it was not within the limit.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(limit: Duration, mut ask: impl FnMut() -> F) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(PACE).await;
    }
}
