//! What a handler's error means is seen through its wrappers, `#[error(transparent)]` among them, which leave the
//! database's error out of the chain: a conflict is run again and burns no attempt, a row that is not there is the
//! handler's own failure.

use crate::folder::{Folder, until};
use eventloom::{
    Backoff, Classify, Consumer, ConsumerHealth, Event, Eventloom, LetterFilter, Publish, Service, Topic,
    ports::{Backend, HeldState},
};
use serde::{Deserialize, Serialize};
use sqlx::Connection;
use std::{
    borrow::Cow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize)]
struct Placed {
    order: String,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.order))
    }
}

/// As most services have it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Repository(#[from] sqlx::Error);

#[derive(Debug, thiserror::Error)]
enum HandlerError {
    #[error(transparent)]
    Once(sqlx::Error),
    #[error(transparent)]
    Twice(Repository),
    #[error("the order was not booked")]
    Told(#[source] sqlx::Error),
    #[error("the order was not booked")]
    ToldTwice(#[source] Repository),
}
impl Classify for HandlerError {}

const WRAPPERS: [fn(sqlx::Error) -> HandlerError; 4] = [
    HandlerError::Once,
    |error| HandlerError::Twice(Repository(error)),
    HandlerError::Told,
    |error| HandlerError::ToldTwice(Repository(error)),
];

/// What a handler is to do, and how often it has run.
#[derive(Clone)]
struct Booking<D> {
    wrap: fn(sqlx::Error) -> HandlerError,
    runs: Arc<AtomicU32>,
    /// Where it meets somebody else; `None`: it looks for a row that is not there.
    meets: Option<D>,
}

impl<D> Booking<D> {
    fn new(wrap: fn(sqlx::Error) -> HandlerError, meets: Option<D>) -> Self {
        let runs = Arc::default();
        Booking { wrap, runs, meets }
    }

    fn begin(&self, attempt: u32) {
        self.runs.fetch_add(1, Ordering::SeqCst);
        assert!(attempt == 1 || self.meets.is_none(), "a conflict burnt an attempt");
    }

    fn is_first(&self) -> bool {
        self.runs.load(Ordering::SeqCst) == 1
    }
}

/// Publishes one order to a service with this handler, whose consumer allows so many attempts.
async fn serve<S: Backend + Publish>(store: &S, consumer: Consumer<S>, attempts: u32) -> Service<S> {
    let wait = Duration::from_millis(10);
    let backoff = Backoff::default().first(wait).most(wait);
    let consumer = consumer.topic(ORDERS).attempts(attempts).backoff(backoff);
    let service = Eventloom::new(store.clone()).consumer(consumer).start().await.unwrap();
    let order = "order-17".to_owned();
    store.publish(ORDERS, &Placed { order }).await.unwrap();
    service
}

async fn health<S: Backend>(service: &Service<S>) -> ConsumerHealth {
    service.health().await.consumers.remove(0)
}

/// It is run again, although there is but one attempt.
async fn is_a_conflict<S: Backend>(store: &S, service: Service<S>, runs: &AtomicU32) {
    let health = until("the order to be handled, or dead", async || {
        Some(health(&service).await).filter(|health| health.handled + health.dead > 0)
    })
    .await;
    assert_eq!((health.handled, health.failures), (1, 0), "{health:?}");
    assert_eq!((health.conflicts, runs.load(Ordering::SeqCst)), (1, 2), "{health:?}");
    assert_eq!(store.letters(&LetterFilter::default()).await.unwrap().len(), 0);
    service.shutdown(Duration::from_secs(20)).await.unwrap();
}

/// Its two attempts are used up, and it is dead.
async fn is_a_failure<S: Backend>(store: &S, consumer: &str, service: Service<S>, runs: &AtomicU32) {
    let letter = until("the order to be dead", async || {
        let letters = store.letters(&LetterFilter::default()).await.unwrap();
        letters
            .into_iter()
            .find(|letter| letter.consumer == consumer && letter.state == HeldState::Dead)
    })
    .await;
    let health = health(&service).await;
    assert_eq!(health.conflicts, 0, "{letter:?}");
    assert_eq!(letter.attempts, 2, "{letter:?}");
    assert!(runs.load(Ordering::SeqCst) >= 2);
    service.shutdown(Duration::from_secs(20)).await.unwrap();
}

mod on_sqlite {
    use super::*;
    use eventloom::sqlite::prelude::*;
    use sqlx::{SqliteConnection, sqlite::SqliteConnectOptions};

    impl Handle<Sqlite> for Booking<PathBuf> {
        type Event = Placed;
        type Output = ();
        type Error = HandlerError;
        async fn handle(&self, _: Placed, cx: &mut Context<'_>) -> Result<(), HandlerError> {
            self.begin(cx.attempt());
            match &self.meets {
                Some(file) if self.is_first() => busy(file).await,
                Some(_) => Ok(()),
                None => sqlx::query("SELECT 1 WHERE false")
                    .fetch_one(cx.connection())
                    .await
                    .map(drop),
            }
            .map_err(self.wrap)
        }
    }

    /// Writes to the file that the transaction of the handler has locked, and does not wait.
    async fn busy(file: &PathBuf) -> Result<(), sqlx::Error> {
        let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::ZERO);
        let mut other = SqliteConnection::connect_with(&options).await?;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await?;
        Ok(())
    }

    #[tokio::test]
    async fn a_busy_database_is_a_conflict() {
        for wrap in WRAPPERS {
            let folder = Folder::new();
            let store = folder.store().await;
            let booking = Booking::new(wrap, Some(folder.database()));
            let service = serve(&store, Consumer::new("booking").handle(booking.clone()), 1).await;
            is_a_conflict(&store, service, &booking.runs).await;
        }
    }

    #[tokio::test]
    async fn a_row_that_is_not_there_is_a_failure() {
        for wrap in WRAPPERS {
            let folder = Folder::new();
            let store = folder.store().await;
            let booking = Booking::new(wrap, None);
            let service = serve(&store, Consumer::new("booking").handle(booking.clone()), 2).await;
            is_a_failure(&store, "booking", service, &booking.runs).await;
        }
    }
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use crate::database::{Database, with_database};
    use eventloom::postgres::prelude::*;
    use sqlx::{PgConnection, postgres::PgConnectOptions};
    use tokio::{sync::Notify, task::JoinHandle};

    /// Somebody who has locked the second of two rows, and wants the first when told.
    #[derive(Clone)]
    struct Rival {
        pid: i32,
        go: Arc<Notify>,
    }

    impl Handle<Postgres> for Booking<Rival> {
        type Event = Placed;
        type Output = ();
        type Error = HandlerError;
        async fn handle(&self, _: Placed, cx: &mut Context<'_>) -> Result<(), HandlerError> {
            self.begin(cx.attempt());
            match &self.meets {
                Some(rival) if self.is_first() => deadlock(cx.connection(), rival).await,
                Some(_) => lock(cx.connection(), 2).await,
                None => sqlx::query("SELECT 1 WHERE false")
                    .fetch_one(cx.connection())
                    .await
                    .map(drop),
            }
            .map_err(self.wrap)
        }
    }

    async fn lock(connection: &mut PgConnection, n: i32) -> Result<(), sqlx::Error> {
        let row = sqlx::query("SELECT FROM pairs WHERE n = $1 FOR UPDATE").bind(n);
        row.execute(connection).await.map(drop)
    }

    /// Closes the circle when the rival stands in it, and so is the one who is told.
    async fn deadlock(connection: &mut PgConnection, rival: &Rival) -> Result<(), sqlx::Error> {
        let soon = "SET LOCAL deadlock_timeout = '10ms'";
        sqlx::query(soon).execute(&mut *connection).await?;
        lock(connection, 1).await?;
        rival.go.notify_one();
        loop {
            let waits = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted");
            let waits: i64 = waits.bind(rival.pid).fetch_one(&mut *connection).await?;
            if waits > 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        lock(connection, 2).await
    }

    /// Has locked the second row when this returns. Ends when it has had both.
    async fn rival(options: PgConnectOptions) -> (Rival, JoinHandle<()>) {
        let mut connection = PgConnection::connect_with(&options).await.unwrap();
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
        let pid = pid.fetch_one(&mut connection).await.unwrap();
        let (go, told) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let rival = Rival { pid, go: go.clone() };
        let ready = told.clone();
        let running = tokio::spawn(async move {
            let mut tx = connection.begin().await.unwrap();
            // So that it is the other one who is told.
            let late = "SET LOCAL deadlock_timeout = '60s'";
            sqlx::query(late).execute(&mut *tx).await.unwrap();
            lock(&mut tx, 2).await.unwrap();
            ready.notify_one();
            go.notified().await;
            lock(&mut tx, 1).await.unwrap();
            tx.commit().await.unwrap();
        });
        told.notified().await;
        (rival, running)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_deadlock_is_a_conflict() {
        with_database("a deadlock behind wrappers", async |database: Database| {
            let store = database.store(4).await;
            let pairs = "CREATE TABLE pairs (n int PRIMARY KEY); INSERT INTO pairs VALUES (1), (2)";
            sqlx::raw_sql(pairs).execute(store.pool()).await.unwrap();
            for (nth, wrap) in WRAPPERS.into_iter().enumerate() {
                let (rival, running) = rival(database.options.clone()).await;
                let booking = Booking::new(wrap, Some(rival));
                let consumer = Consumer::new(format!("booking-{nth}")).start_at(Start::Latest);
                let service = serve(&store, consumer.handle(booking.clone()), 1).await;
                is_a_conflict(&store, service, &booking.runs).await;
                running.await.unwrap();
            }
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_row_that_is_not_there_is_a_failure() {
        with_database("a missing row behind wrappers", async |database: Database| {
            let store = database.store(4).await;
            for (nth, wrap) in WRAPPERS.into_iter().enumerate() {
                let booking = Booking::<Rival>::new(wrap, None);
                let name = format!("booking-{nth}");
                let consumer = Consumer::new(name.clone()).start_at(Start::Latest);
                let service = serve(&store, consumer.handle(booking.clone()), 2).await;
                is_a_failure(&store, &name, service, &booking.runs).await;
            }
        })
        .await;
    }
}
