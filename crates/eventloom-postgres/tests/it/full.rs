//! A full disk: publishes fail, nothing confirmed is lost, and all goes on when there is space.

use crate::{
    cluster::{Cluster, Disk},
    servers::{event, until},
};
use anyhow::Result;
use eventloom_core::{
    NewEvent, Payload, Position, PublishError, StoreErrorKind,
    ports::{Log, Outbox, ReadLimits, Store as _},
};
use eventloom_postgres::{MigrateOptions, Postgres, migrate};
use sqlx::{Connection as _, PgConnection, postgres::PgPoolOptions};
use std::{collections::HashSet, time::Duration};

/// Of random text, which does not compress.
fn large() -> NewEvent {
    let text: String = std::iter::repeat_with(fastrand::alphanumeric).take(20_000).collect();
    event("k").with_payload(Payload::Json(format!("\"{text}\"")))
}

/// What became of publishes.
#[derive(Debug, Default)]
struct Published {
    confirmed: HashSet<String>,
    /// May have happened.
    in_doubt: HashSet<String>,
    refused: Vec<StoreErrorKind>,
}

impl Published {
    async fn publish(&mut self, store: &Postgres) {
        let event = large();
        let id = event.id().to_string();
        match store.publish_alone(event).await {
            Ok(()) => assert!(self.confirmed.insert(id)),
            Err(PublishError::Store(error)) => {
                let told = error.to_string();
                match error.kind() {
                    StoreErrorKind::Full => {
                        assert!(told.contains("no space is left in the database"), "{told}");
                        // There it would not be known: a server without space for its write-ahead log ends itself.
                        assert!(!told.contains("(while committing)"), "{told}");
                    }
                    StoreErrorKind::Indeterminate => assert!(self.in_doubt.insert(id)),
                    StoreErrorKind::Unreachable => assert!(told.contains("the store is unreachable"), "{told}"),
                    _ => panic!("{told}"),
                }
                self.refused.push(error.kind());
            }
            Err(error) => panic!("{error}"),
        }
        assert!(self.confirmed.len() < 10_000, "the disk is never full");
    }

    /// The log holds what was confirmed, and else only what was in doubt.
    async fn is_there(&self, store: &Postgres) -> Result<()> {
        let (mut there, mut after) = (HashSet::new(), Position::START);
        loop {
            let page = store.read_after(after, ReadLimits::default()).await?;
            there.extend(page.rows.iter().map(|row| row.envelope.id.clone()));
            after = page.scanned_to;
            if after >= page.horizon {
                break;
            }
        }
        let lost: Vec<_> = self.confirmed.difference(&there).collect();
        assert!(lost.is_empty(), "{} confirmed ones are lost", lost.len());
        let strange = there
            .iter()
            .filter(|id| !self.confirmed.contains(*id) && !self.in_doubt.contains(*id));
        assert_eq!(strange.count(), 0, "refused ones are there");
        Ok(())
    }
}

async fn open(cluster: &Cluster) -> Result<Postgres> {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(Duration::from_secs(1));
    let pool = pool.connect_with(cluster.options()).await?;
    migrate(&pool, MigrateOptions::default()).await?;
    Ok(Postgres::builder(pool).open().await?)
}

/// Publishes while a disk fills, waits until it is known to be full, frees it, and publishes again.
async fn fills_and_is_freed(cluster: &mut Cluster, disk: Disk) -> Result<Published> {
    let store = open(cluster).await?;
    let mut published = Published::default();
    for _ in 0..10 {
        published.publish(&store).await;
    }
    assert_eq!(published.confirmed.len(), 10);
    cluster.fill(disk);
    while published.refused.len() < 5 {
        published.publish(&store).await;
    }
    if disk == Disk::Tables {
        // What is there is still read.
        published.is_there(&store).await?;
        // Whoever comes now is turned away, with an error that has no code of its own.
        cluster.forget_prepared();
        let error = PgConnection::connect_with(&cluster.options()).await.unwrap_err();
        assert_eq!(Postgres::kind_of(&error), Some(StoreErrorKind::Unreachable), "{error}");
    }
    cluster.free(disk);
    // A server that found no space for its write-ahead log has ended, and may not have been able to begin again.
    cluster.go_on();
    let before = published.confirmed.len();
    until("publishes go on", async || {
        published.publish(&store).await;
        Ok(published.confirmed.len() >= before + 10)
    })
    .await?;
    published.is_there(&store).await?;
    // Also for whoever comes anew.
    published.is_there(&open(cluster).await?).await?;
    Ok(published)
}

fn run(test: impl Future<Output = Result<()>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test).unwrap();
}

#[test]
fn a_disk_of_tables_that_is_full() {
    let Some(mut cluster) = Cluster::start("a full disk of tables") else {
        return;
    };
    run(async {
        let published = fills_and_is_freed(&mut cluster, Disk::Tables).await?;
        assert!(
            published
                .refused
                .iter()
                .all(|kind| matches!(kind, StoreErrorKind::Full | StoreErrorKind::Unreachable)),
            "{:?}",
            published.refused
        );
        assert!(!cluster.log().contains("PANIC"), "{}", cluster.log());
        Ok(())
    });
}

/// The server cannot go on without its write-ahead log: it ends itself, and recovers when there is space.
#[test]
fn a_disk_of_the_write_ahead_log_that_is_full() {
    let Some(mut cluster) = Cluster::start("a full disk of the write-ahead log") else {
        return;
    };
    run(async {
        fills_and_is_freed(&mut cluster, Disk::Log).await?;
        assert!(cluster.log().contains("PANIC"), "{}", cluster.log());
        Ok(())
    });
}
