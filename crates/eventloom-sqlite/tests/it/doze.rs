//! Whoever dozes is woken by every commit, of this process and of others.

use crate::{
    child::Process,
    folder::{Folder, append, event, read_all},
};
use eventloom_core::{
    Position,
    ports::{Log, Outbox},
};
use std::time::{Duration, Instant};

/// How long a sleeper would sleep that no one wakes.
const FALLBACK: Duration = Duration::from_secs(60);
/// What is far below it, also on a machine that does other things.
const SOON: Duration = Duration::from_secs(5);
const TIMES: u32 = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_another_process_wakes() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut writer = Process::start("writer on demand", folder.path(), 0);
    assert_eq!(writer.hear().as_deref(), Some("ready"));
    let mut slowest = Duration::ZERO;
    for time in 0..TIMES {
        let seen = store.horizon().await.unwrap().position;
        let sleeper = {
            let store = store.clone();
            tokio::spawn(async move { store.doze(seen, FALLBACK).await })
        };
        // From "long asleep" to "not yet there", in small steps.
        for _ in 0..(time % 20) * 40 {
            tokio::task::yield_now().await;
        }
        if time % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(80)).await; // pacing: now and then the sleeper is long asleep
        }
        writer.tell("commit");
        assert_eq!(writer.hear().as_deref(), Some("committed"));
        let committed = Instant::now();
        sleeper.await.unwrap().unwrap();
        slowest = slowest.max(committed.elapsed());
        assert!(
            store.horizon().await.unwrap().position > seen,
            "woken by a commit, not by the end of its patience"
        );
    }
    println!("{TIMES} commits, the slowest wake-up came after {slowest:?}");
    assert!(slowest < SOON, "a wake-up took {slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_this_process_wakes() {
    let folder = Folder::new();
    let store = folder.store().await;
    for time in 0..TIMES {
        let seen = store.horizon().await.unwrap().position;
        let sleeper = {
            let store = store.clone();
            tokio::spawn(async move { store.doze(seen, FALLBACK).await })
        };
        for _ in 0..time % 20 {
            tokio::task::yield_now().await;
        }
        store.publish_alone(event("k")).await.unwrap();
        tokio::time::timeout(SOON, sleeper)
            .await
            .expect("woken soon")
            .unwrap()
            .unwrap();
    }
}

/// A flush that takes long lies between the change of the file and the commit. A transaction that spills into the log file
/// long before it commits is the same seen from outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_long_before_its_commit_is_not_slept_through() {
    let folder = Folder::new();
    let (store, other) = (
        folder.store().await,
        eventloom_sqlite::Sqlite::connect(folder.database()).await.unwrap(),
    );
    for pause_ms in [0, 5, 40, 200] {
        let seen = store.horizon().await.unwrap().position;
        let mut tx = other.begin_write().await.unwrap();
        sqlx::query("PRAGMA cache_size = 1").execute(&mut *tx).await.unwrap();
        for _ in 0..20 {
            append(&mut tx, &(0..60).map(|i| event(&format!("k{i}"))).collect::<Vec<_>>()).await;
        }
        let sleeper = {
            let store = store.clone();
            tokio::spawn(async move { store.doze(seen, FALLBACK).await })
        };
        tokio::time::sleep(Duration::from_millis(pause_ms)).await; // pacing: how long a flush takes
        assert!(!sleeper.is_finished(), "nothing is committed yet");
        tx.commit().await.unwrap();
        tokio::time::timeout(SOON, sleeper)
            .await
            .expect("woken soon")
            .unwrap()
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_returns_at_once_when_rows_are_there_and_after_its_time_when_none_come() {
    let folder = Folder::new();
    let store = folder.store().await;
    store.publish_alone(event("k")).await.unwrap();
    tokio::time::timeout(SOON, store.doze(Position::START, FALLBACK))
        .await
        .expect("at once")
        .unwrap();
    let started = Instant::now();
    store.doze(Position(1), Duration::from_millis(120)).await.unwrap();
    assert!(
        started.elapsed() >= Duration::from_millis(100),
        "slept {:?}",
        started.elapsed()
    );
    assert_eq!(read_all(&store, Position::START).await.len(), 1);
}
