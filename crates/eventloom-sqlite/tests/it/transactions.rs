//! What a transaction does when it is dropped, left, ended by its handler, or was begun the wrong way.

use crate::folder::{Folder, append, append_to, event, read_all};
use eventloom_core::{
    Position, StoreErrorKind,
    ports::{Outbox, Store, Transaction},
};
use eventloom_sqlite::{Sqlite, SqliteTransaction, Tables};
use sqlx::Connection;
use std::time::Duration;

/// The transaction is over, and its end says so.
async fn is_no_commit(tx: SqliteTransaction) {
    let kind = Transaction::commit(tx).await.unwrap_err().kind();
    assert_eq!(kind, StoreErrorKind::Aborted);
}

/// Nothing was written before, and the store goes on.
async fn takes_the_first_row(store: &Sqlite) {
    store.publish_alone(event("k")).await.unwrap();
    assert_eq!(read_all(store, Position::START).await.len(), 1);
}

#[tokio::test]
async fn a_transaction_that_read_first_is_told_to_begin_immediate() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut reader_first = store.pool().begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *reader_first)
        .await
        .unwrap();
    store.publish_alone(event("k")).await.unwrap();
    let error = Sqlite::append(&Tables::default(), &mut reader_first, &[event("k")])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadTransaction);
    assert!(error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
    assert_eq!(Sqlite::kind_of(&error), Some(StoreErrorKind::ReadTransaction));
    drop(reader_first);

    let mut tx = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("SELECT count(*) FROM eventloom_outbox")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    append_to(&mut tx, &[event("k")]).await;
    tx.commit().await.unwrap();
    assert_eq!(read_all(&store, Position::START).await.len(), 2);
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_before_the_next_begins() {
    let folder = Folder::new();
    let store = folder.store().await;
    for _ in 0..50 {
        let mut tx = store.begin_write().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        drop(tx);
        let tx = store.begin_write().await.unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(read_all(&store, Position::START).await, []);
}

#[tokio::test]
async fn the_savepoint_moves_and_rolls_back_again_and_again() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut tx = store.begin_write().await.unwrap();
    tx.savepoint().await.unwrap();
    append(&mut tx, &[event("kept")]).await;
    tx.savepoint().await.unwrap();
    for _ in 0..3 {
        append(&mut tx, &[event("undone")]).await;
        // A handler's own savepoint, open when its future is dropped.
        let mut inner = tx.begin().await.unwrap();
        append_to(&mut inner, &[event("undone")]).await;
        drop(inner);
        tx.rollback_to_savepoint().await.unwrap();
    }
    append(&mut tx, &[event("kept")]).await;
    Transaction::commit(tx).await.unwrap();
    assert_eq!(read_all(&store, Position::START).await.len(), 2);
}

#[tokio::test]
async fn a_handler_cannot_commit_its_transaction() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[event("k")]).await;
    sqlx::query("COMMIT").execute(&mut *tx).await.unwrap_err();
    // What it does after that would commit statement by statement.
    let alone = Sqlite::append(&Tables::default(), &mut tx, &[event("k")])
        .await
        .unwrap_err();
    assert_eq!(alone.kind(), StoreErrorKind::Aborted);
    assert_eq!(tx.commit().await.unwrap_err().kind(), StoreErrorKind::Aborted);
    assert_eq!(read_all(&store, Position::START).await, [], "all of it is undone");
    store.publish_alone(event("k")).await.unwrap();
    assert_eq!(
        read_all(&store, Position::START).await.len(),
        1,
        "and the store goes on"
    );
}

#[tokio::test]
async fn a_handler_that_rolls_back_leaves_an_aborted_transaction() {
    let folder = Folder::new();
    let store = folder.store().await;
    for roll_back in [true, false] {
        let mut tx = store.begin_write().await.unwrap();
        tx.savepoint().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
        assert_eq!(
            tx.rollback_to_savepoint().await.unwrap_err().kind(),
            StoreErrorKind::Aborted
        );
        if roll_back {
            Transaction::rollback(tx).await.unwrap();
        } else {
            is_no_commit(tx).await;
        }
    }
    takes_the_first_row(&store).await;
}

/// The new one is not what the message was claimed in.
#[tokio::test]
async fn a_transaction_in_the_place_of_another_is_not_committed() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[event("k")]).await;
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    sqlx::query("BEGIN").execute(&mut *tx).await.unwrap();
    append(&mut tx, &[event("k")]).await;
    is_no_commit(tx).await;
    takes_the_first_row(&store).await;
}

