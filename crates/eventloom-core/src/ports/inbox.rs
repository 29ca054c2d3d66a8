//! What a consumer has handled, so that a second delivery has no second effect.

use super::{leases::Cursor, store::Store};
use crate::{error::StoreError, name::ConsumerName};
use std::{future::Future, time::Duration};
use time::OffsetDateTime;

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Not handled before: handle it in this transaction.
    New,
    /// Handled before, and committed.
    Handled,
}

/// A message whose handler calls the outside, about to be called.
#[derive(Debug, Clone, Copy)]
pub struct EffectRequest<'a> {
    /// Logical id.
    pub id: &'a str,
    /// The lane that asks, and its owner's epoch.
    pub cursor: Cursor,
}

/// The answer to an effect's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectClaim {
    /// Call, under the idempotency key of the message. `again`: a call under the same key may have happened before.
    Call {
        /// An earlier owner had claimed it and did not finish.
        again: bool,
    },
    /// Its result is stored.
    Handled,
    /// Another lane's owner has claimed it (the same logical id there), and its epoch is not over.
    InProgress,
}

/// The answer to a claim by [`Inbox::once_claim`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnceClaim {
    /// Do the work in this transaction.
    New,
    /// Done before with the same request; here is the stored result (JSON).
    Stored(String),
    /// The key was used with another request.
    Mismatch,
    /// The same key is being worked on at the moment.
    InProgress,
}

/// Claims and stored results. Payloads are never kept here.
pub trait Inbox: Store {
    /// Claims ids in the caller's transaction with one statement.
    ///
    /// # Contract
    /// `ids` are distinct and sorted; answers come in their order. Where another transaction is claiming the same id,
    /// this waits for its end. A claim is undone by rolling back.
    fn claim(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Vec<Claim>, StoreError>> + Send;

    /// Stores results (JSON) of ids claimed in this transaction.
    fn record(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes claims of this transaction back.
    fn unclaim(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The stored result of a handled message (JSON; `null` for none), or `None` when it was not handled.
    fn result_of(
        &self,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;

    /// Claims calls to the outside. Committed, with a fence, before they are made.
    ///
    /// # Contract
    /// `requests` are distinct and sorted by id; answers come in their order. A claim belongs to a lane and epoch: once
    /// that epoch is over, the lane was handed over, or the same lane asks again, the claim is open to the next. A lease
    /// that has run out opens nothing by itself: the owner may be calling still, and whoever takes its lane raises the
    /// epoch.
    fn claim_effects(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<Vec<EffectClaim>, StoreError>> + Send;

    /// Opens claims of calls that failed and whose messages are set aside: whoever asks next is told to call, `again`.
    /// What is handled stays handled, and claims of other lanes and epochs stay as they are.
    fn give_up_effects(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Stores results (JSON) of calls that were made. Committed, with the cursor or a fence, after they returned.
    fn finish_effects(
        &self,
        connection: &mut Self::Connection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes at most `rows_max` rows handled longer than `window` ago; returns how many.
    fn forget_handled(
        &self,
        consumer: &ConsumerName,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes at most `rows_max` keys of [`Inbox::once_claim`], of whatever scope, claimed longer than `window` ago;
    /// returns how many. What consumers have handled is left alone.
    fn forget_once(
        &self,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Claims `(scope, key)` for work that must happen once, such as an HTTP request with an Idempotency-Key.
    ///
    /// # Contract
    /// In the caller's transaction. `fingerprint` is a digest of the request. Never waits for another holder of the key:
    /// that is [`OnceClaim::InProgress`].
    fn once_claim(
        tables: &Self::Tables,
        connection: &mut Self::Connection,
        scope: &ConsumerName,
        key: &str,
        fingerprint: &[u8],
    ) -> impl Future<Output = Result<OnceClaim, StoreError>> + Send;

    /// Stores the result (JSON) of work claimed by [`Inbox::once_claim`] in this transaction.
    fn once_record(
        tables: &Self::Tables,
        connection: &mut Self::Connection,
        scope: &ConsumerName,
        key: &str,
        result: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
