//! A store that fails, or goes silent, when a test says so.

use eventloom_core::{
    StoreError, StoreErrorKind,
    ports::{Around, Call, Surrounded},
};
use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A store with faults around its calls.
pub type FaultyStore<S> = Surrounded<S, StoreFaults>;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// It fails before it reaches the store, as a lost connection does.
    Fail,
    /// It reaches the store and is done there, and its answer is lost: after a commit nobody knows whether it happened.
    DropReply,
    /// It is not answered, ever. Whoever asks gives it up, in real time: an engine within twice the lease of its consumer,
    /// and within four times as much where one transaction writes at a time; so use a short lease.
    Silence,
    /// It is answered, this much later in real time.
    Late(Duration),
    /// The one who calls panics.
    Panic,
}

#[derive(Debug, Default)]
struct State {
    /// For each method: calls that are let through first, what happens to the next ones, and to how many of them.
    ahead: HashMap<String, (u32, StoreFault, u32)>,
    every: Option<StoreFault>,
}

/// The faults of a store, by the names of its methods in [`eventloom_core::ports`]: `commit`, `begin`, `advance`, `keep`,
/// `read_after` and so on. Clones are the same. Not met are functions without `self`, such as `append`, and what a handler
/// runs on its connection.
///
/// A [`TestService`](crate::TestService) looks through `horizon`, `due` and `readers`, and publishes through `begin` and
/// `commit`: announce a fault after publishing, or publish through the store itself.
///
/// ```
/// use eventloom_core::ports::Backend;
/// use eventloom_testkit::faults::{FaultyStore, StoreFault, StoreFaults};
///
/// fn faulty<S: Backend>(store: S) -> (FaultyStore<S>, StoreFaults) {
///     let faults = StoreFaults::default();
///     faults.nth("commit", 3, StoreFault::DropReply);
///     faults.next("read_after", StoreFault::Fail, 2);
///     (FaultyStore::new(store, faults.clone()), faults)
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StoreFaults(Arc<Mutex<State>>);

impl StoreFaults {
    /// Lets this happen to the next `calls` calls of a method. Forgets what was announced for it before.
    pub fn next(&self, method: &str, fault: StoreFault, calls: u32) {
        self.state().ahead.insert(method.to_owned(), (0, fault, calls));
    }

    /// Lets this happen to the `nth` call of a method from now on, counted from 1, and to no other.
    pub fn nth(&self, method: &str, nth: u32, fault: StoreFault) {
        let through = nth.saturating_sub(1);
        self.state().ahead.insert(method.to_owned(), (through, fault, 1));
    }

    /// Lets this happen to every call from now on: a store that is down, or silent.
    pub fn every(&self, fault: StoreFault) {
        self.state().every = Some(fault);
    }

    /// Forgets everything that was announced.
    pub fn mend(&self) {
        *self.state() = State::default();
    }

    /// How many of the announced calls of a method have not been made yet. A test whose fault was never met has shown nothing.
    pub fn left(&self, method: &str) -> u32 {
        self.state().ahead.get(method).map_or(0, |(_, _, left)| *left)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, call: Call) -> Option<StoreFault> {
        let mut state = self.state();
        let every = state.every;
        let Some((through, fault, left)) = state.ahead.get_mut(call.name).filter(|(_, _, left)| *left > 0) else {
            return every;
        };
        if *through > 0 {
            *through -= 1;
            return every;
        }
        *left -= 1;
        Some(*fault)
    }
}

impl Around for StoreFaults {
    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: Call,
        run: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let lost = |kind| {
            let lost = format!("the connection was lost at {}", call.name);
            StoreError::new(kind, "testing", lost).into()
        };
        match self.of(call) {
            None => run.await,
            Some(StoreFault::Silence) => std::future::pending().await,
            Some(StoreFault::Panic) => panic!("planted at {}", call.name),
            Some(StoreFault::Late(by)) => {
                // pacing: the store's own
                tokio::time::sleep(by).await;
                run.await
            }
            Some(StoreFault::DropReply) => {
                run.await?;
                Err(lost(call.kind_unanswered()))
            }
            Some(StoreFault::Fail) => Err(lost(StoreErrorKind::Unreachable)),
        }
    }
}
