//! When a command that goes on for ever is asked to stop.

use crate::failure::Failure;

/// Ctrl-C, or a stop from outside: both end a follower as they should.
pub(crate) struct Stop {
    #[cfg(unix)]
    terminated: tokio::signal::unix::Signal,
}

impl Stop {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Stop {
            #[cfg(unix)]
            terminated: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?,
        })
    }

    #[cfg(unix)]
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = self.terminated.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn asked(&mut self) {
        // Where there is no Ctrl-C to wait for, the process is ended from outside.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
