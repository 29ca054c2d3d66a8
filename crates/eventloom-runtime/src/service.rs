//! One object on which everything starts and stops.

use crate::{
    clock::TokioClock,
    consumer::{Consumer, Mode},
    drain, fetch,
    group::{Group, Process, Settings},
    health::{ConsumerHealth, Health},
    housekeeping::{self, Keep},
    membership,
    tail::Tail,
    tasks::{Tasks, restarted},
    time_limit::{Bounded, TimeLimit, ports::*},
    worker,
};
use eventloom_core::{
    Clock, ConsumerName, NameError, OwnerId, StoreErrorKind, chain,
    ports::{Backend, Capacity, RegisterError},
};
use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Calls to the outside at once, unless a consumer says otherwise.
const CALLS_DEFAULT: u32 = 16;
/// Transactions at once, unless a consumer says otherwise or the pool is smaller.
const WORKERS_DEFAULT: u32 = 4;
/// The longest that one handler may run.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long the results of requests are kept, unless said otherwise.
const ONCE_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
const REGISTER_RETRY_FIRST: Duration = Duration::from_millis(100);
const REGISTER_RETRY_MOST: Duration = Duration::from_secs(5);

/// A service's events: its store, and the consumers that follow its log.
///
/// ```
/// use eventloom_core::ports::Backend;
/// use eventloom_runtime::{Consumer, Eventloom};
/// use std::{error::Error, future::Future, time::Duration};
///
/// async fn run<S: Backend>(store: S, invoicing: Consumer<S>, stop: impl Future) -> Result<(), Box<dyn Error>> {
///     let service = Eventloom::new(store).consumer(invoicing).start().await?;
///     stop.await;
///     Ok(service.shutdown(Duration::from_secs(30)).await?)
/// }
/// ```
pub struct Eventloom<S: Backend> {
    store: S,
    consumers: Vec<Consumer<S>>,
    clock: Arc<dyn Clock>,
    host: String,
    keep: Keep,
}

/// A service was not started. Nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A consumer's name is not legal.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two consumers have the same name: they would share cursors.
    #[error("two consumers are named {name:?}; a name stands for one set of cursors")]
    NamedTwice {
        /// The name.
        name: String,
    },
    /// A consumer cannot be started as it was described.
    #[error("consumer {name:?}: {why}")]
    Consumer {
        /// The consumer.
        name: String,
        /// What is wrong, with the numbers.
        why: String,
    },
    /// The consumer could not be registered.
    #[error("consumer {name:?} cannot begin")]
    Register {
        /// The consumer.
        name: String,
        /// Why.
        #[source]
        source: RegisterError,
    },
}

/// Shutting down took longer than allowed: what was still running was dropped and rolled back, and is delivered again.
#[derive(Debug, thiserror::Error)]
#[error("{tasks} tasks were still running after {within:?}; their work was rolled back and will be delivered again")]
pub struct ShutdownError {
    tasks: usize,
    within: Duration,
}

impl<S: Backend> Eventloom<S> {
    /// A service on this store.
    pub fn new(store: S) -> Self {
        let host = std::env::var("HOSTNAME").or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"));
        Eventloom {
            store,
            consumers: Vec::new(),
            clock: Arc::new(TokioClock),
            host: host.unwrap_or_default().trim().to_owned(),
            keep: Keep {
                log: Some(Duration::ZERO),
                once: Some(ONCE_WINDOW),
            },
        }
    }

