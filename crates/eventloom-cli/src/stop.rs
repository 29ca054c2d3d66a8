//! When a command that goes on for ever is asked to stop.

use crate::failure::Failure;

/// Ctrl-C, or a stop from outside: both end a follower as they should.
///
/// It listens from the beginning, so that nothing is missed while nobody waits.
pub(crate) struct Stop {
    #[cfg(unix)]
    interrupted: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminated: tokio::signal::unix::Signal,
}

impl Stop {
    pub(crate) fn new() -> Result<Self, Failure> {
        #[cfg(unix)]
        use tokio::signal::unix::{SignalKind, signal};
        #[cfg(unix)]
        let listen = |kind: SignalKind| {
            signal(kind).map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))
        };
        Ok(Stop {
            #[cfg(unix)]
            interrupted: listen(SignalKind::interrupt())?,
            #[cfg(unix)]
            terminated: listen(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupted.recv() => {}
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
