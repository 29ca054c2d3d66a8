//! What a store keeps for relays: how far they are confirmed where they begin, and what has arrived where they end.

use super::{
    broker::{Mark, Outgoing, Source},
    store::Store,
};
use crate::{
    error::StoreError,
    name::ConsumerName,
    place::{Epoch, Lane, Position},
};
use std::{collections::HashMap, future::Future};
use uuid::Uuid;

/// Where a relay stands in its own log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayStanding {
    /// The broker that has confirmed, when it has an identity.
    pub broker: Option<Uuid>,
    /// The lanes.
    pub lanes: Vec<LaneSent>,
}

/// Where a relay stands in one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneSent {
    /// The lane.
    pub lane: Lane,
    /// Its epoch.
    pub epoch: Epoch,
    /// The last message that the broker has confirmed; `None` before the first, and after a reset.
    pub confirmed: Option<Position>,
}

/// Why nothing of a lane was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untaken {
    /// A later epoch has sent.
    Fenced,
    /// Less of it is here than was confirmed: this log has gone back.
    Lost,
}

/// Both ends of a relay.
pub trait Relays: Store {
    /// Where a relay stands.
    fn relay_standing(&self, reader: &ConsumerName) -> impl Future<Output = Result<RelayStanding, StoreError>> + Send;

    /// Records which broker a relay sends to, unless that is known already. Returns the one that is recorded.
    fn remember_broker(
        &self,
        reader: &ConsumerName,
        broker: Uuid,
    ) -> impl Future<Output = Result<Uuid, StoreError>> + Send;

    /// What has arrived of a source.
    fn relay_marks(&self, source: &Source) -> impl Future<Output = Result<Vec<Mark>, StoreError>> + Send;

    /// Takes messages of other logs into this one, in the order given, with their origin; raises the marks of their lanes.
    /// Returns lanes of which nothing was taken, and why.
    ///
    /// # Contract
    /// Marks are compared with what messages say was confirmed before, in the statement that raises them: messages of a lane
    /// that stands below are not taken. All of it is one transaction, and `Ok` means that it is durable. A message that is
    /// sent twice stands in the log twice; inboxes dedup on its logical id.
    ///
    /// # Errors
    /// Nothing was taken, but for [`StoreErrorKind::Indeterminate`](crate::StoreErrorKind::Indeterminate).
    fn take_in(
        &self,
        source: &Source,
        messages: &[Outgoing],
    ) -> impl Future<Output = Result<HashMap<Lane, Untaken>, StoreError>> + Send;

    /// Gives the log a new identity: after it was restored from a backup, or promoted, so that what comes now is not taken
    /// for what came before. Returns the new one.
    fn renew_identity(&self) -> impl Future<Output = Result<Uuid, StoreError>> + Send;
}