    /// Adds a consumer.
    #[must_use]
    pub fn consumer(mut self, consumer: Consumer<S>) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Another source of time: a virtual clock in tests.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The name of this host, as it appears in owners; the system's own unless said otherwise.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self
    }

    /// Keeps rows of the log for this long although every consumer has passed them. Pruning is on by default and keeps
    /// nothing; `None` turns it off.
    #[must_use]
    pub fn keep_log(mut self, keep: Option<Duration>) -> Self {
        self.keep.log = keep;
        self
    }

    /// How long results of [`once`](crate::once) are kept under their keys, of whatever scope; 7 days unless said
    /// otherwise, and for ever with `None`. A key that comes again later is new. Where several services share a database
    /// the shortest window decides; where none runs consumers, call
    /// [`forget_once`](eventloom_core::ports::Inbox::forget_once) yourself.
    #[must_use]
    pub fn keep_once(mut self, window: Option<Duration>) -> Self {
        self.keep.once = window;
        self
    }

    /// Checks everything, registers the consumers and starts their tasks. A store that cannot be reached is waited for.
    ///
    /// # Errors
    /// What could never work is refused before anything runs, with the numbers.
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing; consumers may have been registered.
    pub async fn start(self) -> Result<Service<S>, StartError> {
        let capacity = self.store.capacity();
        let mut names = HashSet::new();
        let mut checked = Vec::new();
        let consumers = self.consumers.len() as u32;
        let mut asked_before = 0;
        for consumer in self.consumers {
            let settings = check(&consumer, capacity, consumers, asked_before)?;
            if settings.mode == Mode::Transaction {
                asked_before += consumer.in_flight.unwrap_or(0);
            }
            if !names.insert(settings.name.to_string()) {
                return Err(StartError::NamedTwice { name: consumer.name });
            }
            checked.push((settings, consumer));
        }
        let leases = checked.iter().map(|(settings, _)| settings.lease);
        let limit = TimeLimit::of(leases.max().unwrap_or_default(), capacity);
        let store = Bounded::new(self.store, limit);
        let process = Arc::new(Process {
            _reserve: store.reserve(),
            tail: Tail::new(store.clone()),
            store,
            owner: OwnerId::new(&self.host, std::process::id()),
            clock: self.clock,
            suspects: Arc::new(Semaphore::new(
                if eventloom_core::faults::defect("two_suspects_at_a_time") {
                    64
                } else {
                    1
                },
            )),
            stopping: CancellationToken::new(),
        });
        let mut groups = Vec::new();
        for (settings, consumer) in checked {
            register(&process, &settings).await?;
            groups.push(Arc::new(Group::new(process.clone(), settings, consumer)));
        }
        let abort = CancellationToken::new();
        let mut tasks = Tasks::new(process.stopping.clone());
        for group in &groups {
            spawn_group(&mut tasks, &abort, group);
        }
        let (pruning, pruned, keep) = (process.clone(), groups.clone(), self.keep);
        let noted = groups.clone();
        tasks.spawn(until(
            abort.clone(),
            restarted(
                move || housekeeping::prune(pruning.clone(), pruned.clone(), keep),
                move || noted.iter().for_each(|group| note_panic(group)),
            ),
        ));
        Ok(Service {
            process,
            groups,
            abort,
            tasks,
        })
    }
}

fn spawn_group<S: Backend>(tasks: &mut Tasks, abort: &CancellationToken, group: &Arc<Group<S>>) {
    // Membership goes on until these have ended: what still runs needs its lease.
    let working = TaskTracker::new();
    for _ in 0..group.settings.workers {
        tasks.spawn(working.track_future(until(abort.clone(), supervise(group.clone(), worker::run))));
    }
    tasks.spawn(working.track_future(until(abort.clone(), supervise(group.clone(), drain::run))));
    tasks.spawn(working.track_future(until(abort.clone(), supervise(group.clone(), housekeeping::stride))));
    tasks.spawn(until(abort.clone(), supervise(group.clone(), fetch::run)));
    working.close();
    tasks.spawn(supervise(group.clone(), move |group| {
        let working = working.clone();
        async move { membership::run(group, working.wait()).await }
    }));
}

async fn until(abort: CancellationToken, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        () = abort.cancelled() => {}
    }
}

/// A panic of the engine itself must not leave a lane busy for ever: every lane is dropped and taken anew.
async fn supervise<S: Backend, Fut: Future<Output = ()>>(group: Arc<Group<S>>, task: impl Fn(Arc<Group<S>>) -> Fut) {
    let clear = || {
        note_panic(&group);
        let cursors = group.lanes().cursors();
        group.forget(cursors);
    };
    restarted(|| task(group.clone()), clear).await;
}

