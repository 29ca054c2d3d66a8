//! Ctrl-C and SIGTERM: the first drains, the second ends at once.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancelled by the first signal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl Stop {
    /// Begins to listen.
    pub(crate) fn on_signals() -> std::io::Result<Self> {
        let stop = Stop::default();
        for (kind, code) in [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)] {
            let mut signals = signal(kind)?;
            let stop = stop.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    if stop.token.is_cancelled() {
                        std::process::exit(code.into());
                    }
                    stop.code.store(code, Ordering::Relaxed);
                    stop.token.cancel();
                }
            });
        }
        Ok(stop)
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The exit code that says by which signal it was stopped.
    pub(crate) fn code(&self) -> u8 {
        self.code.load(Ordering::Relaxed)
    }
}