#[tokio::test]
async fn a_leaked_savepoint_makes_no_commit() {
    let folder = Folder::new();
    let store = folder.store().await;
    for roll_back in [true, false] {
        let mut tx = store.begin_write().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        std::mem::forget(tx.begin().await.unwrap());
        if roll_back {
            Transaction::rollback(tx).await.unwrap();
        } else {
            is_no_commit(tx).await;
        }
    }
    takes_the_first_row(&store).await;
}

/// For the driver it is a rollback of everything, and what comes after it must not be taken for a commit.
#[tokio::test]
async fn a_nested_begin_that_is_dropped_makes_no_commit() {
    let folder = Folder::new();
    let store = folder.store().await;
    for goes_on in [true, false] {
        let mut tx = store.begin_write().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        loop {
            let nested = std::pin::pin!(tx.begin());
            let polled = nested.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
            // One that was answered at once is an ordinary one.
            if polled.is_pending() {
                break;
            }
        }
        if goes_on {
            let alone = Sqlite::append(&Tables::default(), &mut tx, &[event("k")]).await;
            assert_eq!(alone.unwrap_err().kind(), StoreErrorKind::Aborted);
        }
        is_no_commit(tx).await;
    }
    takes_the_first_row(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_share_commits_and_each_has_its_own_answer() {
    let folder = Folder::new();
    let store = folder.store().await;
    let publishing = (0..200).map(|i| {
        let store = store.clone();
        let event = event(&format!("k{i}"));
        // JSON that is none is found by the database, in the middle of somebody else's batch.
        let event = match i % 50 {
            7 => event.with_payload(eventloom_core::Payload::Json("{".to_owned())),
            _ => event,
        };
        tokio::spawn(async move { store.publish_alone(event).await })
    });
    let publishing: Vec<_> = publishing.collect();
    for (i, published) in publishing.into_iter().enumerate() {
        let published = published.await.unwrap();
        assert_eq!(published.is_ok(), i % 50 != 7, "event {i}: {published:?}");
    }
    assert_eq!(read_all(&store, Position::START).await.len(), 196);
}

/// Everybody writes over one connection, also after a handler that has changed it.
#[tokio::test]
async fn what_a_handler_does_to_the_connection_ends_with_its_transaction() {
    let statements = [
        "PRAGMA query_only = ON",
        "CREATE TEMP TABLE eventloom_outbox (x)",
        "CREATE TEMP TABLE eventloom_inbox (x)",
        "PRAGMA locking_mode = EXCLUSIVE; INSERT INTO eventloom_attempts VALUES ('c', 'id', 1)",
    ];
    for statement in statements {
        for commits in [true, false] {
            let folder = Folder::new();
            let store = folder.store().await;
            let mut tx = store.begin_write().await.unwrap();
            sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap();
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            let published = store.publish_alone(event("k")).await;
            assert!(published.is_ok(), "{statement}: {published:?}");
            assert_eq!(read_all(&store, Position::START).await.len(), 1, "{statement}");
        }
    }
}

/// A connection that is kept for the next write does not keep the pool from closing.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_closes_while_others_publish() {
    for _ in 0..20 {
        let folder = Folder::new();
        let store = folder.store().await;
        store.publish_alone(event("k")).await.unwrap();
        let publishing: Vec<_> = (0..4)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move { while store.publish_alone(event("k")).await.is_ok() {} })
            })
            .collect();
        let closed = tokio::time::timeout(Duration::from_secs(60), store.close()).await;
        closed.unwrap();
        for publishing in publishing {
            publishing.await.unwrap();
        }
    }
}

/// The write connection is kept after a publish, and its pool would need a runtime to take it back.
#[test]
fn a_store_may_outlive_its_runtime() {
    let folder = Folder::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(async {
        let store = folder.store().await;
        store.publish_alone(event("k")).await.unwrap();
        store
    });
    drop(runtime);
    drop(store);
}

/// A dropped call may have written or not, and says nothing about the next.
#[tokio::test]
async fn a_dropped_publish_leaves_the_connection_as_it_was() {
    let folder = Folder::new();
    let store = folder.store().await;
    for polls in 0..40 {
        let mut publishing = std::pin::pin!(store.publish_alone(event("dropped")));
        for _ in 0..polls {
            if futures::poll!(publishing.as_mut()).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let mut tx = store.begin_write().await.unwrap();
    sqlx::query("CREATE TABLE t (x)").execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    store.publish_alone(event("k")).await.unwrap();
    let made: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 't'")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(made, 0);
}