fn note_panic<S: Backend>(group: &Group<S>) {
    group.note_trouble(
        "a task of the engine panicked and is started again",
        &"please report it",
    );
}

/// A store that cannot be reached is waited for; whatever else is wrong stops the start.
async fn register<S: Backend>(process: &Process<S>, settings: &Settings) -> Result<(), StartError> {
    let mut retry = REGISTER_RETRY_FIRST;
    loop {
        let registered = process
            .store
            .register(&settings.name, settings.start, process.clock.bind())
            .await;
        match registered {
            Ok(registration) => {
                if registration.created {
                    tracing::info!(consumer = %settings.name, begins_after = %registration.begins_after,
                        pruned_to = %registration.pruned_to, "registered a new consumer");
                }
                return Ok(());
            }
            Err(RegisterError::Store(error))
                if matches!(
                    error.kind(),
                    StoreErrorKind::Unreachable
                        | StoreErrorKind::Conflict
                        | StoreErrorKind::Timeout
                        | StoreErrorKind::Indeterminate
                ) =>
            {
                tracing::warn!(store = %process.store.place(), error = %chain(&error), "waiting for the store");
                process.clock.sleep(retry).await;
                retry = (retry * 2).min(REGISTER_RETRY_MOST);
            }
            Err(source) => {
                return Err(StartError::Register {
                    name: settings.name.to_string(),
                    source,
                });
            }
        }
    }
}

/// A consumer's settings, or why they cannot work. `asked_before`: transactions at once that other consumers ask for.
fn check<S: Backend>(
    consumer: &Consumer<S>,
    capacity: Capacity,
    consumers: u32,
    asked_before: u32,
) -> Result<Settings, StartError> {
    let name = ConsumerName::parse(&consumer.name)?;
    let refuse = |why: String| {
        Err(StartError::Consumer {
            name: consumer.name.clone(),
            why,
        })
    };
    if consumer.mixed {
        return refuse("it has two handlers for one type, or handlers of both modes; make it two consumers".to_owned());
    }
    let Some(mode) = consumer.mode() else {
        return refuse("it has no handler; add one with .handle(…) or .effect(…)".to_owned());
    };
    if consumer.topics.is_empty() {
        return refuse("it follows no topic; add one with .topic(…)".to_owned());
    }
    if !(1..=1000).contains(&consumer.attempts_max) {
        return refuse(format!("attempts {} is not between 1 and 1000", consumer.attempts_max));
    }
    if !(1..=10_000).contains(&consumer.batch_max) {
        return refuse(format!("batch_max {} is not between 1 and 10000", consumer.batch_max));
    }
    if !(Duration::from_millis(300)..=Duration::from_secs(3600)).contains(&consumer.lease) {
        return refuse(format!("lease {:?} is not between 300ms and 1h", consumer.lease));
    }
    let lease = consumer.lease;
    let deadline = consumer.deadline.unwrap_or(match mode {
        // Before the store ends a transaction that stands idle: a hanging handler is the message's failure, not the store's.
        Mode::Transaction => lease * 3 / 4,
        Mode::Effect => Duration::from_secs(30),
    });
    if deadline > DEADLINE_MAX {
        return refuse(format!("deadline {deadline:?} is longer than {DEADLINE_MAX:?}"));
    }
    // The store ends a transaction that stands idle for a lease: whoever hangs that long would be the store's failure, and
    // would be tried for ever.
    let deadline_max = lease * 9 / 10;
    if deadline.is_zero() || (mode == Mode::Transaction && deadline > deadline_max) {
        return refuse(format!(
            "deadline {deadline:?} does not fit into lease {lease:?}: a handler must end within nine tenths of it, \
             {deadline_max:?}; lengthen the lease, or use mode effect for slow calls"
        ));
    }
    let retries = consumer.backoff.horizon(consumer.attempts_max);
    let redelivery = lease.saturating_add(retries);
    if consumer.inbox && consumer.inbox_window < redelivery {
        return refuse(format!(
            "inbox_window {:?} is shorter than the longest redelivery {redelivery:?} = lease {lease:?} + retries {retries:?}",
            consumer.inbox_window
        ));
    }
    if !consumer.inbox && mode == Mode::Effect {
        return refuse("mode effect needs the inbox: it stores the result of the call".to_owned());
    }
    // One connection is kept for leases, where there is more than one.
    let usable = capacity.connections_max.saturating_sub(1).max(1);
    let (workers, in_flight) = match (mode, consumer.in_flight) {
        (_, Some(0)) => return refuse("in_flight 0 handles nothing".to_owned()),
        (Mode::Transaction, Some(asked)) if asked > usable => {
            return refuse(format!(
                "in_flight {asked} needs {} connections (one is kept for leases), and the pool has {}",
                asked + 1,
                capacity.connections_max
            ));
        }
        (Mode::Transaction, Some(asked)) if asked + asked_before > usable => {
            return refuse(format!(
                "in_flight {asked} and the {asked_before} of consumers before it need {} connections (one is kept for \
                 leases), and the pool has {}",
                asked + asked_before + 1,
                capacity.connections_max
            ));
        }
        (Mode::Transaction, Some(asked)) => (asked, asked),
        (Mode::Transaction, None) => {
            let fair = (usable / consumers.max(1)).max(1);
            let workers = WORKERS_DEFAULT.min(fair).min(capacity.writers_max);
            (workers, workers)
        }
        (Mode::Effect, asked) => {
            let calls = asked.unwrap_or(CALLS_DEFAULT);
            (calls.min(64), calls)
        }
    };
    Ok(Settings {
        name,
        topics: consumer.topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
        mode,
        start: consumer.start,
        attempts_max: consumer.attempts_max,
        backoff: consumer.backoff,
        poison: consumer.poison,
        unhandled: consumer.unhandled,
        deadline,
        lease,
        workers,
        in_flight,
        batch_max: consumer.batch_max,
        inbox: consumer.inbox,
        inbox_window: consumer.inbox_window,
        held_per_key_max: consumer.held_per_key_max,
        held_max: consumer.held_max,
    })
}

