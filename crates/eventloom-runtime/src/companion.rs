//! What runs beside a service and looks at it: an endpoint for health and metrics, or a program's own.

use crate::health::Health;
use futures::future::BoxFuture;
use std::{future::Future, sync::Arc};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Runs beside a service: it begins before the service waits for its store, and ends when the service has stopped.
///
/// ```
/// use eventloom_core::ports::Backend;
/// use eventloom_runtime::{Companion, Eventloom, Watch};
///
/// struct Diary;
///
/// impl Companion for Diary {
///     async fn run(self, watch: Watch) {
///         watch.closed().await;
///         println!("the service has stopped");
///     }
/// }
///
/// fn with_diary<S: Backend>(eventloom: Eventloom<S>) -> Eventloom<S> {
///     eventloom.beside(Diary)
/// }
/// ```
///
/// # Cancel safety
/// The future is dropped when the service is dropped, and a second after [`Watch::closed`].
pub trait Companion: Send + 'static {
    /// Runs until [`Watch::closed`].
    fn run(self, watch: Watch) -> impl Future<Output = ()> + Send;
}

/// A companion without its type.
pub(crate) type Beside = Box<dyn FnOnce(Watch) -> BoxFuture<'static, ()> + Send>;

/// Looks at a service.
#[derive(Clone)]
pub struct Watch {
    running: watch::Receiver<Option<Arc<dyn Watched>>>,
    closed: CancellationToken,
}

/// A running service, without the type of its store.
pub(crate) trait Watched: Send + Sync {
    fn health(&self) -> BoxFuture<'_, Health>;
    fn tasks_ended(&self) -> usize;
}

impl Watch {
    pub(crate) fn new(running: watch::Receiver<Option<Arc<dyn Watched>>>, closed: CancellationToken) -> Self {
        Watch { running, closed }
    }

    /// How it is, asking the store; `None` while it starts, or waits for its store to be reachable.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn health(&self) -> Option<Health> {
        let running = self.running.borrow().clone();
        match running {
            Some(running) => Some(running.health().await),
            None => None,
        }
    }

    /// Tasks of the engine that are dead although the service runs, as [`Health::tasks_ended`]; asks nobody, so that a
    /// process is not restarted because its database is slow.
    pub fn tasks_ended(&self) -> usize {
        self.running
            .borrow()
            .as_ref()
            .map_or(0, |running| running.tasks_ended())
    }

    /// Completes when everything else of the service has stopped.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}
