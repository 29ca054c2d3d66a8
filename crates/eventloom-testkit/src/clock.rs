//! A clock that moves when a test says so, and wakes whoever sleeps on it in the order of their times.

use eventloom_core::{Awake, BoxFuture, Clock, OffsetDateTime};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};
use tokio::sync::{Mutex as TurnMutex, Notify};

/// How long, in real time, one who was woken may take to get going before the clock says that it does not.
const PATIENCE: Duration = Duration::from_secs(60);

/// A virtual clock. Clones are the same clock.
///
/// It begins at the time at which it was made, since rows that programs insert have the database's time, and stands still
/// but for [`VirtualClock::advance`].
///
/// ```
/// use eventloom_core::Clock;
/// use eventloom_testkit::VirtualClock;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let clock = VirtualClock::new();
/// let asleep = tokio::spawn(clock.sleep(Duration::from_secs(3600)));
/// clock.advance(Duration::from_secs(3600)).await;
/// asleep.await.expect("it was woken");
/// # }
/// ```
#[derive(Clone)]
pub struct VirtualClock(Arc<Shared>);

struct Shared {
    begun: Instant,
    begun_at: OffsetDateTime,
    state: Mutex<State>,
    /// Nobody is awake any more.
    asleep: Notify,
    /// Who moves it: one at a time.
    moving: TurnMutex<()>,
}

#[derive(Default)]
struct State {
    elapsed: Duration,
    next: u64,
    /// Who sleeps, by time and by when they went to sleep.
    sleepers: BTreeMap<(Duration, u64), Option<Waker>>,
    /// Who was woken and has not got going, or is not done.
    awake: BTreeSet<u64>,
}

impl Default for VirtualClock {
    fn default() -> Self {
        VirtualClock::new()
    }
}

impl VirtualClock {
    /// A clock that shows the present time.
    pub fn new() -> Self {
        VirtualClock(Arc::new(Shared {
            begun: Instant::now(),
            begun_at: OffsetDateTime::now_utc(),
            state: Mutex::default(),
            asleep: Notify::new(),
            moving: TurnMutex::default(),
        }))
    }

    /// How far it has been moved.
    pub fn elapsed(&self) -> Duration {
        self.state().elapsed
    }

    /// What it shows.
    pub fn time(&self) -> OffsetDateTime {
        self.0.begun_at + self.elapsed()
    }

