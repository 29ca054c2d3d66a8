//! A service under a virtual clock, run until it has nothing left to do.

use crate::{Published, SetAside, VirtualClock};
use eventloom_core::{
    Clock, ConsumerName, Event, NewEvent, OwnerId, PublishError, StoreError, Topic, Uuid,
    ports::{Backend, ReadError, Redrive, RegisterError, Scope, Start, Transaction as _},
};
use eventloom_runtime::{Eventloom, Outstanding, Service, ShutdownError, StartError};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long, in real time, nothing may be finished before a test service gives up. Only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How far the clock is moved at a time where lanes wait for the end of somebody else's lease.
const LEASE_STEP: Duration = Duration::from_secs(1);

/// A service for tests: a store, consumers and relays, and a clock that stands still.
///
/// The log is not pruned, so that [`TestService::published`] sees all of it; `configure` may turn that on.
///
/// ```
/// use eventloom_core::{Event, Topic, ports::Backend};
/// use eventloom_runtime::Consumer;
/// use eventloom_testkit::TestService;
/// use std::{error::Error, time::Duration};
///
/// async fn test<S: Backend, E: Event>(store: S, invoicing: Consumer<S>, placed: E) -> Result<(), Box<dyn Error>> {
///     let mut service = TestService::start(store, |service| service.consumer(invoicing)).await?;
///     service.publish(Topic::new("orders"), &placed).await?;
///     let ran = service.run_until_idle().await?;
///     assert_eq!(ran.of("invoicing").handled, 1);
///     service.stop().await?;
///     Ok(())
/// }
/// ```
pub struct TestService<S: Backend> {
    store: S,
    clock: VirtualClock,
    service: Service<S>,
    patience: Duration,
    /// Counts at the end of the last run.
    counted: BTreeMap<String, Counts>,
}

/// What happened in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ran {
    /// How far the clock was moved.
    pub advanced: Duration,
    /// What is waited for, and how long until then: nothing more happens before the clock is moved.
    pub waiting: Option<(Duration, String)>,
    /// Of each consumer and relay, what it did.
    pub consumers: BTreeMap<String, Counts>,
}

impl Ran {
    /// What a consumer or a relay did.
    ///
    /// # Panics
    /// When there is none of this name.
    #[track_caller]
    pub fn of(&self, consumer: &str) -> &Counts {
        match self.consumers.get(consumer) {
            Some(counts) => counts,
            None => panic!("there is no consumer {consumer:?}, but: {:?}", self.consumers.keys()),
        }
    }
}

/// What a consumer or a relay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Messages handled, or confirmed by the broker.
    pub handled: u64,
    /// Second deliveries that had no second effect.
    pub duplicates: u64,
    /// Messages of types without a handler.
    pub unhandled: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Messages set aside to be tried again, or behind their key.
    pub held: u64,
    /// Messages that became dead letters.
    pub dead: u64,
}

