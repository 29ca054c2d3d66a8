//! `once`, as an HTTP handler uses it: from a task that the server spawned.

use crate::folder::{Folder, until};
use eventloom::{
    ConsumerName, Eventloom, Once, OnceError, once,
    sqlite::{Sqlite, SqliteTransaction},
};
use eventloom_testkit::VirtualClock;
use serde::Serialize;
use sqlx::SqliteConnection;
use std::time::Duration;

#[derive(Serialize, Clone)]
struct Request {
    item: String,
    count: u32,
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0} is sold out")]
struct SoldOut(String);

type Answered = Result<Once<i64>, OnceError<SoldOut>>;

/// Inserts, and then finds out that there is nothing left of some items.
async fn place(connection: &mut SqliteConnection, request: &Request) -> Result<i64, SoldOut> {
    let insert = sqlx::query("INSERT INTO orders (item, count) VALUES (?, ?)")
        .bind(&request.item)
        .bind(request.count);
    let inserted = insert.execute(connection).await.unwrap();
    match request.item.as_str() {
        "rare" => Err(SoldOut(request.item.clone())),
        _ => Ok(inserted.last_insert_rowid()),
    }
}

async fn answer(store: &Sqlite, key: &str, request: &Request) -> Answered {
    let scope = ConsumerName::parse("http-orders").unwrap();
    let mut tx: SqliteTransaction = store.begin_write().await.unwrap();
    let work = async |connection: &mut SqliteConnection| place(connection, request).await;
    let answer = once(&mut *tx, &scope, key, request, work).await;
    match &answer {
        Ok(_) => tx.commit().await.unwrap(),
        Err(_) => tx.rollback().await.unwrap(),
    }
    answer
}

/// As a server does it: the future crosses threads, so it must be `Send`.
async fn post(store: &Sqlite, key: &str, item: &str, count: u32) -> Answered {
    let (store, key) = (store.clone(), key.to_owned());
    let request = Request {
        item: item.to_owned(),
        count,
    };
    tokio::spawn(async move { answer(&store, &key, &request).await })
        .await
        .unwrap()
}

async fn orders(store: &Sqlite) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(store.pool())
        .await
        .unwrap()
}

async fn store_with_orders(folder: &Folder) -> Sqlite {
    let store = folder.store().await;
    let table = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, count INTEGER)";
    sqlx::query(table).execute(store.pool()).await.unwrap();
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_is_done_once_for_a_key() {
    let folder = Folder::new();
    let store = store_with_orders(&folder).await;
    assert_eq!(post(&store, "key-1", "book", 2).await.unwrap(), Once::Done(1));
    assert_eq!(post(&store, "key-1", "book", 2).await.unwrap(), Once::Before(1));
    assert_eq!(post(&store, "key-2", "book", 2).await.unwrap(), Once::Done(2));
    assert_eq!(orders(&store).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_request_under_the_key_is_its_own_error() {
    let folder = Folder::new();
    let store = store_with_orders(&folder).await;
    post(&store, "key-1", "book", 2).await.unwrap();
    let error = post(&store, "key-1", "book", 3).await.unwrap_err();
    assert!(
        matches!(&error, OnceError::Mismatch { key } if key == "key-1"),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "the key \"key-1\" was used with another request");
    assert_eq!(
        post(&store, "key-1", "book", 2).await.unwrap(),
        Once::Before(1),
        "the first answer stands"
    );
    assert_eq!(orders(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_work_leaves_the_key_free() {
    let folder = Folder::new();
    let store = store_with_orders(&folder).await;
    let error = post(&store, "key-1", "rare", 1).await.unwrap_err();
    assert!(
        matches!(&error, OnceError::Work(sold_out) if *sold_out == SoldOut("rare".to_owned())),
        "{error:?}"
    );
    assert_eq!(orders(&store).await, 0, "its row was rolled back with the claim");
    assert_eq!(
        post(&store, "key-1", "book", 1).await.unwrap(),
        Once::Done(1),
        "another request under the same key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_one_does_the_work() {
    let folder = Folder::new();
    let store = store_with_orders(&folder).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        tasks.spawn(async move { post(&store, "key-1", "book", 2).await.unwrap() });
    }
    let answers = tasks.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == Once::Done(1)).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Once::Before(1)).count(), 7);
    assert_eq!(orders(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_after_their_window() {
    let folder = Folder::new();
    let store = store_with_orders(&folder).await;
    post(&store, "key-1", "rose", 1).await.unwrap();
    let clock = VirtualClock::new();
    let service = Eventloom::new(store.clone())
        .clock(clock.clone())
        .keep_once(Some(Duration::ZERO));
    let service = service.start().await.unwrap();
    let keys = "SELECT count(*) FROM eventloom_inbox WHERE request IS NOT NULL";
    let gone = async || {
        let keys: i64 = sqlx::query_scalar(keys).fetch_one(store.pool()).await.unwrap();
        clock.advance(Duration::from_secs(60)).await;
        (keys == 0).then_some(())
    };
    until("no key", gone).await;
    service.shutdown(Duration::from_secs(10)).await.unwrap();
    assert!(matches!(post(&store, "key-1", "rose", 1).await, Ok(Once::Done(2))));
}
