//! Handlers that end, or lose count of, the transaction that they were given.

use crate::servers::{Database, consumer, event, for_each_server, number, run};
use anyhow::Result;
use eventloom_core::{
    ConsumerName, OwnerId, Position, StoreError, StoreErrorKind,
    ports::{Claim, Cursor, FenceError, Inbox, Leases, Move, Outbox, Scope, Start, Store, Transaction},
};
use eventloom_postgres::{Postgres, PostgresTransaction};
use sqlx::{Connection, PgConnection};
use std::{
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

const LEASE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// As `timeout` and `select!` drop it.
    NestedBeginDropped,
    Rollback,
    /// And another one in its place, which is not the one that was claimed in.
    RollbackAndBegin,
    SavepointLeaked,
}

const ENDINGS: [Ending; 4] = [
    Ending::NestedBeginDropped,
    Ending::Rollback,
    Ending::RollbackAndBegin,
    Ending::SavepointLeaked,
];

async fn end(connection: &mut PgConnection, ending: Ending) -> Result<()> {
    match ending {
        // One that is answered at once is an ordinary one, and undone alone.
        Ending::NestedBeginDropped => {
            while {
                let polled = pin!(connection.begin()).poll(&mut Context::from_waker(Waker::noop()));
                polled.is_ready()
            } {}
        }
        Ending::Rollback => run(connection, "ROLLBACK").await?,
        Ending::RollbackAndBegin => {
            run(connection, "ROLLBACK").await?;
            run(connection, "BEGIN").await?;
        }
        Ending::SavepointLeaked => std::mem::forget(connection.begin().await?),
    }
    Ok(())
}

fn is_aborted(error: &FenceError) -> bool {
    matches!(error, FenceError::Store(error) if error.kind() == StoreErrorKind::Aborted)
}

struct Owner {
    store: Postgres,
    reader: ConsumerName,
    owner: OwnerId,
}

impl Owner {
    /// With one connection, so that what a transaction leaves behind meets the next.
    async fn new(database: &Database) -> Result<(Self, Cursor)> {
        let this = Owner {
            store: database.store(1).await?,
            reader: consumer("billing"),
            owner: OwnerId::new("host", 1),
        };
        this.store.register(&this.reader, Start::Earliest, None).await?;
        let tenure = this.store.keep(&this.reader, &this.owner, LEASE, &[], None).await?;
        Ok((this, tenure.owned[0]))
    }

    async fn begin(&self) -> Result<PostgresTransaction, StoreError> {
        let scope = Scope {
            reader: &self.reader,
            owner: &self.owner,
            limit: LEASE,
        };
        self.store.begin(scope).await
    }

    /// A transaction in which a message was claimed and something was done, then ended by its handler.
    async fn handled(&self, ending: Ending) -> Result<PostgresTransaction> {
        let mut open = self.begin().await?;
        let claims = self.store.claim(&mut open, &self.reader, &["message"], None).await?;
        assert_eq!(claims, [Claim::New], "{ending:?}: nothing was left by who came before");
        Postgres::append(self.store.tables(), &mut open, &[event("effect")]).await?;
        end(&mut open, ending).await?;
        Ok(open)
    }
}

/// Neither do cursors move, nor is anything called committed.
#[test]
fn what_a_handler_ended_is_no_commit() {
    for_each_server(async |database| {
        let (owner, lane) = Owner::new(&database).await?;
        let (store, reader) = (&owner.store, &owner.reader);
        let step = Move {
            cursor: lane,
            from: Position(0),
            to: Position(1),
            batch_end: None,
            confirmed: None,
        };
        for ending in ENDINGS {
            let open = owner.handled(ending).await?;
            assert_eq!(
                open.commit().await.unwrap_err().kind(),
                StoreErrorKind::Aborted,
                "{ending:?}"
            );
            // It knows of the leaked one at the commit only, which is early enough.
            if ending != Ending::SavepointLeaked {
                let mut open = owner.handled(ending).await?;
                let error = store.advance(&mut open, reader, &[step]).await.unwrap_err();
                assert!(is_aborted(&error), "{ending:?}: {error}");
                let error = store.mark(&mut open, reader, &[(lane, Position(5))]).await.unwrap_err();
                assert!(is_aborted(&error), "{ending:?}: {error}");
                let error = store.fence(&mut open, reader, &[lane]).await.unwrap_err();
                assert!(is_aborted(&error), "{ending:?}: {error}");
                open.rollback().await?;
            }
            let mut open = owner.handled(ending).await?;
            let moved = store.advance(&mut open, reader, &[step]).await;
            assert_eq!(
                moved.is_ok(),
                ending == Ending::SavepointLeaked,
                "{ending:?}: {moved:?}"
            );
            open.rollback().await?;
            drop(owner.handled(ending).await?);
        }
        let mut connection = database.connect().await?;
        let moved = "SELECT count(*) FROM eventloom.cursors WHERE position <> 0 OR batch_end <> 0";
        assert_eq!(number(&mut connection, moved).await?, 0);
        for table in ["inbox", "outbox"] {
            let sql = format!("SELECT count(*) FROM eventloom.{table}");
            assert_eq!(number(&mut connection, &sql).await?, 0, "{table}");
        }
        let mut open = owner.begin().await?;
        store.advance(&mut open, reader, &[step]).await?;
        open.commit().await?;
        assert_eq!(number(&mut connection, moved).await?, 1, "and it goes on");
        Ok(())
    });
}
