//! What a log holds, and what a consumer has set aside, for tests to look at.

use eventloom_core::{
    ConsumerName, Event, Payload, Position, Recorded, StoreError,
    ports::{Backend, DeadLetter, HeldState, LetterFilter, ReadError, ReadLimits},
};
use std::fmt::Debug;

/// Rows of a log that were committed by the time at which it was read, in their order.
///
/// ```
/// use eventloom_core::{Event, Topic, ports::{Backend, ReadError}};
/// use eventloom_testkit::Published;
///
/// async fn check<S: Backend, E: Event + PartialEq + std::fmt::Debug>(store: &S, invoiced: E) -> Result<(), ReadError> {
///     let published = Published::read(store).await?;
///     published.assert_events("invoices", &[invoiced]);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Published {
    rows: Vec<Recorded>,
}

impl Published {
    /// Reads a whole log. Rows that were pruned are not in it.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn read<S: Backend>(store: &S) -> Result<Self, ReadError> {
        let mut after: Position = store.log_status().await?.pruned_to;
        let mut rows = Vec::new();
        loop {
            let page = store.read_after(after, ReadLimits::default()).await?;
            rows.extend(page.rows);
            after = page.scanned_to;
            if after >= page.horizon {
                return Ok(Published { rows });
            }
        }
    }

    /// All rows, raw.
    pub fn rows(&self) -> &[Recorded] {
        &self.rows
    }

    /// Rows of a topic, raw.
    pub fn of_topic<'a>(&'a self, topic: &'a str) -> impl Iterator<Item = &'a Recorded> {
        self.rows.iter().filter(move |row| row.envelope.topic == topic)
    }

    /// Events of a type in a topic, in order.
    ///
    /// # Panics
    /// When one does not decode, with its text.
    pub fn events<E: Event>(&self, topic: &str) -> Vec<E> {
        self.of_topic(topic).filter_map(decoded).collect()
    }

    /// Events of a type and a key in a topic, in order.
    ///
    /// # Panics
    /// When one does not decode, with its text.
    pub fn events_of_key<E: Event>(&self, topic: &str, key: &str) -> Vec<E> {
        let rows = self.of_topic(topic);
        rows.filter(|row| row.envelope.key.as_deref() == Some(key))
            .filter_map(decoded)
            .collect()
    }

    /// A topic holds these events of their type, in this order.
    ///
    /// # Panics
    /// When it does not: with both lists, and with the other types that stand in the topic.
    #[track_caller]
    pub fn assert_events<E: Event + PartialEq + Debug>(&self, topic: &str, wanted: &[E]) {
        let found = self.events::<E>(topic);
        let mut others: Vec<&str> = self
            .of_topic(topic)
            .map(|row| row.envelope.event_type.as_str())
            .collect();
        others.retain(|other| *other != E::TYPE);
        assert!(
            found == wanted,
            "events {:?} in topic {topic:?}\n   found: {found:#?}\n  wanted: {wanted:#?}\n  other types there: {others:?}",
            E::TYPE
        );
    }

    /// A topic holds these events of one key, in this order, whatever stands between them.
    ///
    /// # Panics
    /// When it does not, with both lists.
    #[track_caller]
    pub fn assert_events_of_key<E: Event + PartialEq + Debug>(&self, topic: &str, key: &str, wanted: &[E]) {
        let found = self.events_of_key::<E>(topic, key);
        assert!(
            found == wanted,
            "events {:?} of key {key:?} in topic {topic:?}\n   found: {found:#?}\n  wanted: {wanted:#?}",
            E::TYPE
        );
    }

    /// Nothing stands in a topic.
    ///
    /// # Panics
    /// When something does, with it.
    #[track_caller]
    pub fn assert_nothing(&self, topic: &str) {
        let found: Vec<&Recorded> = self.of_topic(topic).collect();
        assert!(found.is_empty(), "topic {topic:?} holds {found:#?}");
    }
}

fn decoded<E: Event>(row: &Recorded) -> Option<E> {
    if row.envelope.event_type != E::TYPE {
        return None;
    }
    let bytes = row.envelope.payload.as_ref().map_or(&b"null"[..], Payload::bytes);
    match serde_json::from_slice(bytes) {
        Ok(event) => Some(event),
        Err(error) => panic!(
            "{} does not decode: {error}: {}",
            E::TYPE,
            String::from_utf8_lossy(bytes)
        ),
    }
}

