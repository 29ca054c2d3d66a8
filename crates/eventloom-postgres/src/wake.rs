//! Sleeping beside the log without missing a commit, and without a notification in every commit.
//!
//! NOTIFY serialises the commits of a whole database, so writers notify only while somebody has asked for it
//! (`outbox_doze` in the first migration). One connection of its own listens for all who sleep in this process: whoever
//! finds nobody listening does so for the others.

use crate::{
    error::while_doing,
    store::{Postgres, Tables},
};
use eventloom_core::{Position, StoreError, ports::ReadError};
use sqlx::{
    PgPool, Row,
    postgres::{PgListener, PgPoolOptions},
};
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::{Mutex as TurnMutex, watch},
    time::{Instant, sleep, timeout_at},
};

/// How long a request to notify holds (`outbox_doze`): it is renewed at half, and grows while nothing comes. A long one costs
/// nothing while nobody writes; after a wake-up, writers go on notifying until it is over.
const REQUEST_FIRST: Duration = Duration::from_secs(1);
const REQUEST_DOUBLINGS_MAX: u32 = 4;
/// Between looks while a writer is in flight: from 2 to 32 ms. It may have begun before anybody asked to be notified.
const IN_FLIGHT_MIN: Duration = Duration::from_millis(2);
const IN_FLIGHT_MAX: Duration = Duration::from_millis(32);
/// Between looks without a listener.
const POLL_MIN: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_millis(250);
/// How long a connection that cannot listen is not tried again.
const LISTENER_RETRY: Duration = Duration::from_secs(10);
/// How long connecting may take. Until then the reader polls.
const CONNECT_MAX: Duration = Duration::from_secs(5);

const DOZE: &str = "eventloom.outbox_doze";

/// What a look before sleeping found.
#[derive(Debug, PartialEq)]
enum Look {
    Nothing,
    Rows,
    InFlight,
}

/// The ear of a process.
pub(crate) struct Wake {
    /// `None` behind a pooler.
    channel: Option<String>,
    pool: PgPool,
    /// Whoever holds it listens for all.
    ear: TurnMutex<Ear>,
    /// Whether LISTEN is in force.
    listening: AtomicBool,
    /// Counts what was heard.
    heard: watch::Sender<u64>,
    pace: Mutex<Pace>,
    /// How often in a row a sleep was disturbed by nothing.
    undisturbed: AtomicU32,
}

#[derive(Default)]
struct Ear {
    listener: Option<Listener>,
    deaf_until: Option<Instant>,
}

/// Dropping a listener needs a runtime to say goodbye in. Without one the connection is left to the server.
struct Listener(Option<PgListener>);

impl Drop for Listener {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_err() {
            std::mem::forget(self.0.take());
        }
    }
}

/// Pauses that grow while nothing changes.
#[derive(Default)]
struct Pace {
    seen: Position,
    pauses: u32,
}

impl Wake {
    pub(crate) fn new(pool: &PgPool, tables: &Tables) -> Self {
        Wake {
            channel: (!tables.is_pooled()).then(|| format!("{}_outbox", tables.schema())),
            pool: pool.clone(),
            ear: TurnMutex::default(),
            listening: AtomicBool::new(false),
            heard: watch::Sender::new(0),
            pace: Mutex::default(),
            undisturbed: AtomicU32::new(0),
        }
    }

