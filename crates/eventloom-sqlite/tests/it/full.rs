//! A full disk: publishes fail, nothing confirmed is lost, and all goes on when there is space.

use crate::folder::{Folder, append, event, read_all};
use eventloom_core::{NewEvent, Payload, Position, StoreErrorKind, ports::Outbox};
use eventloom_sqlite::{MigrateOptions, Sqlite, Tables, migrate};
use std::{collections::HashSet, io::Write, path::Path, process::Command};

fn large() -> NewEvent {
    event("k").with_payload(Payload::Json(format!("\"{}\"", "x".repeat(20_000))))
}

/// Publishes until the disk is full, then a while longer.
async fn fill(store: &Sqlite) -> HashSet<String> {
    let (mut confirmed, mut full) = (HashSet::new(), 0);
    while full < 20 {
        let event = large();
        let id = event.id().to_string();
        match store.publish_alone(event).await {
            Ok(()) => assert!(confirmed.insert(id)),
            Err(error) => {
                let eventloom_core::PublishError::Store(error) = error else {
                    panic!("{error}")
                };
                assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
                full += 1;
            }
        }
        assert!(confirmed.len() < 10_000, "the disk is never full");
    }
    confirmed
}

async fn ids(store: &Sqlite) -> HashSet<String> {
    read_all(store, Position::START)
        .await
        .into_iter()
        .map(|(_, id)| id)
        .collect()
}

#[tokio::test]
async fn a_database_that_may_not_grow() {
    let folder = Folder::new();
    let store = folder.store().await;
    let limit = async |pages: &'static str| {
        let mut tx = store.begin_write().await.unwrap();
        sqlx::query(pages).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    };
    limit("PRAGMA max_page_count = 300").await;
    let confirmed = fill(&store).await;
    assert_eq!(ids(&store).await, confirmed, "what was confirmed, and nothing else");

    // What a handler does after the failure must not commit by itself.
    let mut tx = store.begin_write().await.unwrap();
    sqlx::query("PRAGMA max_page_count = 300")
        .execute(&mut *tx)
        .await
        .unwrap();
    let error = Sqlite::append(&Tables::default(), &mut tx, &[large(), large(), large()])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    let _ = sqlx::query("CREATE TABLE leaked (a)").execute(&mut *tx).await;
    drop(tx);
    let leaked = "SELECT count(*) FROM sqlite_schema WHERE name = 'leaked'";
    assert_eq!(
        sqlx::query_scalar::<_, i64>(leaked)
            .fetch_one(store.pool())
            .await
            .unwrap(),
        0
    );

    limit("PRAGMA max_page_count = 1000000").await;
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[large()]).await;
    tx.commit().await.unwrap();
    assert_eq!(read_all(&store, Position::START).await.len(), confirmed.len() + 1);
}

/// A file system of 3 MiB, where this process may mount one.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
            .arg(at)
            .output()
            .ok()?;
        mount.status.success().then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_disk_that_is_full() {
    let folder = Folder::new();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        // Past the capture of the test harness, which would keep the line of a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "left out: a_disk_that_is_full: no file system can be mounted here"
        );
        return;
    };
    migrate(folder.database(), MigrateOptions::default()).await.unwrap();
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![1; 512 << 10]).unwrap();
    let store = Sqlite::connect(folder.database()).await.unwrap();
    let confirmed = fill(&store).await;
    assert_eq!(ids(&store).await, confirmed, "what was confirmed, and nothing else");

    // Others that open it see the same, also on the full disk.
    let other = Sqlite::connect(folder.database()).await.unwrap();
    assert_eq!(ids(&other).await, confirmed);

    std::fs::remove_file(&ballast).unwrap();
    store.publish_alone(large()).await.unwrap();
    assert_eq!(ids(&other).await.len(), confirmed.len() + 1);
    store.close().await;
    other.close().await;
}
