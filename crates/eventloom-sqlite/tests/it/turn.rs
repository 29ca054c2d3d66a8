//! Processes that hold the turn to write and die, or freeze.

use crate::{
    child::Process,
    folder::{Folder, append, event, read_all},
};
use eventloom_core::{Position, ports::Outbox};
use std::time::{Duration, Instant};

/// How long a writer waits for a turn that nobody gives back.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_frees_the_turn() {
    let folder = Folder::new();
    let store = folder.store().await;
    for _ in 0..5 {
        let mut holder = Process::start("holder of a transaction", folder.path(), 0);
        assert_eq!(holder.hear().as_deref(), Some("holding"));
        let next = {
            let store = store.clone();
            tokio::spawn(async move { store.publish_alone(event("k")).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await; // pacing: lets the writer get in line
        assert!(!next.is_finished(), "one writer at a time");
        let killed = Instant::now();
        holder.kill();
        next.await.unwrap().unwrap();
        assert!(
            killed.elapsed() < PATIENCE,
            "freed by the kernel, not by patience: {:?}",
            killed.elapsed()
        );
    }
    assert_eq!(
        read_all(&store, Position::START).await.len(),
        5,
        "nothing of the killed ones"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_process_holds_nobody_up_for_ever() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut holder = Process::start("holder of the lock file", folder.path(), 0);
    assert_eq!(holder.hear().as_deref(), Some("holding"));
    holder.signal("-STOP");

    let started = Instant::now();
    store.publish_alone(event("k")).await.unwrap();
    assert!(
        started.elapsed() >= PATIENCE - Duration::from_millis(500),
        "it waited first: {:?}",
        started.elapsed()
    );
    assert!(
        started.elapsed() < PATIENCE * 2,
        "and then went on: {:?}",
        started.elapsed()
    );
    let after = Instant::now();
    for _ in 0..20 {
        store.publish_alone(event("k")).await.unwrap();
    }
    assert!(
        after.elapsed() < PATIENCE,
        "patience is lost once: {:?}",
        after.elapsed()
    );

    // Another process finds both the holder and those who wait.
    let mut other = Process::start("writer on demand", folder.path(), 1);
    assert_eq!(other.hear().as_deref(), Some("ready"));
    for _ in 0..3 {
        other.tell("commit");
        assert_eq!(other.hear().as_deref(), Some("committed"));
    }

    holder.signal("-CONT");
    holder.tell("give it back");
    assert_eq!(holder.hear().as_deref(), Some("given back"));
    for _ in 0..20 {
        other.tell("commit");
        store.publish_alone(event("k")).await.unwrap();
        assert_eq!(other.hear().as_deref(), Some("committed"));
    }
    assert_eq!(read_all(&store, Position::START).await.len(), 64);
}

/// Every future that waits for its turn may be dropped at any point, and the turn is neither lost nor kept.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_waiters_give_the_turn_back() {
    let folder = Folder::new();
    let store = folder.store().await;
    let other = eventloom_sqlite::Sqlite::connect(folder.database()).await.unwrap();
    for wait_us in (0..200).map(|step| step * 25) {
        let held = other.begin_write().await.unwrap();
        let waiter = {
            let store = store.clone();
            tokio::spawn(async move {
                let mut tx = store.begin_write().await.unwrap();
                append(&mut tx, &[event("dropped or not")]).await;
            })
        };
        let release = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(2000)).await; // pacing: how long the turn is held
            held.rollback().await.unwrap();
        });
        tokio::time::sleep(Duration::from_micros(wait_us)).await; // pacing: when the waiter is dropped
        waiter.abort();
        release.await.unwrap();
        let _ = waiter.await;
    }
    let started = Instant::now();
    for store in [&store, &other, &store, &other] {
        store.publish_alone(event("k")).await.unwrap();
    }
    assert!(
        started.elapsed() < PATIENCE,
        "nobody keeps the turn: {:?}",
        started.elapsed()
    );
    assert_eq!(read_all(&store, Position::START).await.len(), 4);
}