/// What a consumer has set aside.
///
/// ```
/// use eventloom_core::{StoreError, ports::Backend};
/// use eventloom_testkit::SetAside;
///
/// async fn check<S: Backend>(store: &S) -> Result<(), StoreError> {
///     let held = SetAside::read(store, "invoicing").await?;
///     held.assert_held_keys(&["order-17"]);
///     held.assert_dead(&["order.placed"]);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone)]
pub struct SetAside {
    keys: Vec<String>,
    letters: Vec<DeadLetter>,
}

impl SetAside {
    /// Reads everything that a consumer, or a relay, holds.
    ///
    /// # Errors
    /// The store did not answer.
    ///
    /// # Panics
    /// When the name is not legal.
    pub async fn read<S: Backend>(store: &S, consumer: &str) -> Result<Self, StoreError> {
        let name = match ConsumerName::parse(consumer) {
            Ok(name) => name,
            Err(error) => panic!("{consumer:?} is no consumer: {error}"),
        };
        let mut keys = Vec::new();
        for lane in store.lanes().all() {
            let mut after = String::new();
            while let page = store.keys_of_lane(&name, lane, &after, 1000).await?
                && let Some(last) = page.last()
            {
                after.clone_from(last);
                keys.extend(page);
            }
        }
        keys.sort_unstable();
        let mut letters: Vec<DeadLetter> = Vec::new();
        loop {
            let mut filter = LetterFilter::default().consumer(name.clone()).limit(1000);
            if let Some(last) = letters.last() {
                filter = filter.after(consumer, last.message.envelope.id.clone());
            }
            let page = store.letters(&filter).await?;
            if page.is_empty() {
                break;
            }
            letters.extend(page);
        }
        letters.sort_by_key(|letter| letter.message.position);
        Ok(SetAside { keys, letters })
    }

    /// Keys that are held, sorted.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Everything held, in the order of the log.
    pub fn letters(&self) -> &[DeadLetter] {
        &self.letters
    }

    /// Dead letters, in the order of the log.
    pub fn dead(&self) -> impl Iterator<Item = &DeadLetter> {
        self.letters.iter().filter(|letter| letter.state == HeldState::Dead)
    }

    /// Messages that wait to be tried again, or behind their key, in the order of the log.
    pub fn waiting(&self) -> impl Iterator<Item = &DeadLetter> {
        self.letters.iter().filter(|letter| letter.state == HeldState::Waiting)
    }

    /// These keys are held, and no others.
    ///
    /// # Panics
    /// When they are not: with what is held, and why.
    #[track_caller]
    pub fn assert_held_keys(&self, wanted: &[&str]) {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        assert!(
            self.keys == wanted,
            "held keys\n   found: {:?}\n  wanted: {wanted:?}{}",
            self.keys,
            self.told()
        );
    }

    /// Dead letters are of these types, in the order of the log, and there are no others.
    ///
    /// # Panics
    /// When they are not: with what is held, and why.
    #[track_caller]
    pub fn assert_dead(&self, wanted: &[&str]) {
        let found: Vec<&str> = self
            .dead()
            .map(|letter| letter.message.envelope.event_type.as_str())
            .collect();
        assert!(
            found == wanted,
            "dead letters\n   found: {found:?}\n  wanted: {wanted:?}{}",
            self.told()
        );
    }

    /// Nothing is held.
    ///
    /// # Panics
    /// When something is: with it, and why.
    #[track_caller]
    pub fn assert_nothing(&self) {
        assert!(
            self.letters.is_empty() && self.keys.is_empty(),
            "something is held{}",
            self.told()
        );
    }

    fn told(&self) -> String {
        let told = self.letters.iter().map(|letter| {
            let envelope = &letter.message.envelope;
            format!(
                "\n  {:?}, {} attempts: {} {} of key {:?}: {}",
                letter.state,
                letter.attempts,
                envelope.event_type,
                envelope.id,
                envelope.key,
                letter.error.as_deref().unwrap_or("waits behind its key")
            )
        });
        told.collect()
    }
}
