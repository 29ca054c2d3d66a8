//! How many messages handlers were given. Asking the service how far it is asks its store too: often enough that would be a
//! load that is measured along.

use anyhow::{Result, ensure};
use eventloom::{ConsumerHealth, Service, ports::Backend};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::sleep;

const HANGS: Duration = Duration::from_secs(300);

/// Counted by handlers, runs that were rolled back too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub(crate) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until this many messages of the service's one consumer are committed or dead, and gives its health.
    pub(crate) async fn done<S: Backend>(&self, service: &Service<S>, messages: u32) -> Result<ConsumerHealth> {
        let begun = Instant::now();
        loop {
            if self.0.load(Ordering::Relaxed) >= u64::from(messages) {
                let health = service.health().await.consumers.remove(0);
                if health.handled + health.dead >= u64::from(messages) {
                    return Ok(health);
                }
            }
            ensure!(begun.elapsed() < HANGS, "it hangs: {:?}", service.health().await);
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The same for the consumer having come to life: it holds its lease.
    pub(crate) async fn ready<S: Backend>(service: &Service<S>) -> Result<()> {
        let begun = Instant::now();
        while !service.health().await.ready {
            ensure!(
                begun.elapsed() < HANGS,
                "it does not become ready: {:?}",
                service.health().await
            );
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}