    /// Moves the clock. It stops at each time for which somebody sleeps, wakes them, and goes on when they have got going:
    /// an engine renews its leases as it would in an hour of real time, whatever the length of the step.
    ///
    /// Whether what they do is *done* when this returns is another question: see
    /// [`TestService::advance`](crate::TestService::advance).
    ///
    /// # Panics
    /// When one who was woken does not get going within a minute of real time: its task is blocked, or waits for this call.
    pub async fn advance(&self, duration: Duration) {
        let _turn = self.0.moving.lock().await;
        let to = self.elapsed() + duration;
        loop {
            self.settled().await;
            let wakers = {
                let mut state = self.state();
                let due = state.sleepers.first_key_value().map(|((at, _), _)| *at);
                let Some(at) = due.filter(|at| *at <= to) else {
                    state.elapsed = to;
                    return;
                };
                state.elapsed = state.elapsed.max(at);
                let mut wakers = Vec::new();
                while let Some(entry) = state.sleepers.first_entry()
                    && entry.key().0 <= at
                {
                    let ((_, id), waker) = entry.remove_entry();
                    state.awake.insert(id);
                    wakers.extend(waker);
                }
                wakers
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Simulates a process that stood still, or a host that slept: the clock jumps, and whoever slept meanwhile wakes late.
    /// A lease that was not renewed within it has lapsed.
    pub async fn jump(&self, duration: Duration) {
        {
            let _turn = self.0.moving.lock().await;
            self.state().elapsed += duration;
        }
        self.advance(Duration::ZERO).await;
    }

    async fn settled(&self) {
        let settling = async {
            loop {
                let asleep = self.0.asleep.notified();
                if self.state().awake.is_empty() {
                    return;
                }
                asleep.await;
            }
        };
        if tokio::time::timeout(PATIENCE, settling).await.is_err() {
            let awake = self.state().awake.len();
            panic!(
                "{awake} who were woken have not got going for {PATIENCE:?}: a task is blocked, or waits for the clock to be moved"
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock").field(&self.elapsed()).finish()
    }
}

impl Clock for VirtualClock {
    fn bind(&self) -> Option<OffsetDateTime> {
        Some(self.time())
    }

    fn now(&self) -> Instant {
        self.0.begun + self.elapsed()
    }

    fn wake_at(&self, until: Instant) -> BoxFuture<'static, Awake> {
        let at = until.saturating_duration_since(self.0.begun);
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        if at <= state.elapsed {
            state.awake.insert(id);
        } else {
            state.sleepers.insert((at, id), None);
        }
        drop(state);
        let clock = self.clone();
        Box::pin(Sleep {
            clock,
            at,
            id: Some(id),
        })
    }
}

struct Sleep {
    clock: VirtualClock,
    at: Duration,
    /// `None` once it is done: then the guard has it.
    id: Option<u64>,
}

impl Future for Sleep {
    type Output = Awake;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Awake> {
        let clock = self.clock.clone();
        let Some(id) = self.id else {
            return Poll::Ready(Awake::default());
        };
        if let Some(waker) = clock.state().sleepers.get_mut(&(self.at, id)) {
            *waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.id = None;
        Poll::Ready(Awake::holding(Guard { clock, id }))
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.state().sleepers.remove(&(self.at, id));
            done(&self.clock, id);
        }
    }
}

struct Guard {
    clock: VirtualClock,
    id: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        done(&self.clock, self.id);
    }
}

fn done(clock: &VirtualClock, id: u64) {
    let mut state = clock.state();
    state.awake.remove(&id);
    if state.awake.is_empty() {
        clock.0.asleep.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_times() {
        let clock = VirtualClock::new();
        let (send, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let mut asleep = Vec::new();
        for seconds in [3, 1, 2, 1] {
            let (own, send) = (clock.clone(), send.clone());
            let slept = clock.sleep(SECOND * seconds);
            asleep.push(tokio::spawn(async move {
                slept.await;
                let _ = send.send((seconds, own.elapsed().as_secs() >= u64::from(seconds)));
            }));
        }
        tokio::task::yield_now().await;
        clock.advance(SECOND * 2).await;
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(woken.recv().await);
        }
        assert_eq!(seen, [Some((1, true)), Some((1, true)), Some((2, true))]);
        assert!(woken.try_recv().is_err(), "the fourth sleeps on");
        clock.advance(SECOND).await;
        assert_eq!(woken.recv().await, Some((3, true)));
    }

    #[tokio::test]
    async fn it_stands_still_while_one_who_was_woken_is_not_done() {
        let clock = VirtualClock::new();
        let (own, wake) = (clock.clone(), clock.wake_at(clock.now() + SECOND));
        let renewing = tokio::spawn(async move {
            let awake = wake.await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let seen = own.elapsed();
            drop(awake);
            seen
        });
        tokio::task::yield_now().await;
        clock.advance(SECOND * 3600).await;
        assert_eq!(renewing.await.ok(), Some(SECOND));
        assert_eq!(clock.elapsed(), SECOND * 3600);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_time_passes_between_one_renewal_and_the_asking_for_the_next() {
        let clock = VirtualClock::new();
        let (own, begun) = (clock.clone(), clock.now());
        let first = clock.wake_at(begun + SECOND);
        let renewing = tokio::spawn(async move {
            let mut next = first;
            for nth in 1..=1000 {
                let awake = next.await;
                assert_eq!(own.elapsed(), SECOND * nth);
                next = own.wake_at(begun + SECOND * (nth + 1));
                drop(awake);
                // The next one is polled only later.
                tokio::task::yield_now().await;
            }
        });
        clock.advance(SECOND * 1000).await;
        renewing.await.unwrap();
    }

    #[tokio::test]
    async fn one_who_does_not_wait_any_more_holds_nobody_up() {
        let clock = VirtualClock::new();
        let mut asleep = clock.sleep(SECOND);
        assert!(futures::poll!(&mut asleep).is_pending());
        drop(asleep);
        clock.advance(SECOND * 2).await;
        let mut asleep = clock.sleep(SECOND);
        assert!(futures::poll!(&mut asleep).is_pending());
        clock.jump(Duration::ZERO).await;
        assert!(futures::poll!(&mut asleep).is_pending());
    }
}
