//! Dead letters as calls: look, send again, give up. Every verb only changes state; the lane's owner handles.

use super::{held::HeldState, store::Store};
use crate::{envelope::Recorded, error::StoreError, name::ConsumerName};
use std::future::Future;
use time::OffsetDateTime;

/// Which held messages are meant: all of them unless said otherwise.
///
/// ```
/// use eventloom_core::ports::{HeldState, LetterFilter};
/// let filter = LetterFilter::default().state(HeldState::Dead).key("order-17");
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LetterFilter {
    /// Only this consumer.
    pub consumer: Option<ConsumerName>,
    /// Only this state; both when `None`.
    pub state: Option<HeldState>,
    /// Only this key.
    pub key: Option<String>,
    /// Continue after this `(consumer, id)`.
    pub after: Option<(String, String)>,
    /// At most this many; 100 when `None`.
    pub limit: Option<u32>,
}

impl LetterFilter {
    /// Only of this consumer.
    #[must_use]
    pub fn consumer(mut self, consumer: ConsumerName) -> Self {
        self.consumer = Some(consumer);
        self
    }

    /// Only in this state.
    #[must_use]
    pub fn state(mut self, state: HeldState) -> Self {
        self.state = Some(state);
        self
    }

    /// Only of this key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Only what comes after this message of this consumer: the next page.
    #[must_use]
    pub fn after(mut self, consumer: impl Into<String>, id: impl Into<String>) -> Self {
        self.after = Some((consumer.into(), id.into()));
        self
    }

    /// At most this many.
    #[must_use]
    pub fn limit(mut self, letters: u32) -> Self {
        self.limit = Some(letters);
        self
    }
}

/// A held message with everything that is known of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Whose.
    pub consumer: String,
    /// The message, raw.
    pub message: Recorded,
    /// Waiting or dead.
    pub state: HeldState,
    /// Whether it stands in its key's queue.
    pub queued: bool,
    /// Attempts used.
    pub attempts: u32,
    /// When it is tried next.
    pub due_at: Option<OffsetDateTime>,
    /// Last error and its chain.
    pub error: Option<String>,
    /// What letters are grouped by.
    pub fingerprint: Option<String>,
    /// First failure.
    pub first_failed_at: Option<OffsetDateTime>,
    /// Last failure.
    pub last_failed_at: Option<OffsetDateTime>,
    /// When it was set aside.
    pub held_at: OffsetDateTime,
    /// The instance that set it aside.
    pub held_by: String,
    /// How often somebody sent it again by hand.
    pub redrives: u32,
}

impl DeadLetter {
    /// A message that was set aside alone; what else is known of it is set on its fields.
    pub fn new(
        consumer: impl Into<String>,
        message: Recorded,
        state: HeldState,
        held_at: OffsetDateTime,
        held_by: impl Into<String>,
    ) -> Self {
        DeadLetter {
            consumer: consumer.into(),
            message,
            state,
            queued: false,
            attempts: 0,
            due_at: None,
            error: None,
            fingerprint: None,
            first_failed_at: None,
            last_failed_at: None,
            held_at,
            held_by: held_by.into(),
            redrives: 0,
        }
    }
}

/// What to send again. Only dead ones are: a waiting one has its time. Exhaustive: a store answers each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redrive {
    /// One message.
    One(String),
    /// All of a key, in order.
    Key(String),
    /// All of a consumer.
    All,
}

/// What operators ask of held messages.
pub trait DeadLetters: Store {
    /// Held messages, by consumer and id.
    fn letters(&self, filter: &LetterFilter) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send;

    /// One held message.
    fn letter(
        &self,
        consumer: &ConsumerName,
        id: &str,
    ) -> impl Future<Output = Result<Option<DeadLetter>, StoreError>> + Send;

    /// Makes dead messages waiting and due at once, with fresh attempts; returns how many.
    fn redrive(
        &self,
        consumer: &ConsumerName,
        which: &Redrive,
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Gives dead messages up for good; what is queued behind them flows on. Returns how many were deleted. A waiting
    /// message is left alone.
    fn delete_letters(
        &self,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
