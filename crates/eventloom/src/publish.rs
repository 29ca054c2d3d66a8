//! Publishing: in the caller's transaction, or alone.

use eventloom_core::{
    Event, NewEvent, PublishError, PublishLimits, Topic, Uuid,
    ports::{ConnectionOf, Outbox, Store},
};
use eventloom_runtime::{in_span, publish_span, published, row_in_span};
use std::future::Future;
use tracing::Instrument;

/// Publishes an event in the caller's transaction: it is delivered if and when that commits. Returns its logical id.
///
/// With the feature `otel` the row gets the trace context of the publication, to which whoever handles it links; one that
/// brings a context of its own keeps it.
///
/// `connection` is the driver's own, with the transaction open on it: `&mut *tx`. No other connection is used. Publish late:
/// on Postgres, readers wait for what a transaction that has published may still publish.
///
/// # Order
/// Events of one key are handled in the order of their inserts. Where that is to be the order of changes of an entity, lock
/// or version the entity's row first.
///
/// # Errors
/// [`PublishError::Refused`] and [`PublishError::Encode`] leave the transaction usable; after [`PublishError::Store`] it is
/// to be rolled back.
///
/// # Cancel safety
/// Dropping the future leaves the transaction to be rolled back by its owner.
pub async fn publish<C, S, E>(connection: &mut C, topic: Topic, event: &E) -> Result<Uuid, PublishError>
where
    C: ConnectionOf<S>,
    S: Outbox + Store<Connection = C>,
    E: Event,
{
    let row = NewEvent::of(topic, event)?;
    let id = row.id();
    append::<C, S>(connection, &[row]).await?;
    Ok(id)
}

/// Publishes events of one type with one statement, in the order given, and returns their logical ids in that order. See
/// [`publish`].
pub async fn publish_all<'e, C, S, E>(
    connection: &mut C,
    topic: Topic,
    events: impl IntoIterator<Item = &'e E>,
) -> Result<Vec<Uuid>, PublishError>
where
    C: ConnectionOf<S>,
    S: Outbox + Store<Connection = C>,
    E: Event,
{
    let rows = events
        .into_iter()
        .map(|event| NewEvent::of(topic.clone(), event))
        .collect::<Result<Vec<_>, _>>()?;
    append::<C, S>(connection, &rows).await
}

/// Publishes rows, of several types and topics if need be, with one statement, in the order given, and returns their
/// logical ids in that order. See [`publish`].
pub async fn publish_rows<C, S>(connection: &mut C, rows: &[NewEvent]) -> Result<Vec<Uuid>, PublishError>
where
    C: ConnectionOf<S>,
    S: Outbox + Store<Connection = C>,
{
    append::<C, S>(connection, rows).await
}

async fn append<C, S>(connection: &mut C, rows: &[NewEvent]) -> Result<Vec<Uuid>, PublishError>
where
    C: ConnectionOf<S>,
    S: Outbox + Store<Connection = C>,
{
    append_within::<S>(&PublishLimits::default(), &S::Tables::default(), connection, rows).await
}

async fn append_within<S: Outbox>(
    limits: &PublishLimits,
    tables: &S::Tables,
    connection: &mut S::Connection,
    rows: &[NewEvent],
) -> Result<Vec<Uuid>, PublishError> {
    for row in rows {
        limits.check(row)?;
    }
    if !rows.is_empty() {
        let span = publish_span(rows);
        let appended = S::append(tables, connection, &in_span(&span, rows))
            .instrument(span.clone())
            .await;
        published(&span, &appended);
        appended?;
    }
    Ok(rows.iter().map(NewEvent::id).collect())
}

/// Publishing on a store itself, under its own table names and limits.
pub trait Publish: Outbox {
    /// Publishes an event in a transaction of its own; concurrent ones share a commit. Returns its logical id.
    ///
    /// # Errors
    /// When [`PublishError::may_have_happened`], publish again with the same id through [`Publish::publish_row`]:
    /// inboxes dedup on it.
    ///
    /// # Cancel safety
    /// A dropped future may have published.
    fn publish<E: Event>(&self, topic: Topic, event: &E) -> impl Future<Output = Result<Uuid, PublishError>> + Send {
        let row = NewEvent::of(topic, event);
        async move { self.publish_row(row?).await }
    }

    /// As [`Publish::publish`], for a row whose id the caller knows.
    fn publish_row(&self, row: NewEvent) -> impl Future<Output = Result<Uuid, PublishError>> + Send {
        async move {
            self.limits().check(&row)?;
            let id = row.id();
            let span = publish_span(std::slice::from_ref(&row));
            let alone = self
                .publish_alone(row_in_span(&span, row))
                .instrument(span.clone())
                .await;
            published(&span, &alone);
            alone?;
            Ok(id)
        }
    }

    /// Publishes in the caller's transaction, under this store's table names and limits, and returns the logical ids in
    /// the order of the rows.
    fn publish_in(
        &self,
        connection: &mut Self::Connection,
        rows: &[NewEvent],
    ) -> impl Future<Output = Result<Vec<Uuid>, PublishError>> + Send {
        async move { append_within::<Self>(self.limits(), self.tables(), connection, rows).await }
    }
}

impl<S: Outbox> Publish for S {}
