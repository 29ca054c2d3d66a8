//! Calls that are in flight: how many may be, and that they go on while results of others are stored.

use futures::{Stream, StreamExt};
use std::{future::Future, pin::pin};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Calls that may have been made without their results being stored, for each that may run. A commit takes as long as
/// several calls, and hands that waited for it would lie idle.
pub(crate) const UNSTORED_PER_CALL: u32 = 4;

/// Lanes of one consumer that are prepared for their calls at once: each takes a connection, which consumers beside want too.
const PREPARING: usize = 4;

/// How many calls of one consumer may be in flight.
#[derive(Debug)]
pub(crate) struct Calls {
    running: Semaphore,
    /// Running, or returned and not stored: what is made again after a kill.
    unstored: Semaphore,
    preparing: Semaphore,
}

/// A call's place, from before it is made until its result is stored.
#[derive(Debug)]
pub(crate) struct Place<'c> {
    _unstored: Option<SemaphorePermit<'c>>,
    running: Option<SemaphorePermit<'c>>,
}

impl Calls {
    pub(crate) fn new(running: u32) -> Self {
        let permits = |calls: u32| Semaphore::new((calls as usize).min(Semaphore::MAX_PERMITS));
        Calls {
            running: permits(running),
            unstored: permits(running.saturating_mul(UNSTORED_PER_CALL)),
            preparing: Semaphore::new(PREPARING),
        }
    }

    /// Waits for the turn to claim what is to be called.
    pub(crate) async fn prepare(&self) -> Option<SemaphorePermit<'_>> {
        self.preparing.acquire().await.ok()
    }

    /// Waits for a place. The semaphores are never closed.
    pub(crate) async fn begin(&self) -> Place<'_> {
        let unstored = self.unstored.acquire().await.ok();
        Place {
            running: self.running.acquire().await.ok(),
            _unstored: unstored,
        }
    }
}

impl Place<'_> {
    /// Another call may run; the result is still to be stored.
    pub(crate) fn has_returned(&mut self) {
        self.running = None;
    }
}

/// Whether calls may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// It is not known yet what a failure means for the others.
    Waiting,
    /// What runs is finished, and nothing more is begun.
    Halted,
}

/// What each call passes before it begins.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<State>);

impl Gate {
    pub(crate) fn new() -> Self {
        Gate(watch::Sender::new(State::Open))
    }

    /// Nothing begins until [`Gate::open`].
    pub(crate) fn wait(&self) {
        self.change(State::Open, State::Waiting);
    }

    pub(crate) fn open(&self) {
        self.change(State::Waiting, State::Open);
    }

    /// For good.
    pub(crate) fn halt(&self) {
        self.0.send_replace(State::Halted);
    }

    pub(crate) fn is_halted(&self) -> bool {
        *self.0.borrow() == State::Halted
    }

    /// `false`: nothing more is begun.
    pub(crate) async fn pass(&self) -> bool {
        let mut state = self.0.subscribe();
        let state = state.wait_for(|state| *state != State::Waiting).await;
        state.is_ok_and(|state| *state == State::Open)
    }

    fn change(&self, from: State, to: State) {
        self.0.send_if_modified(|state| {
            let changes = *state == from;
            if changes {
                *state = to;
            }
            changes
        });
    }
}

/// Does something while calls go on: a store that is slow must not stop them, since they have deadlines. What comes back
/// meanwhile is added to `back`.
pub(crate) async fn beside<T, C>(
    running: &mut (impl Stream<Item = C> + Unpin),
    back: &mut Vec<C>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            Some(called) = running.next() => back.push(called),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, executor::block_on, stream::FuturesUnordered};

    #[test]
    fn calls_go_on_while_results_are_stored() {
        let (called, stored) = futures::channel::oneshot::channel();
        let call = async {
            // It is not done when it is looked at first.
            tokio::task::yield_now().await;
            called.send("stored").is_ok()
        };
        let mut running = FuturesUnordered::from_iter([call.boxed_local()]);
        let mut back = Vec::new();
        // The store answers only once the call has come back.
        let answer = block_on(beside(&mut running, &mut back, stored));
        assert_eq!(answer, Ok("stored"));
        assert_eq!(back, [true]);
    }

    #[test]
    fn nothing_begins_while_a_failure_is_looked_at_nor_after_a_halt() {
        let gate = Gate::new();
        assert_eq!(gate.pass().now_or_never(), Some(true));
        gate.wait();
        let mut passing = Box::pin(gate.pass());
        assert_eq!(passing.as_mut().now_or_never(), None);
        gate.open();
        assert_eq!(passing.now_or_never(), Some(true));
        gate.wait();
        gate.halt();
        gate.open();
        assert_eq!(gate.pass().now_or_never(), Some(false));
    }
}
