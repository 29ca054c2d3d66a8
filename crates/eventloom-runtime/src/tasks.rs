//! The tasks of a service: counted when they end before they should, and started again when they panic.

use futures::FutureExt;
use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const RESTART_PACE: Duration = Duration::from_millis(100);

/// Tasks that run until the service stops.
pub(crate) struct Tasks {
    set: JoinSet<()>,
    ended: Arc<AtomicUsize>,
    stopping: CancellationToken,
}

impl Tasks {
    pub(crate) fn new(stopping: CancellationToken) -> Self {
        Tasks {
            set: JoinSet::new(),
            ended: Arc::default(),
            stopping,
        }
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let end = End {
            ended: self.ended.clone(),
            stopping: self.stopping.clone(),
        };
        self.set.spawn(async move {
            let _end = end;
            task.await;
        });
    }

    /// How many tasks are gone although nothing was stopped. There is none, or the engine has a fault.
    pub(crate) fn counter(&self) -> Arc<AtomicUsize> {
        self.ended.clone()
    }

    /// Those that still run, and those not joined yet.
    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    /// Waits until all have ended.
    pub(crate) async fn join(&mut self) {
        while self.set.join_next().await.is_some() {}
    }
}

/// Counts when its task ends too early, by a panic too.
struct End {
    ended: Arc<AtomicUsize>,
    stopping: CancellationToken,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.stopping.is_cancelled() {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs a task to its end, and starts it again when it panics. `panicked` clears up before.
pub(crate) async fn restarted<Fut: Future<Output = ()>>(task: impl Fn() -> Fut, panicked: impl Fn()) {
    // Boxed: a task of the engine is a large future, and every function that passes it on would copy it over the stack.
    while AssertUnwindSafe(Box::pin(task())).catch_unwind().await.is_err() {
        panicked();
        tokio::time::sleep(RESTART_PACE).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_started_again() {
        let (runs, cleared) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let task = async || {
            if runs.fetch_add(1, Ordering::Relaxed) < 2 {
                panic!("planted");
            }
        };
        restarted(task, || {
            cleared.fetch_add(1, Ordering::Relaxed);
        })
        .await;
        assert_eq!((runs.into_inner(), cleared.into_inner()), (3, 2));
    }

    #[tokio::test]
    async fn a_task_that_is_gone_is_counted_unless_all_stop() {
        let stopping = CancellationToken::new();
        let mut tasks = Tasks::new(stopping.clone());
        tasks.spawn(async { panic!("planted") });
        tasks.spawn(async {});
        let stops = stopping.clone();
        tasks.spawn(async move { stops.cancelled().await });
        let joined = async {
            let _ = tasks.set.join_next().await;
            let _ = tasks.set.join_next().await;
        };
        joined.await;
        assert_eq!(tasks.counter().load(Ordering::Relaxed), 2);
        stopping.cancel();
        tasks.join().await;
        assert_eq!(tasks.counter().load(Ordering::Relaxed), 2);
    }
}
