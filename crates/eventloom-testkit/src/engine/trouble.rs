//! A store that fails, or goes silent, when a case says so.

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

/// A store with trouble around its calls.
pub(crate) type Troubled<S> = Surrounded<S, Trouble>;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It fails before it reaches the store, as a lost connection does.
    Fail,
    /// It is not answered, ever.
    Silence,
    /// It is answered, this much later.
    Late(Duration),
    /// The one who calls panics.
    Panic,
}

#[derive(Debug, Default)]
struct State {
    /// For each method: what happens to its next calls, and to how many of them.
    ahead: HashMap<&'static str, (Then, u32)>,
}

/// The trouble of one store, steered by its case.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble(Arc<Mutex<State>>);

impl Trouble {
    /// Lets the next calls of a method fail or hang.
    pub(crate) fn next(&self, name: &'static str, then: Then, calls: u32) {
        self.state().ahead.insert(name, (then, calls));
    }

    /// How many calls of those that were announced have not been made yet.
    pub(crate) fn left(&self, name: &str) -> u32 {
        self.state().ahead.get(name).map_or(0, |(_, left)| *left)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, call: Call) -> Option<Then> {
        let mut state = self.state();
        let (then, left) = state.ahead.get_mut(call.name).filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some(*then)
    }
}

impl Around for Trouble {
    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: Call,
        run: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        match self.of(call) {
            None => run.await,
            Some(Then::Silence) => std::future::pending().await,
            Some(Then::Panic) => panic!("planted at {}", call.name),
            Some(Then::Late(by)) => {
                // pacing: the store's own
                tokio::time::sleep(by).await;
                run.await
            }
            Some(Then::Fail) => {
                let lost = format!("the connection was lost at {}", call.name);
                Err(StoreError::new(StoreErrorKind::Unreachable, "testing", lost).into())
            }
        }
    }
}