    pub(crate) async fn doze(&self, store: &Postgres, seen: Position, at_most: Duration) -> Result<(), ReadError> {
        let until = Instant::now() + at_most;
        let Some(channel) = &self.channel else {
            self.pause(seen, POLL_MIN, POLL_MAX, until).await;
            return Ok(());
        };
        let mut heard = self.heard.subscribe();
        loop {
            // Whoever listens must do so before the look: what is committed after it must be heard.
            let listening = self.listen(channel).await;
            heard.mark_unchanged();
            let doublings = self.undisturbed.load(Ordering::Relaxed).min(REQUEST_DOUBLINGS_MAX);
            let request = REQUEST_FIRST * (1 << doublings);
            match look(store, seen, request).await? {
                Look::Rows => {
                    self.undisturbed.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                Look::InFlight => {
                    self.undisturbed.store(0, Ordering::Relaxed);
                    self.pause(seen, IN_FLIGHT_MIN, IN_FLIGHT_MAX, until).await;
                    return Ok(());
                }
                Look::Nothing if !listening => {
                    self.pause(seen, POLL_MIN, POLL_MAX, until).await;
                    return Ok(());
                }
                Look::Nothing => {}
            }
            let renewal = Instant::now() + request / 2;
            if self.hear(&mut heard, until.min(renewal)).await {
                self.undisturbed.store(0, Ordering::Relaxed);
                return Ok(());
            }
            self.undisturbed.fetch_add(1, Ordering::Relaxed);
            if until <= renewal {
                return Ok(());
            }
        }
    }

    /// Sees to it that somebody in this process listens. `false`: nobody can.
    async fn listen(&self, channel: &str) -> bool {
        // Somebody else listens, or is still connecting.
        let Ok(mut ear) = self.ear.try_lock() else {
            return self.listening.load(Ordering::SeqCst);
        };
        if let Some(listener) = ear.listener.as_mut().and_then(|listener| listener.0.as_mut()) {
            match drain(listener).await {
                Ok(0) => {}
                // Old news to this one, but not to those who sleep already.
                Ok(_) => self.tell(),
                Err(error) => self.go_deaf(&mut ear, &error),
            }
            return ear.listener.is_some();
        }
        if ear.deaf_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        match timeout_at(Instant::now() + CONNECT_MAX, connect(&self.pool, channel)).await {
            Ok(Ok(listener)) => {
                *ear = Ear {
                    listener: Some(Listener(Some(listener))),
                    deaf_until: None,
                };
                self.listening.store(true, Ordering::SeqCst);
                true
            }
            outcome => {
                tracing::debug!(error = ?outcome.err(), "cannot listen for commits, polling instead");
                ear.deaf_until = Some(Instant::now() + LISTENER_RETRY);
                false
            }
        }
    }

    /// Waits for a notification, by itself or through whoever listens. Returns whether there was one.
    async fn hear(&self, heard: &mut watch::Receiver<u64>, until: Instant) -> bool {
        let wait = async {
            tokio::select! {
                // The sender lives as long as this.
                _ = heard.changed() => {}
                () = self.hear_for_all() => {}
            }
        };
        timeout_at(until, wait).await.is_ok()
    }

    async fn hear_for_all(&self) {
        let mut ear = self.ear.lock().await;
        let outcome = match ear.listener.as_mut().and_then(|listener| listener.0.as_mut()) {
            Some(listener) => listener
                .try_recv()
                .await
                .and_then(|heard| heard.map(drop).ok_or_else(lost)),
            // Lost by the one before: look again.
            None => Ok(()),
        };
        if let Err(error) = outcome {
            self.go_deaf(&mut ear, &error);
        }
        self.tell();
    }

    /// Wakes all who sleep in this process.
    fn tell(&self) {
        self.heard.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn go_deaf(&self, ear: &mut Ear, error: &sqlx::Error) {
        tracing::debug!(%error, "the listening connection was lost");
        self.listening.store(false, Ordering::SeqCst);
        ear.listener = None;
    }

    async fn pause(&self, seen: Position, shortest: Duration, longest: Duration, until: Instant) {
        let pauses = {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            if pace.seen != seen {
                *pace = Pace { seen, pauses: 0 };
            }
            pace.pauses += 1;
            pace.pauses - 1
        };
        let pause = shortest.saturating_mul(1 << pauses.min(10)).min(longest);
        sleep(pause.min(until.saturating_duration_since(Instant::now()))).await;
    }
}

/// Takes what has arrived, waiting for nothing; returns how many notifications that were.
async fn drain(listener: &mut PgListener) -> Result<usize, sqlx::Error> {
    let mut drained = 0;
    loop {
        let mut next = pin!(listener.try_recv());
        match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
            Poll::Ready(Ok(Some(_))) => drained += 1,
            Poll::Pending => return Ok(drained),
            Poll::Ready(Ok(None)) => return Err(lost()),
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
}

/// A connection of its own, outside of the caller's pool: one that listens must not take a transaction's place.
async fn connect(pool: &PgPool, channel: &str) -> Result<PgListener, sqlx::Error> {
    let options = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None);
    let own = options.connect_lazy_with((*pool.connect_options()).clone());
    let mut listener = PgListener::connect_with(&own).await?;
    // A lost connection is found again by `listen`, before the next look, and not behind its back.
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    Ok(listener)
}

fn lost() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())
}

async fn look(store: &Postgres, seen: Position, request: Duration) -> Result<Look, StoreError> {
    let doing = "dozing beside the log";
    // The request is a sequence's value, which no rollback takes back.
    let request = i64::try_from(request.as_millis())
        .unwrap_or(i64::MAX)
        .min(i64::from(i32::MAX));
    let row = store.call(DOZE, [seen.0, request], doing).await?;
    Ok(match row.try_get::<i32, _>(0).map_err(while_doing(doing))? {
        0 => Look::Nothing,
        1 => Look::Rows,
        _ => Look::InFlight,
    })
}
