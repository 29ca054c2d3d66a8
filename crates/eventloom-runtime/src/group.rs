//! What the tasks of one consumer in one process share.

use crate::{
    batch::Item,
    consumer::{Handlers, Unhandled},
    context::Delivery,
    failure::Failed,
    handler::panic_text,
    hot_keys::{HotKey, HotKeys},
    in_flight::Calls,
    lanes::Lanes,
    meter::{Count, Ended, Meter},
    outage::Outage,
    relay,
    results::Results,
    settings::Settings,
    span,
    suspect::Owed,
    tail::Tail,
    time_limit::{Bounded, TimeLimit, Tx},
};
use eventloom_core::{
    Clock, ConsumerName, Lane, NewEvent, OwnerId, Position, Recorded, RetryClass, StoreError, faults,
    ports::{Backend, Cursor, Outbox, Reserve, Scope, Store},
};
use futures::FutureExt;
use std::{
    borrow::Cow,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a relay under an alarm looks whether it goes on; it does not.
const ALARMED: Duration = Duration::from_secs(3600);

/// What a process shares among its consumers.
pub(crate) struct Process<S: Backend> {
    pub(crate) store: Bounded<S>,
    pub(crate) owner: OwnerId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tail: Tail<Bounded<S>>,
    /// One suspect at a time, over all lanes and consumers: otherwise innocents die with the one that kills.
    pub(crate) suspects: Arc<Semaphore>,
    /// Kept for renewals of leases, as long as anything runs.
    pub(crate) _reserve: Reserve,
    /// Stops fetching and picking; what runs is finished.
    pub(crate) stopping: CancellationToken,
}

pub(crate) fn count(counter: &Count, by: usize) {
    counter.add(by as u64);
}

/// One consumer in one process.
pub(crate) struct Group<S: Backend> {
    pub(crate) process: Arc<Process<S>>,
    pub(crate) settings: Settings,
    /// The process's, with the time limit of this consumer's lease.
    store: Bounded<S>,
    pub(crate) handlers: Handlers<S>,
    /// Of a relay: its broker, and what is known of it.
    pub(crate) relay: Option<relay::State>,
    lanes: Mutex<Lanes>,
    outage: Mutex<Outage>,
    owed: Mutex<Owed>,
    /// Something about the lanes changed: rows came, a lane is free, one was taken.
    pub(crate) changed: Notify,
    /// The lease has to be looked at before its time: a lane was forgotten.
    pub(crate) rejoin: Notify,
    /// A message was held or its time may have come.
    pub(crate) held: Notify,
    /// Until when this instance's lease is good, on this process's clock.
    pub(crate) lease_until: watch::Sender<Instant>,
    /// Messages that share a transaction at the moment, and clean commits since it was lowered.
    pub(crate) batch: BatchSize,
    /// Calls to the outside (mode effect), and what they came to.
    pub(crate) calls: Calls,
    pub(crate) results: Results,
    pub(crate) meter: Meter,
    hot_keys: Mutex<HotKeys>,
    /// When the lease is asked for again that could not be renewed.
    pub(crate) renews_at: Mutex<Option<Instant>>,
    /// The last trouble, for health.
    pub(crate) trouble: Mutex<Option<(Instant, String)>>,
}

impl<S: Backend> Group<S> {
    pub(crate) fn new(
        process: Arc<Process<S>>,
        settings: Settings,
        handlers: Handlers<S>,
        relay: Option<relay::State>,
    ) -> Self {
        let batch = BatchSize::new(settings.batch_max);
        let calls = Calls::new(settings.in_flight);
        let meter = Meter::new(&settings.name, relay.is_some());
        let now = process.clock.now();
        let store = process.store.inner().clone();
        let limit = TimeLimit::of(settings.lease, store.capacity());
        Group {
            process,
            settings,
            store: Bounded::new(store, limit),
            handlers,
            relay,
            lanes: Mutex::default(),
            outage: Mutex::default(),
            owed: Mutex::default(),
            changed: Notify::new(),
            rejoin: Notify::new(),
            held: Notify::new(),
            lease_until: watch::Sender::new(now),
            batch,
            calls,
            results: Results::default(),
            meter,
            hot_keys: Mutex::new(HotKeys::new(now)),
            renews_at: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    pub(crate) fn store(&self) -> &Bounded<S> {
        &self.store
    }

    pub(crate) fn name(&self) -> &ConsumerName {
        &self.settings.name
    }

    pub(crate) fn now(&self) -> Option<eventloom_core::OffsetDateTime> {
        self.process.clock.bind()
    }

    /// Never held across an await.
    pub(crate) fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts what handlers published, in their transaction.
    pub(crate) async fn append(&self, tx: &mut Tx<S>, events: &[NewEvent]) -> Result<(), StoreError> {
        let append = S::append(self.store.tables(), tx, events);
        self.store.make("append", append).await
    }

    /// Never held across an await.
    pub(crate) fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never held across an await.
    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages that were seen through.
    pub(crate) fn note_keys(&self, items: &[Item]) {
        let mut hot_keys = self.hot_keys.lock().unwrap_or_else(PoisonError::into_inner);
        hot_keys.count(items.iter().filter_map(Item::key), self.process.clock.now());
    }

    pub(crate) fn hot_keys(&self, most: usize) -> Vec<HotKey> {
        let mut hot_keys = self.hot_keys.lock().unwrap_or_else(PoisonError::into_inner);
        hot_keys.hottest(most, self.process.clock.now())
    }

    pub(crate) fn scope(&self) -> Scope<'_> {
        Scope {
            reader: &self.settings.name,
            owner: &self.process.owner,
            limit: self.settings.lease,
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.process.stopping.is_cancelled()
    }

    pub(crate) fn wants(&self, row: &Recorded) -> bool {
        let topics = &self.settings.topics;
        match &self.relay {
            None => topics.contains(&row.envelope.topic),
            // What came from another log goes no further, or databases that relay to each other would loop.
            Some(_) => {
                (row.envelope.origin.is_none() || faults::defect("relay_takes_foreign_rows"))
                    && (topics.is_empty() || topics.contains(&row.envelope.topic))
            }
        }
    }

    /// How long until messages may be tried again, one at a time; `None` while nothing stands against it.
    pub(crate) fn probe_in(&self) -> Option<Duration> {
        match &self.relay {
            None => self.outage().probe_in(self.process.clock.now()),
            Some(relay) if relay.alarm().is_some() => Some(ALARMED),
            Some(relay) => relay.probe_in(),
        }
    }

    /// Drops work on lanes that are fenced off or in doubt; they are taken anew, under a new epoch and from the place that
    /// the tables know.
    pub(crate) fn forget(&self, cursors: impl IntoIterator<Item = Cursor>) {
        self.lanes().forget(cursors);
        self.rejoin.notify_one();
        self.changed.notify_waiters();
    }

    /// Gives lanes back after work.
    pub(crate) fn done(&self, cursors: impl IntoIterator<Item = Cursor>) {
        self.lanes().done(cursors);
        self.changed.notify_waiters();
    }

    pub(crate) fn note_trouble(&self, doing: &str, error: &dyn std::fmt::Display) {
        tracing::warn!(consumer = %self.name(), %error, "{doing}");
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((self.process.clock.now(), format!("{doing}: {error}")));
    }

    /// When the lease is asked for again, after it could not be renewed.
    pub(crate) fn renews_at(&self, at: Option<Instant>) {
        *self.renews_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// What a handler is told of its message.
    pub(crate) fn delivery<'a>(&'a self, item: &'a Item) -> Delivery<'a> {
        Delivery {
            envelope: Cow::Borrowed(&item.row.envelope),
            consumer: Cow::Borrowed(self.name()),
            attempt: item.attempt,
            // Real time under any clock: handlers hand it to drivers and clients of their own.
            deadline: Instant::now() + self.settings.deadline,
            limits: Cow::Borrowed(self.store().limits()),
        }
    }

    /// Runs a handler within its deadline, of real time, since what it waits for is real, and within its span. A panic is a failure like others.
    pub(crate) async fn within_deadline<T>(
        &self,
        item: &Item,
        run: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let limit = self.settings.deadline;
        let (begun, span) = (Instant::now(), span::process(self.name(), item));
        let run = AssertUnwindSafe(run).catch_unwind().instrument(span.clone());
        let result = match tokio::time::timeout(limit, run).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(Failed::transient(panic_text(panic.as_ref()))),
            Err(_) => Err(Failed::transient(format!(
                "the handler was still running at its deadline of {limit:?}"
            ))),
        };
        span::processed(&span, &result);
        let topic = item.topic();
        let ended = result
            .as_ref()
            .map_or_else(|failed| failed.class.into(), |_| Ended::Well);
        self.meter.processed(topic, begun.elapsed(), ended);
        if ended != Ended::Well {
            self.meter.consumed([topic], ended);
        }
        result
    }

    /// What becomes of a message whose type has no handler.
    pub(crate) fn unhandled(&self, item: &Item) -> Result<(), Failed> {
        match self.settings.unhandled {
            Unhandled::Acknowledge => Ok(()),
            Unhandled::Dead => Err(Failed::permanent(format!(
                "no handler for type {:?}",
                item.row.envelope.event_type
            ))),
        }
    }

    /// Whether a failure is laid to an outage: most distinct keys fail, so no message is blamed and no attempt burnt.
    pub(crate) fn blames_an_outage(&self, key: &str, failed: &Failed) -> bool {
        if failed.class == RetryClass::Permanent {
            return false;
        }
        let (began, open) = {
            let mut outage = self.outage();
            (outage.failed(key, self.process.clock.now()), outage.is_open())
        };
        if began {
            self.note_trouble(
                "most keys fail, so this is an outage and no message is blamed",
                &failed.failure.error,
            );
        }
        open
    }

    /// Runs an owner's work as long as the lease is good and the lanes are its own, and drops it (which rolls back) when it ends: a successor may
    /// have begun by then.
    pub(crate) async fn within_lease<T>(&self, cursors: &[Cursor], work: impl Future<Output = T>) -> Option<T> {
        let mut until = self.lease_until.subscribe();
        let lapsed = async {
            loop {
                // A lease that lapsed and was taken anew has other epochs: the old work ends here too.
                if !self.lanes().owns(cursors) {
                    return;
                }
                let deadline = *until.borrow_and_update();
                tokio::select! {
                    () = self.process.clock.sleep_until(deadline) => return,
                    renewed = until.changed() => if renewed.is_err() { return },
                }
            }
        };
        tokio::select! {
            biased;
            result = work => Some(result),
            () = lapsed => None,
        }
    }
}

/// Where a message stands, for traces.
pub(crate) fn place(lane: Lane, position: Position) -> String {
    format!("lane {lane}, position {position}")
}

/// Messages that share one transaction: drops to 1 when a batch loses a deadlock, and doubles only after a hundred clean
/// commits. Retrying whole batches against another owner of the same user rows collapses; singles get through.
#[derive(Debug)]
pub(crate) struct BatchSize {
    most: u32,
    now: AtomicU32,
    clean: AtomicU32,
    /// Clean commits before it grows: more after each loss, or a consumer whose batches always meet would lose for ever.
    patience: AtomicU32,
}

impl BatchSize {
    const PATIENCE_FIRST: u32 = 100;
    const PATIENCE_MOST: u32 = 6400;

    fn new(most: u32) -> Self {
        BatchSize {
            most,
            now: AtomicU32::new(most),
            clean: AtomicU32::new(0),
            patience: AtomicU32::new(Self::PATIENCE_FIRST / 2),
        }
    }

    pub(crate) fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn lost_a_conflict(&self) {
        let patience = self.patience.load(Ordering::Relaxed);
        self.patience
            .store((patience * 2).min(Self::PATIENCE_MOST), Ordering::Relaxed);
        self.now.store(1, Ordering::Relaxed);
        self.clean.store(0, Ordering::Relaxed);
    }

    pub(crate) fn committed(&self) {
        let now = self.now.load(Ordering::Relaxed);
        if now < self.most && self.clean.fetch_add(1, Ordering::Relaxed) + 1 >= self.patience.load(Ordering::Relaxed) {
            self.clean.store(0, Ordering::Relaxed);
            let grown = (now * 2).min(self.most);
            self.now.store(grown, Ordering::Relaxed);
            if grown == self.most {
                self.patience.store(Self::PATIENCE_FIRST / 2, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_at_once_and_grow_slowly() {
        let size = BatchSize::new(256);
        size.lost_a_conflict();
        assert_eq!(size.get(), 1);
        (0..99).for_each(|_| size.committed());
        assert_eq!(size.get(), 1);
        size.committed();
        assert_eq!(size.get(), 2);
        size.lost_a_conflict();
        (0..199).for_each(|_| size.committed());
        assert_eq!(size.get(), 1, "more patience after each loss");
        size.committed();
        assert_eq!(size.get(), 2);
        (0..2000).for_each(|_| size.committed());
        assert_eq!(size.get(), 256);
    }
}
