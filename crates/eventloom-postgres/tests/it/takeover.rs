//! Owners that freeze, lag or will not stop, and their successors.

use crate::servers::{Database, consumer, event, for_each_server, number, run, until};
use anyhow::Result;
use eventloom_core::{
    ConsumerName, Lane, OwnerId, Position, StoreErrorKind,
    ports::{Cursor, FenceError, Leases, Move, Outbox, Scope, Start, Store, Tenure, Transaction},
};
use eventloom_postgres::{Postgres, PostgresTransaction};
use sqlx::Connection;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);

struct Instance {
    store: Postgres,
    reader: ConsumerName,
    owner: OwnerId,
}

impl Instance {
    async fn new(database: &Database) -> Result<Self> {
        let owner = OwnerId::new("host", std::process::id());
        Ok(Instance {
            store: database.store(4).await?,
            reader: consumer("billing"),
            owner,
        })
    }

    async fn keep(&self, held: &[Cursor]) -> Result<Tenure> {
        Ok(self.store.keep(&self.reader, &self.owner, LEASE, held, None).await?)
    }

    async fn begin(&self) -> Result<PostgresTransaction> {
        Ok(self
            .store
            .begin(Scope {
                reader: &self.reader,
                owner: &self.owner,
                limit: LEASE,
            })
            .await?)
    }
}

fn step(cursor: Cursor, from: i64, to: i64) -> Move {
    Move {
        cursor,
        from: Position(from),
        to: Position(to),
        batch_end: None,
        confirmed: None,
    }
}

/// An owner of all lanes with its lease run out, and who comes after it.
async fn an_owner_and_its_successor(database: &Database) -> Result<(Instance, Tenure, Instance)> {
    let (owner, successor) = (Instance::new(database).await?, Instance::new(database).await?);
    owner.store.register(&owner.reader, Start::Earliest, None).await?;
    let tenure = owner.keep(&[]).await?;
    assert_eq!(tenure.owned.len(), 64);
    run(
        &mut database.connect().await?,
        "UPDATE eventloom.members SET lease_until = now() - interval '1 s'",
    )
    .await?;
    Ok((owner, tenure, successor))
}

/// Frozen between effect and cursor: its transaction is ended, its late commit touches nothing.
#[test]
fn a_frozen_owner_is_ended() {
    for_each_server(async |database| {
        let (owner, tenure, successor) = an_owner_and_its_successor(&database).await?;
        let mut open = owner.begin().await?;
        Postgres::append(owner.store.tables(), &mut open, &[event("effect")]).await?;
        let taken = successor.keep(&[]).await?;
        assert_eq!(taken.taken.len(), 64);
        assert!(
            taken
                .taken
                .iter()
                .all(|taken| taken.former.as_deref() == Some(owner.owner.as_str()))
        );
        let moves = [step(tenure.owned[0], 0, 1)];
        let advanced = owner.store.advance(&mut open, &owner.reader, &moves).await;
        let FenceError::Store(ended) = advanced.unwrap_err() else {
            panic!("its transaction was not ended")
        };
        assert_eq!(ended.kind(), StoreErrorKind::Unreachable, "{ended}");
        assert!(open.commit().await.is_err());
        let rows = number(&mut database.connect().await?, "SELECT count(*) FROM eventloom.outbox").await?;
        assert_eq!(rows, 0, "nothing of it is left");
        Ok(())
    });
}

/// Frozen between cursor and COMMIT: it holds the cursor's row, and its lane comes with the next look.
#[test]
fn an_owner_frozen_before_its_commit_holds_nobody_up() {
    for_each_server(async |database| {
        let (owner, tenure, successor) = an_owner_and_its_successor(&database).await?;
        let mut open = owner.begin().await?;
        owner
            .store
            .advance(&mut open, &owner.reader, &[step(tenure.owned[5], 0, 1)])
            .await?;
        let first = successor.keep(&[]).await?;
        assert!(first.owned.len() >= 63, "it waits for nobody: {}", first.owned.len());
        let mut owned = first.owned;
        until("the last lane is taken", async || {
            owned = successor.keep(&owned).await?.owned;
            Ok(owned.len() == 64)
        })
        .await?;
        assert!(open.commit().await.is_err());
        let moved = "SELECT count(*) FROM eventloom.cursors WHERE position > 0";
        assert_eq!(number(&mut database.connect().await?, moved).await?, 0);
        Ok(())
    });
}

