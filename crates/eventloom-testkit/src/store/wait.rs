//! Two transactions that meet: one waits, and is seen to wait.

use super::check::{Failed, Outcome};
use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    time::Duration,
};

/// How long it is watched. Too short a time makes a case miss a defect, never fail without one.
const WATCHED: Duration = Duration::from_millis(150);

/// Runs `waits`, which cannot be done before `ends` was; then `ends`, then the rest of `waits`.
///
/// `waits` that is done too early is a failure, with what it brought.
pub(super) async fn meets<T: fmt::Debug, E>(
    what: &str,
    waits: impl Future<Output = Result<T, E>>,
    ends: impl Future<Output = Outcome>,
) -> Result<T, Failed>
where
    Failed: From<E>,
{
    let mut waits = pin!(waits);
    if let Ok(early) = tokio::time::timeout(WATCHED, Pin::as_mut(&mut waits)).await {
        return Err(Failed::new(format!("{what} did not wait\n   found: {:?}", early?)));
    }
    // Both at once: what ends may need that the other one goes on.
    let (answer, ended) = futures::future::join(waits, ends).await;
    ended?;
    Ok(answer?)
}
