//! A call of mode effect that was made, and whose result the store refuses for what was published with it: its message is
//! to blame like one that fails, and nobody else's call is made again for it.

use crate::folder::{Folder, until};
use crate::order::Placed;
use eventloom::{
    Backoff, Consumer, EffectContext, EffectHandle, Eventloom, LetterFilter, NewEvent, PublishError,
    ports::{Backend, HeldState},
    sqlite::prelude::*,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

const ORDERS: Topic = Topic::new("orders");
const NOTICES: Topic = Topic::new("notices");
/// The type that the outbox of a case takes no event of.
const REFUSED: &str = "refused";
const ATTEMPTS: u32 = 3;

/// Counts calls by key, and tells others of each.
struct Notify(Arc<Mutex<HashMap<String, u32>>>);

impl EffectHandle for Notify {
    type Event = Placed;
    type Output = ();
    type Error = PublishError;
    async fn handle(&self, placed: Placed, cx: &mut EffectContext<'_>) -> Result<(), PublishError> {
        *self.0.lock().unwrap().entry(placed.0.clone()).or_default() += 1;
        let notice = NewEvent::untyped(NOTICES, placed.0.split('-').next().unwrap_or_default());
        cx.publish_row(notice).await.map(drop)
    }
}

/// `store` refuses events of type [`REFUSED`]; `publish` publishes what it is given in one transaction.
async fn is_blamed<S: Backend>(store: S, publish: impl AsyncFnOnce(&[NewEvent])) {
    let calls = Arc::<Mutex<HashMap<String, u32>>>::default();
    let wait = Duration::from_millis(10);
    let consumer = Consumer::new("notices").topic(ORDERS).effect(Notify(calls.clone()));
    let consumer = consumer
        .attempts(ATTEMPTS)
        .backoff(Backoff::default().first(wait).most(wait));
    let mut keys: Vec<String> = (0..200).map(|order| format!("fine-{order}")).collect();
    keys.insert(100, REFUSED.to_owned());
    let rows: Vec<NewEvent> = keys
        .iter()
        .map(|key| NewEvent::of(ORDERS, &Placed(key.clone())).unwrap())
        .collect();
    publish(&rows).await;
    let service = Eventloom::new(store.clone()).consumer(consumer).start().await.unwrap();
    let letter = until("the one to be dead", async || {
        let letters = store.letters(&LetterFilter::default()).await.unwrap();
        letters.into_iter().find(|letter| letter.state == HeldState::Dead)
    })
    .await;
    assert_eq!(letter.message.envelope.key.as_deref(), Some(REFUSED));
    assert_eq!(letter.attempts, ATTEMPTS);
    until("all others to be called", async || {
        let handled = service.health().await.consumers[0].handled;
        (handled >= 200).then_some(())
    })
    .await;
    service.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(store.letters(&LetterFilter::default()).await.unwrap().len(), 1);
    let mut calls = std::mem::take(&mut *calls.lock().unwrap());
    assert_eq!(calls.remove(REFUSED), Some(ATTEMPTS));
    let again: Vec<_> = calls.iter().filter(|(_, times)| **times > 1).collect();
    assert!(again.is_empty(), "called more than once: {again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let folder = Folder::new();
    let store = folder.store().await;
    let pool = sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(folder.database()))
        .await
        .unwrap();
    sqlx::raw_sql(
        "CREATE TRIGGER refusing BEFORE INSERT ON eventloom_outbox WHEN new.type = 'refused' \
         BEGIN SELECT raise(ABORT, 'not of this type'); END",
    )
    .execute(&pool)
    .await
    .unwrap();
    is_blamed(store, async |rows: &[NewEvent]| {
        let mut tx = pool.begin().await.unwrap();
        eventloom::publish_rows::<_, Sqlite>(&mut *tx, rows).await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
}

/// `sqlstate`: what the rule on the outbox raises.
#[cfg(feature = "postgres")]
async fn on_postgres(sqlstate: &str) {
    crate::database::with_database(sqlstate, async |database| {
        let pool = database.pool(2).await;
        let rule = format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE SQLSTATE '{sqlstate}' USING MESSAGE = 'not of this type'; END $$; \
             CREATE TRIGGER refusing BEFORE INSERT ON eventloom.outbox FOR EACH ROW WHEN (new.type = 'refused') \
             EXECUTE FUNCTION refuse()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(rule)).execute(&pool).await.unwrap();
        is_blamed(database.store(8).await, async |rows: &[NewEvent]| {
            let mut tx = pool.begin().await.unwrap();
            eventloom::publish_rows::<_, eventloom::postgres::Postgres>(&mut *tx, rows)
                .await
                .unwrap();
            tx.commit().await.unwrap();
        })
        .await;
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_a_constraint_of_postgres() {
    on_postgres("23514").await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_a_policy_of_postgres() {
    on_postgres("42501").await;
}