/// It goes on with short statements, so that no time limit of the server ends it.
#[test]
fn a_live_zombie_is_ended() {
    for_each_server(async |database| {
        let (owner, tenure, successor) = an_owner_and_its_successor(&database).await?;
        let mut open = owner.begin().await?;
        owner
            .store
            .advance(&mut open, &owner.reader, &[step(tenure.owned[0], 0, 1)])
            .await?;
        let zombie = async {
            while number(&mut open, "SELECT 1::bigint").await.is_ok() {
                tokio::task::yield_now().await;
            }
            open.commit().await
        };
        let takeover = async {
            let mut owned = Vec::new();
            until("all lanes are taken", async || {
                owned = successor.keep(&owned).await?.owned;
                Ok(owned.len() == 64)
            })
            .await
        };
        let (committed, taken) = futures::future::join(zombie, takeover).await;
        taken?;
        assert!(committed.is_err());
        Ok(())
    });
}

/// Of a live owner nothing is taken and nothing is ended, and other readers of the same process go on.
#[test]
fn the_living_are_left_alone() {
    for_each_server(async |database| {
        let (owner, _, successor) = an_owner_and_its_successor(&database).await?;
        let other = Instance {
            reader: consumer("mailing"),
            store: owner.store.clone(),
            owner: owner.owner.clone(),
        };
        other.store.register(&other.reader, Start::Earliest, None).await?;
        let tenure = other.keep(&[]).await?;
        let mut open = other.begin().await?;
        successor.keep(&[]).await?;
        other
            .store
            .advance(&mut open, &other.reader, &[step(tenure.owned[0], 0, 1)])
            .await?;
        open.commit().await?;
        let third = Instance::new(&database).await?;
        let taken = third.keep(&[]).await?;
        assert_eq!((taken.owned.len(), taken.members, taken.share), (0, 2, 32));
        Ok(())
    });
}

/// Who comes in while another one takes everything gets what is left, never what was just taken.
#[test]
fn a_crowd_shares_without_stealing() {
    for_each_server(async |database| {
        let setup = Instance::new(&database).await?;
        setup.store.register(&setup.reader, Start::Earliest, None).await?;
        let mut crowd = Vec::new();
        for _ in 0..8 {
            crowd.push(Instance::new(&database).await?);
        }
        for round in 0..5 {
            let tenures = futures::future::try_join_all(crowd.iter().map(|instance| instance.keep(&[]))).await?;
            let mut lanes: Vec<Lane> = tenures
                .iter()
                .flat_map(|tenure| tenure.owned.iter().map(|own| own.lane))
                .collect();
            let owned = lanes.len();
            lanes.sort();
            lanes.dedup();
            assert_eq!(lanes.len(), owned, "round {round}: a lane has two owners");
            for (instance, tenure) in crowd.iter().zip(&tenures) {
                let mut tx = instance.begin().await?;
                instance.store.fence(&mut tx, &instance.reader, &tenure.owned).await?;
                tx.commit().await?;
                instance
                    .store
                    .release(&instance.reader, &instance.owner, &tenure.owned, true)
                    .await?;
            }
        }
        Ok(())
    });
}

