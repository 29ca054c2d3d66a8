//! An instance of a reader, as a case drives it: what it believes to own, and its transactions.

use super::{
    check::Failed,
    sample::{at, consumer},
};
use eventloom_core::{
    ConsumerName, Epoch, Lane, NewEvent, OffsetDateTime, OwnerId, Position, StoreError,
    ports::{Backend, Cursor, HeldMessage, LetGo, Move, NewHeld, ReaderStatus, Scope, Start, Tenure, Transaction as _},
};
use std::{collections::BTreeMap, time::Duration};

/// The lease that cases take.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// One process of a reader.
pub(super) struct Instance<S: Backend> {
    pub(super) store: S,
    pub(super) reader: ConsumerName,
    pub(super) owner: OwnerId,
    /// What it believes to own.
    pub(super) held: Vec<Cursor>,
}

impl<S: Backend> Instance<S> {
    /// An instance that has not joined yet.
    pub(super) fn new(store: &S, reader: &str) -> Result<Self, Failed> {
        let owner = OwnerId::new("conformance", std::process::id());
        Ok(Instance {
            store: store.clone(),
            reader: consumer(reader)?,
            owner,
            held: Vec::new(),
        })
    }

    /// Registers a reader at the earliest row and makes an instance that owns all of its lanes, at second 0.
    pub(super) async fn alone(store: &S, reader: &str) -> Result<Self, Failed> {
        let mut instance = Instance::new(store, reader)?;
        store.register(&instance.reader, Start::Earliest, at(0)).await?;
        instance.keep(at(0)).await?;
        Ok(instance)
    }

    /// Joins or renews, and believes what it is told.
    pub(super) async fn keep(&mut self, now: Option<OffsetDateTime>) -> Result<Tenure, StoreError> {
        let mut tenure = self
            .store
            .keep(&self.reader, &self.owner, LEASE, &self.held, now)
            .await?;
        tenure.owned.sort();
        tenure.taken.sort_by_key(|taken| taken.cursor);
        self.held.clone_from(&tenure.owned);
        Ok(tenure)
    }

    /// Hands these lanes over.
    pub(super) async fn release(&mut self, lanes: &[Cursor], leaving: bool) -> Result<(), StoreError> {
        self.store.release(&self.reader, &self.owner, lanes, leaving).await?;
        self.held.retain(|cursor| !lanes.contains(cursor));
        Ok(())
    }

    /// The cursor of a lane that it believes to own.
    pub(super) fn cursor(&self, lane: Lane) -> Result<Cursor, Failed> {
        let found = self.held.iter().find(|cursor| cursor.lane == lane);
        found
            .copied()
            .ok_or_else(|| Failed::new(format!("the instance does not own lane {lane}: {:?}", self.held)))
    }

    /// Epoch of each lane that it believes to own.
    pub(super) fn epochs(&self) -> BTreeMap<Lane, Epoch> {
        self.held.iter().map(|cursor| (cursor.lane, cursor.epoch)).collect()
    }

    pub(super) async fn begin(&self) -> Result<S::Transaction, StoreError> {
        let limit = Duration::from_secs(30);
        self.store
            .begin(Scope {
                reader: &self.reader,
                owner: &self.owner,
                limit,
            })
            .await
    }

    /// Runs `work` in a transaction: commits it, or rolls it back when `work` fails.
    pub(super) async fn commit<T, E>(
        &self,
        work: impl AsyncFnOnce(&mut S::Connection) -> Result<T, E>,
    ) -> Result<T, Failed>
    where
        Failed: From<E>,
    {
        let mut transaction = self.begin().await?;
        match work(&mut *transaction).await {
            Ok(value) => {
                transaction.commit().await?;
                Ok(value)
            }
            Err(error) => {
                // The failure of the work is the news, not that of its rollback: its connection may be gone.
                let _ = transaction.rollback().await;
                Err(error.into())
            }
        }
    }

    /// Commits events with one statement.
    pub(super) async fn append(&self, events: &[NewEvent]) -> Result<(), Failed> {
        self.commit(async |connection| S::append(self.store.tables(), connection, events).await)
            .await
    }

    /// Moves these lanes to a position, wherever they stand.
    pub(super) async fn advance_to(&self, lanes: &[Cursor], to: Position) -> Result<(), Failed> {
        let stand = self.stand().await?;
        let moves: Vec<Move> = lanes
            .iter()
            .map(|cursor| Move {
                cursor: *cursor,
                from: stand[&cursor.lane],
                to,
                batch_end: None,
                confirmed: None,
            })
            .filter(|step| step.from < to)
            .collect();
        self.commit(async |connection| self.store.advance(connection, &self.reader, &moves).await)
            .await
    }

    /// Makes the rows of the messages' keys, and holds the messages, as of second 0.
    pub(super) async fn hold(&self, messages: &[NewHeld<'_>]) -> Result<(), Failed> {
        self.commit(async |connection| {
            for held in messages.iter().filter(|held| held.queued) {
                let key = held.message.envelope.key.as_deref().unwrap_or_default();
                self.store
                    .lock_key(connection, &self.reader, key, held.message.lane)
                    .await?;
            }
            self.store
                .put(connection, &self.reader, &self.owner, messages, at(0))
                .await
        })
        .await?;
        Ok(())
    }

    /// Removes handled messages; how many were there.
    pub(super) async fn remove(&self, ids: &[&str]) -> Result<u64, Failed> {
        self.commit(async |connection| self.store.remove(connection, &self.reader, ids).await)
            .await
    }

    pub(super) async fn let_go(&self, key: &str, now: Option<OffsetDateTime>) -> Result<LetGo, Failed> {
        self.commit(async |connection| self.store.let_go(connection, &self.reader, key, now).await)
            .await
    }

    /// A message that must be held.
    pub(super) async fn held(&self, id: &str) -> Result<HeldMessage, Failed> {
        let found = self.store.held_message(&self.reader, id).await?;
        found.ok_or_else(|| Failed::new(format!("{id} is not held")))
    }

    /// Ids of what is due in any lane.
    pub(super) async fn due(&self, now: Option<OffsetDateTime>) -> Result<Vec<String>, Failed> {
        let lanes: Vec<Lane> = self.store.lanes().all().collect();
        let (due, _) = self.store.due(&self.reader, &lanes, 100, now).await?;
        Ok(due.into_iter().map(|due| due.id).collect())
    }

    /// Ids of a key's queue, head first.
    pub(super) async fn queue(&self, key: &str) -> Result<Vec<String>, Failed> {
        let queue = self.store.queue_of(&self.reader, key, 100).await?;
        Ok(queue.into_iter().map(|held| held.message.envelope.id).collect())
    }

    /// Whether the row of a key is there.
    pub(super) async fn holds_key(&self, key: &str) -> Result<bool, Failed> {
        let held = self
            .commit(async |connection| self.store.ask(connection, &self.reader, &[key], &[]).await)
            .await?;
        Ok(held.keys.contains(key))
    }

    /// What operators see of the reader.
    pub(super) async fn status(&self, now: Option<OffsetDateTime>) -> Result<ReaderStatus, Failed> {
        let readers = self.store.readers(now).await?;
        let found = readers.into_iter().find(|status| status.name == self.reader.as_str());
        found.ok_or_else(|| Failed::new(format!("readers() does not list {}", self.reader)))
    }

    /// Where each of its lanes stands in the tables.
    pub(super) async fn stand(&self) -> Result<BTreeMap<Lane, Position>, Failed> {
        let status = self.status(at(0)).await?;
        Ok(status
            .lanes
            .into_iter()
            .map(|lane| (lane.lane, lane.position))
            .collect())
    }
}
