//! A small service: the consumer `invoicing`, which refuses orders that it is told to refuse.

use crate::stores::{TestStore, block_on};
use eventloom::{
    Backoff, Classify, Consumer, Context, Event, Eventloom, Handle, RetryClass, Topic,
    ports::{Backend, ReaderStatus, Store},
    postgres::Postgres,
    sqlite::Sqlite,
};
use sqlx::PgPool;
use std::{future::Future, time::Duration};

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: String,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, thiserror::Error)]
#[error("tax table has no row for '{0}'")]
struct NoTaxRow(String);

impl Classify for NoTaxRow {
    fn retry_class(&self) -> RetryClass {
        if self.0.starts_with("later") {
            RetryClass::Transient
        } else {
            RetryClass::Permanent
        }
    }
}

/// Refuses these orders; those that begin with `later` only for now.
struct Invoicing(&'static [&'static str]);

impl<S: Store> Handle<S> for Invoicing {
    type Event = OrderPlaced;
    type Output = ();
    type Error = NoTaxRow;

    async fn handle(&self, event: OrderPlaced, _: &mut Context<'_, S>) -> Result<(), NoTaxRow> {
        if self.0.contains(&event.order.as_str()) {
            Err(NoTaxRow(event.order))
        } else {
            Ok(())
        }
    }
}

/// Starts the service, waits until it stands as wished, runs `meanwhile`, and shuts down.
pub(crate) fn run(
    store: &TestStore,
    refused: &'static [&'static str],
    wished: impl Fn(&ReaderStatus) -> bool,
    meanwhile: impl FnOnce(),
) {
    block_on(async {
        if store.is_postgres() {
            let pool = PgPool::connect(store.url()).await.unwrap();
            run_on(
                Postgres::builder(pool).open().await.unwrap(),
                refused,
                wished,
                meanwhile,
            )
            .await;
        } else {
            run_on(Sqlite::connect(store.url()).await.unwrap(), refused, wished, meanwhile).await;
        }
    });
}

async fn run_on<S: Backend>(
    store: S,
    refused: &'static [&'static str],
    wished: impl Fn(&ReaderStatus) -> bool,
    meanwhile: impl FnOnce(),
) {
    let hour = Duration::from_secs(3600);
    let consumer = Consumer::new("invoicing")
        .topic(Topic::new("orders"))
        .handle(Invoicing(refused));
    let consumer = consumer.backoff(Backoff::default().first(hour).most(hour));
    let service = Eventloom::new(store.clone())
        .host("host-a")
        .keep_log(None)
        .consumer(consumer);
    let service = service.start().await.unwrap();
    let stands = || async { store.readers(None).await.unwrap().first().is_some_and(&wished) };
    poll(stands).await;
    meanwhile();
    service.shutdown(Duration::from_secs(30)).await.unwrap();
}

async fn poll<Fut: Future<Output = bool>>(look: impl Fn() -> Fut) {
    let looking = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(20)).await; // pacing: between two looks at the condition
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking)
        .await
        .expect("the service stands as wished");
}