/// Two lose each other's locks: one is told that it can run again.
#[test]
fn a_deadlock_is_a_conflict() {
    for_each_server(async |database| {
        let store = database.store(4).await?;
        run(
            &mut database.connect().await?,
            "CREATE TABLE shared (n int PRIMARY KEY); INSERT INTO shared VALUES (1), (2)",
        )
        .await?;
        let instance = Instance {
            store,
            reader: consumer("billing"),
            owner: OwnerId::new("host", 1),
        };
        let (mut one, mut other) = (instance.begin().await?, instance.begin().await?);
        let lock = |n: i32| format!("SELECT FROM shared WHERE n = {n} FOR UPDATE");
        run(&mut one, &lock(1)).await?;
        run(&mut other, &lock(2)).await?;
        let (sql_one, sql_other) = (lock(2), lock(1));
        let crossed = futures::future::join(
            async { run(&mut one, &sql_one).await.map_err(|error| Postgres::kind_of(&error)) },
            async {
                run(&mut other, &sql_other)
                    .await
                    .map_err(|error| Postgres::kind_of(&error))
            },
        );
        // Whoever lost must give its locks back before the other goes on.
        let outcome = crossed.await;
        let lost = [outcome.0.err(), outcome.1.err()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        assert_eq!(lost, [Some(StoreErrorKind::Conflict)]);
        Ok(())
    });
}

/// Time limits end a transaction whose owner stands still, without anybody's help.
#[test]
fn an_idle_transaction_ends_by_itself() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let (reader, owner) = (consumer("billing"), OwnerId::new("host", 1));
        let limit = Duration::from_millis(200);
        let open = store
            .begin(Scope {
                reader: &reader,
                owner: &owner,
                limit,
            })
            .await?;
        let mut connection = database.connect().await?;
        let label = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'eventloom {owner} {reader}'
                AND xact_start IS NOT NULL"
        );
        assert_eq!(number(&mut connection, &label).await?, 1, "a successor finds it");
        until("it has ended", async || Ok(number(&mut connection, &label).await? == 0)).await?;
        let refused = open.commit().await.unwrap_err();
        assert!(!refused.may_have_happened(), "{refused}");
        let mut slow = store
            .begin(Scope {
                reader: &reader,
                owner: &owner,
                limit,
            })
            .await?;
        let refused = run(&mut slow, "SELECT pg_sleep(20)").await.unwrap_err();
        assert_eq!(Postgres::kind_of(&refused), Some(StoreErrorKind::Timeout));
        slow.rollback().await?;
        Ok(())
    });
}

/// A BEGIN whose answer nobody waited for leaves no open transaction in the pool.
#[test]
fn a_dropped_begin_leaves_nothing_open() {
    for_each_server(async |database| {
        let store = database.store(1).await?;
        run(&mut database.connect().await?, "CREATE TABLE business (n int)").await?;
        let (reader, owner) = (consumer("billing"), OwnerId::new("host", 1));
        for round in 0..40 {
            let begin = store.begin(Scope {
                reader: &reader,
                owner: &owner,
                limit: LEASE,
            });
            let patience = Duration::from_micros(round * 20);
            let _ = tokio::time::timeout(patience, begin).await;
            // A service's own statement, outside of any transaction: it must be committed.
            sqlx::query("INSERT INTO business VALUES (1)")
                .execute(store.pool())
                .await?;
            let rows = number(&mut database.connect().await?, "SELECT count(*) FROM business").await?;
            assert_eq!(
                rows,
                round as i64 + 1,
                "its row went into a transaction that somebody left open"
            );
        }
        let mut connection = database.connect().await?;
        connection.ping().await?;
        Ok(())
    });
}

/// Nothing but the drop itself sends the rollback: the runtime that would give the connection back stands still.
#[test]
fn a_dropped_transaction_gives_its_locks_back_at_once() {
    for_each_server(async |database| {
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let store = database.store(1).await?;
                let (reader, owner) = (consumer("billing"), OwnerId::new("host", 1));
                let mut tx = store
                    .begin(Scope {
                        reader: &reader,
                        owner: &owner,
                        limit: LEASE,
                    })
                    .await?;
                Postgres::append(store.tables(), &mut tx, &[event("k")]).await?;
                drop(tx);
                let seen = database.clone();
                let looking = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(async {
                        let mut connection = seen.connect().await?;
                        let open = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
                        until("its fence is gone", async || {
                            Ok(number(&mut connection, open).await? == 0)
                        })
                        .await
                    })
                });
                // Blocks this runtime, and that is the point.
                looking.join().unwrap()
            })
        })
        .await?
    });
}
