//! One object on which everything starts and stops.

use crate::{
    clock::{TokioClock, pace},
    companion::{Beside, Companion, Watch, Watched},
    consumer::{Consumer, Handlers, Mode},
    drain, fetch,
    group::{Group, Process},
    health::{ConsumerHealth, Health},
    housekeeping::{self, Keep},
    membership, observe,
    outstanding::{self, Outstanding},
    relay::{self, Relay, Unfit},
    results,
    settings::{Settings, check},
    tail::Tail,
    tasks::{Tasks, restarted},
    time_limit::{Bounded, TimeLimit, ports::*},
    worker,
};
use eventloom_core::{
    Clock, NameError, OwnerId, StoreErrorKind, chain,
    ports::{Backend, ReadError, RegisterError},
};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long the results of requests are kept, unless said otherwise.
const ONCE_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
/// How often the store is asked for metrics, unless said otherwise.
const OBSERVE_EVERY: Duration = Duration::from_secs(15);
/// How long what runs beside a service may take to end.
const BESIDE_ENDS: Duration = Duration::from_secs(1);
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
    relays: Vec<Relay>,
    clock: Arc<dyn Clock>,
    host: String,
    keep: Keep,
    observe_every: Option<Duration>,
    beside: Vec<Beside>,
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
            relays: Vec::new(),
            clock: Arc::new(TokioClock),
            host: host.unwrap_or_default().trim().to_owned(),
            keep: Keep {
                log: Some(Duration::ZERO),
                once: Some(ONCE_WINDOW),
            },
            observe_every: Some(OBSERVE_EVERY),
            beside: Vec::new(),
        }
    }

    /// Adds a consumer.
    #[must_use]
    pub fn consumer(mut self, consumer: Consumer<S>) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Adds a relay.
    #[must_use]
    pub fn relay(mut self, relay: Relay) -> Self {
        self.relays.push(relay);
        self
    }

    /// Another source of time: a virtual clock in tests, such as that of `eventloom-testkit`.
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

    /// How often the store is asked for what only it knows (lag, held messages, positions of the log, ages of the oldest),
    /// for metrics: every 15 s unless said otherwise, less often when the answer takes long, and never with `None`. The
    /// other metrics are told as they happen. Install the recorder before the service is started.
    #[must_use]
    pub fn observe_every(mut self, every: Option<Duration>) -> Self {
        self.observe_every = every;
        self
    }

    /// Runs something beside the service, which looks at it and ends with it: an endpoint for health and metrics.
    #[must_use]
    pub fn beside(mut self, companion: impl Companion) -> Self {
        self.beside.push(Box::new(|watch| companion.run(watch).boxed()));
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
            checked.push((settings, consumer.handlers, None));
        }
        for relay in self.relays {
            let name = relay.name().to_owned();
            let settings = relay.settings(capacity).map_err(|unfit| match unfit {
                Unfit::Name(error) => StartError::Name(error),
                Unfit::Because(why) => StartError::Consumer {
                    name: name.clone(),
                    why,
                },
            })?;
            if !names.insert(name.clone()) {
                return Err(StartError::NamedTwice { name });
            }
            checked.push((
                settings,
                Handlers::None,
                Some(relay::State::new(relay.outlet(), self.clock.clone())),
            ));
        }
        let leases = checked.iter().map(|(settings, ..)| settings.lease);
        // Readers share what is read, so a payload is left out only where nobody wants it.
        let each_max = checked
            .iter()
            .map(|(settings, ..)| settings.payload_each_max.unwrap_or(u64::MAX));
        let payload_each_max = each_max.max().filter(|most| *most < u64::MAX);
        let limit = TimeLimit::of(leases.max().unwrap_or_default(), capacity);
        let store = Bounded::new(self.store, limit);
        let process = Arc::new(Process {
            _reserve: store.reserve(),
            tail: Tail::new(store.clone(), payload_each_max),
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
        let closed = CancellationToken::new();
        let (running, watch) = watch::channel(None);
        // Before the store is waited for: whoever asks whether the process is alive is answered.
        let mut beside = Tasks::new(closed.clone());
        for companion in self.beside {
            beside.spawn(companion(Watch::new(watch.clone(), closed.clone())));
        }
        let mut groups = Vec::new();
        for (settings, handlers, relay) in checked {
            register(&process, &settings).await?;
            groups.push(Arc::new(Group::new(process.clone(), settings, handlers, relay)));
        }
        let abort = CancellationToken::new();
        let mut tasks = Tasks::new(process.stopping.clone());
        for group in &groups {
            spawn_group(&mut tasks, &abort, group);
        }
        let (pruning, pruned, keep) = (process.clone(), groups.clone(), self.keep);
        let (observing, observed, every) = (process.clone(), groups.clone(), self.observe_every);
        let observe = move || observe::run(observing.clone(), observed.clone(), every);
        tasks.spawn(until(abort.clone(), restarted(observe, || {})));
        let noted = groups.clone();
        tasks.spawn(until(
            abort.clone(),
            restarted(
                move || housekeeping::prune(pruning.clone(), pruned.clone(), keep),
                move || noted.iter().for_each(|group| note_panic(group)),
            ),
        ));
        let watched = Arc::new(Running {
            process,
            groups,
            ended: tasks.counter(),
        });
        running.send_replace(Some(watched.clone()));
        Ok(Service {
            running: watched,
            abort,
            tasks,
            beside,
            closed,
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
    if group.settings.mode == Mode::Effect {
        let working = working.clone();
        let results = move |group| {
            let working = working.clone();
            async move { results::run(group, working.wait()).await }
        };
        tasks.spawn(until(abort.clone(), supervise(group.clone(), results)));
    }
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
                pace(retry).await;
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

/// A running service. Dropping it aborts its tasks; what was in flight is rolled back and delivered again.
pub struct Service<S: Backend> {
    running: Arc<Running<S>>,
    abort: CancellationToken,
    tasks: Tasks,
    /// What runs beside it, and what tells it that the tasks have ended.
    beside: Tasks,
    closed: CancellationToken,
}

/// What can be looked at while a service runs.
struct Running<S: Backend> {
    process: Arc<Process<S>>,
    groups: Vec<Arc<Group<S>>>,
    ended: Arc<AtomicUsize>,
}

impl<S: Backend> Watched for Running<S> {
    fn health(&self) -> BoxFuture<'_, Health> {
        Health::of(&self.process, &self.groups, self.tasks_ended()).boxed()
    }

    fn tasks_ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }
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
        self.running.process.stopping.cancel();
        let stopped = self.stop(within).await;
        self.closed.cancel();
        let _ = tokio::time::timeout(BESIDE_ENDS, self.beside.join()).await;
        stopped
    }

    async fn stop(&mut self, within: Duration) -> Result<(), ShutdownError> {
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
        &self.running.process.owner
    }

    /// Completes when a relay has raised an alarm and sends nothing until somebody has looked: the relay's name, and why.
    /// Never completes without one.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn alarmed(&self) -> (String, String) {
        let alarms = self.running.groups.iter().filter_map(|group| {
            let relay = group.relay.as_ref()?;
            Some(Box::pin(
                async move { (group.name().to_string(), relay.alarmed().await) },
            ))
        });
        let alarms: Vec<_> = alarms.collect();
        match alarms.is_empty() {
            true => std::future::pending().await,
            false => futures::future::select_all(alarms).await.0,
        }
    }

    /// What is left to do: for tests, and for whoever waits until a service has nothing to do. Asks the store.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn outstanding(&self) -> Result<Vec<Outstanding>, ReadError> {
        outstanding::of(&self.running.process, &self.running.groups).await
    }

    /// How its consumers and relays are, without asking the store.
    pub fn consumers(&self) -> Vec<ConsumerHealth> {
        self.running
            .groups
            .iter()
            .map(|group| ConsumerHealth::of(group))
            .collect()
    }

    /// How it is, asking the store.
    pub async fn health(&self) -> Health {
        self.running.health().await
    }
}