/// A service still had something to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Nothing was finished for a while of real time, and something is still being done.
    #[error("not idle after {after:?} of real time without progress:{doing}")]
    Busy {
        /// How long.
        after: Duration,
        /// What each consumer still does, and the last trouble it had.
        doing: String,
    },
    /// The clock was moved as far as allowed, and something is still to come.
    #[error("moved the clock by {limit:?}, and there is still to come:{coming}")]
    Limit {
        /// As far as allowed.
        limit: Duration,
        /// What is waited for.
        coming: String,
    },
    /// The store did not answer.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<S: Backend> TestService<S> {
    /// Starts a service on a store, with a clock of its own. `configure` adds consumers and relays.
    ///
    /// # Errors
    /// What cannot work as it was described.
    pub async fn start(store: S, configure: impl FnOnce(Eventloom<S>) -> Eventloom<S>) -> Result<Self, StartError> {
        TestService::start_on(store, VirtualClock::new(), configure).await
    }

    /// Starts a service on a store, with a clock that others have too: further instances, or services at both ends of a
    /// relay.
    ///
    /// # Errors
    /// What cannot work as it was described.
    pub async fn start_on(
        store: S,
        clock: VirtualClock,
        configure: impl FnOnce(Eventloom<S>) -> Eventloom<S>,
    ) -> Result<Self, StartError> {
        let eventloom = Eventloom::new(store.clone()).keep_log(None).clock(clock.clone());
        Ok(TestService {
            service: configure(eventloom).start().await?,
            store,
            clock,
            patience: PATIENCE,
            counted: BTreeMap::new(),
        })
    }

    /// How long, in real time, nothing may be finished before a run gives up; 30 s unless said otherwise.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Its clock.
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }

    /// Its store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The service itself.
    pub fn service(&self) -> &Service<S> {
        &self.service
    }

    /// Publishes an event in a transaction of its own, as another program would. Returns its logical id.
    ///
    /// # Errors
    /// As those of publishing.
    pub async fn publish<E: Event>(&self, topic: Topic, event: &E) -> Result<Uuid, PublishError> {
        let row = NewEvent::of(topic, event)?;
        let id = row.id();
        self.publish_rows(&[row]).await?;
        Ok(id)
    }

    /// Publishes rows in one transaction, in the order given.
    ///
    /// # Errors
    /// As those of publishing.
    pub async fn publish_rows(&self, rows: &[NewEvent]) -> Result<(), PublishError> {
        for row in rows {
            self.store.limits().check(row)?;
        }
        let reader = legal("publisher");
        let owner = OwnerId::new("test", std::process::id());
        let scope = Scope {
            reader: &reader,
            owner: &owner,
            limit: PATIENCE,
        };
        let mut tx = self.store.begin(scope).await?;
        S::append(self.store.tables(), &mut tx, rows).await?;
        Ok(tx.commit().await?)
    }

    /// Runs until nothing is left to do at the present time of the clock: every row was passed, nothing is due, nothing is
    /// in flight. What waits for a later time is told in [`Ran::waiting`].
    ///
    /// # Errors
    /// [`RunError::Busy`] with what is still being done, when nothing was finished for a while: a handler that hangs, lanes
    /// that another instance does not give back.
    pub async fn run_until_idle(&mut self) -> Result<Ran, RunError> {
        let waiting = self.until_idle().await?;
        Ok(self.ran(Duration::ZERO, waiting))
    }

    /// Moves the clock, with a stop at each time at which something is due, until nothing is left to do there.
    ///
    /// # Errors
    /// As those of [`TestService::run_until_idle`].
    pub async fn advance(&mut self, duration: Duration) -> Result<Ran, RunError> {
        let mut left = duration;
        let mut waiting = self.until_idle().await?;
        while !left.is_zero() {
            let step = waiting.map_or(left, |(next, _)| next.min(left));
            self.clock.advance(step).await;
            left -= step;
            waiting = self.until_idle().await?;
        }
        Ok(self.ran(duration, waiting))
    }

    /// Runs until nothing is left to do, ever, unless somebody publishes: moves the clock to whatever is due next, again
    /// and again, `limit` at most. Dead letters, and what stands behind them, are not due.
    ///
    /// # Errors
    /// As those of [`TestService::run_until_idle`]; and [`RunError::Limit`] with what is still to come.
    pub async fn advance_until_idle(&mut self, limit: Duration) -> Result<Ran, RunError> {
        let mut advanced = Duration::ZERO;
        loop {
            let Some((next, what)) = self.until_idle().await? else {
                return Ok(self.ran(advanced, None));
            };
            if advanced + next > limit {
                let coming = format!("\n  {what}, in {next:?}");
                return Err(RunError::Limit { limit, coming });
            }
            self.clock.advance(next).await;
            advanced += next;
        }
    }

    /// What stands in the log.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn published(&self) -> Result<Published, ReadError> {
        Published::read(&self.store).await
    }

    /// What a consumer or a relay has set aside.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn set_aside(&self, consumer: &str) -> Result<SetAside, StoreError> {
        SetAside::read(&self.store, consumer).await
    }

    /// Makes dead letters due at once, at the clock's time. Returns how many.
    ///
    /// # Errors
    /// The store did not answer.
    ///
    /// # Panics
    /// When the name is not legal.
    pub async fn redrive(&self, consumer: &str, which: &Redrive) -> Result<u64, StoreError> {
        self.store.redrive(&legal(consumer), which, self.clock.bind()).await
    }

    /// Has everything that is still in the log delivered to a consumer once more, as after a reset. `forget_handled`: its
    /// inbox is emptied too, so that every effect comes a second time that is not idempotent by itself.
    ///
    /// # Errors
    /// The store did not answer.
    ///
    /// # Panics
    /// When the name is not legal.
    pub async fn redeliver(&self, consumer: &str, forget_handled: bool) -> Result<(), RegisterError> {
        let name = legal(consumer);
        self.store
            .reset(&name, Start::Earliest, forget_handled, self.clock.bind())
            .await?;
        Ok(())
    }

    /// Ends the service as a crash does: what ran is rolled back, and its leases stand until they lapse on the clock.
    pub fn crash(self) -> (S, VirtualClock) {
        drop(self.service);
        (self.store, self.clock)
    }

    /// Ends the service in order, and gives its lanes back.
    ///
    /// # Errors
    /// Something still ran after 30 s of real time.
    pub async fn stop(self) -> Result<(S, VirtualClock), ShutdownError> {
        self.service.shutdown(PATIENCE).await?;
        Ok((self.store, self.clock))
    }

    /// Returns what is waited for on the clock.
    async fn until_idle(&self) -> Result<Option<(Duration, String)>, RunError> {
        let mut progress = (Instant::now(), self.counts());
        loop {
            let looked = tokio::time::timeout(self.patience, self.outstanding()).await;
            let given_up = progress.0.elapsed() > self.patience;
            match looked {
                Ok(Ok(outstanding)) if outstanding.iter().all(|left| left.working.is_empty()) => {
                    return Ok(outstanding.into_iter().filter_map(|left| left.waiting).min());
                }
                Ok(Ok(outstanding)) if given_up => return Err(self.busy(&outstanding)),
                Ok(Err(error)) if given_up => return Err(error),
                Err(_) => return Err(self.busy(&[])),
                // The engine goes on when a store fails for a moment, and so does who looks at it.
                Ok(_) => {}
            }
            let counts = self.counts();
            if counts != progress.1 {
                progress = (Instant::now(), counts);
            }
            // pacing: of the poll; the condition decides
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// What its consumers have to do. Lanes that are nobody's are taken when the lease is renewed next.
    async fn outstanding(&self) -> Result<Vec<Outstanding>, RunError> {
        let mut all = self.service.outstanding().await?;
        if all.iter().any(|left| !left.working.is_empty()) {
            return Ok(all);
        }
        for reader in self.store.readers(self.clock.bind()).await? {
            let free = reader.lanes.iter().filter(|lane| lane.owner.is_none()).count();
            if free > 0
                && let Some(left) = all.iter_mut().find(|left| left.consumer == reader.name)
            {
                let taken = (LEASE_STEP, format!("{free} free lanes to be taken"));
                left.waiting = Some(left.waiting.take().map_or(taken.clone(), |other| other.min(taken)));
            }
        }
        Ok(all)
    }

    fn counts(&self) -> BTreeMap<String, Counts> {
        let health = self.service.consumers().into_iter();
        health
            .map(|consumer| {
                let counts = Counts {
                    handled: consumer.handled,
                    duplicates: consumer.duplicates,
                    unhandled: consumer.unhandled,
                    failures: consumer.failures,
                    held: consumer.held,
                    dead: consumer.dead,
                };
                (consumer.name, counts)
            })
            .collect()
    }

    fn ran(&mut self, advanced: Duration, waiting: Option<(Duration, String)>) -> Ran {
        let counts = self.counts();
        let before = std::mem::replace(&mut self.counted, counts.clone());
        let since = |(name, now): (String, Counts)| {
            let before = before.get(&name).copied().unwrap_or_default();
            let counts = Counts {
                handled: now.handled - before.handled,
                duplicates: now.duplicates - before.duplicates,
                unhandled: now.unhandled - before.unhandled,
                failures: now.failures - before.failures,
                held: now.held - before.held,
                dead: now.dead - before.dead,
            };
            (name, counts)
        };
        Ran {
            advanced,
            waiting,
            consumers: counts.into_iter().map(since).collect(),
        }
    }

    /// `outstanding` is empty where the store did not tell.
    fn busy(&self, outstanding: &[Outstanding]) -> RunError {
        let told = self.service.consumers().into_iter().map(|consumer| {
            let left = outstanding.iter().find(|left| left.consumer == consumer.name);
            let doing = left.map_or("the store does not answer".to_owned(), |left| left.working.join(", "));
            let trouble = consumer
                .trouble
                .map_or(String::new(), |(_, what)| format!("; its last trouble: {what}"));
            format!("\n  {}: {doing}{trouble}", consumer.name)
        });
        RunError::Busy {
            after: self.patience,
            doing: told.collect(),
        }
    }
}

fn legal(name: &str) -> ConsumerName {
    match ConsumerName::parse(name) {
        Ok(name) => name,
        Err(error) => panic!("{name:?} is no consumer: {error}"),
    }
}