/// A running service. Dropping it aborts its tasks; what was in flight is rolled back and delivered again.
pub struct Service<S: Backend> {
    process: Arc<Process<S>>,
    groups: Vec<Arc<Group<S>>>,
    abort: CancellationToken,
    tasks: Tasks,
}

impl<S: Backend> Service<S> {
    /// Stops fetching, finishes what runs, hands the lanes over, and returns when all is done.
    ///
    /// Takes up to 6 s longer than `within` when it has to drop work: the lanes are still handed over then.
    ///
    /// # Errors
    /// What was still running after `within` is dropped: rolled back, and delivered again. A call to the outside may have
    /// happened, and is made again under the same key.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and leaves the lanes to the end of their lease.
    pub async fn shutdown(mut self, within: Duration) -> Result<(), ShutdownError> {
        self.process.stopping.cancel();
        if tokio::time::timeout(within, self.tasks.join()).await.is_ok() {
            return Ok(());
        }
        let tasks = self.tasks.len();
        self.abort.cancel();
        // Lanes are still handed over, so that a successor need not wait for the lease.
        let _ = tokio::time::timeout(Duration::from_secs(6), self.tasks.join()).await;
        Err(ShutdownError { tasks, within })
    }

    /// The instance, as it stands in the cursors.
    pub fn owner(&self) -> &OwnerId {
        &self.process.owner
    }

    /// How it is, asking the store.
    pub async fn health(&self) -> Health {
        let answer = tokio::time::timeout(Duration::from_secs(2), self.process.store.ping()).await;
        let store_reachable = matches!(answer, Ok(Ok(())));
        let consumers: Vec<_> = self.groups.iter().map(|group| ConsumerHealth::of(group)).collect();
        let leased = consumers.iter().all(|consumer| !consumer.lease_left.is_zero());
        Health {
            store_reachable,
            ready: store_reachable && leased && self.tasks.ended() == 0,
            tasks_ended: self.tasks.ended(),
            consumers,
        }
    }
}
