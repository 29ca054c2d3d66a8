//! Each call of the store is answered in time or given up: a connection that has gone silent hangs nothing for ever.
//!
//! Servers have limits of their own and tell more, so this one is longer. What it ends is an error of the store, after which
//! the engine goes on trying, on another connection. The limits are of real time under any clock: what answers is real.

use eventloom_core::{
    StoreError,
    ports::{Around, Call, Capacity, Store, Surrounded},
};
use std::{future::Future, time::Duration};

/// A store whose calls end in time.
pub(crate) type Bounded<S> = Surrounded<S, TimeLimit>;
/// A transaction of it.
pub(crate) type Tx<S> = <Bounded<S> as Store>::Transaction;

/// The ports whose methods it has.
pub(crate) mod ports {
    pub(crate) use eventloom_core::ports::{Held as _, Inbox as _, Leases as _, Log as _, Store as _};
}

/// The shortest limit, for leases that are shorter.
const LIMIT_MIN: Duration = Duration::from_secs(1);

/// A busy pool is not a silent one, and who gives up loses lanes: as long as the driver waits for a connection.
const POOL_WAIT: Duration = Duration::from_secs(30);

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeLimit(Duration);

impl TimeLimit {
    /// Longer than the server's own limit, the lease, by another one. Where one transaction writes at a time, calls wait for
    /// their turn behind handlers of others, and whoever gives up loses it: four times as long.
    pub(crate) fn of(lease: Duration, capacity: Capacity) -> Self {
        let turns = if capacity.writers_max == 1 && capacity.connections_max > 1 {
            4
        } else {
            1
        };
        TimeLimit((lease * 2).max(LIMIT_MIN) * turns)
    }
}

impl Around for TimeLimit {
    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: Call,
        run: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let for_the_pool = if call.name == "begin" {
            POOL_WAIT
        } else {
            Duration::ZERO
        };
        let limit = self.0 + call.waits + for_the_pool;
        match tokio::time::timeout(limit, run).await {
            Ok(answer) => answer,
            Err(_) => {
                let silent = format!("no answer to {} within {limit:?}", call.name);
                Err(StoreError::new(call.kind_unanswered(), "waiting for the store's answer", silent).into())
            }
        }
    }
}
