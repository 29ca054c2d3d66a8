//! An event as its author sees it: a typed fact, and the row it becomes in a log.

use crate::{
    envelope::{Headers, Payload},
    error::PublishError,
    limits::Refusal,
    name::Topic,
};
use serde::{Serialize, de::DeserializeOwned};
use std::borrow::Cow;
use time::OffsetDateTime;
use uuid::Uuid;

/// A fact in the past tense, as a type.
///
/// Usually derived; by hand it is three lines:
///
/// ```
/// use eventloom_core::Event;
/// use std::borrow::Cow;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPlaced { order: String, total_cents: i64 }
///
/// impl Event for OrderPlaced {
///     const TYPE: &'static str = "order.placed";
///     fn key(&self) -> Option<Cow<'_, str>> { Some(Cow::Borrowed(&self.order)) }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "needs `#[derive(Event)]` with `#[event(type = \"order.placed\")]`, or `impl Event`",
    note = "an event is also `serde::Serialize + serde::Deserialize`, owns its data, and is `Send + Sync`"
)]
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// CloudEvents `type`, for example `order.placed`. Not empty.
    const TYPE: &'static str;
    /// Version of the payload's schema, from 1.
    const VERSION: i32 = 1;
    /// What must stay in order: events of one key are handled in the order of their inserts. `None`, or an
    /// empty one: no order asked.
    fn key(&self) -> Option<Cow<'_, str>> {
        None
    }
}

/// An event on its way into a log: the attributes of [`Envelope`](crate::Envelope) that its author decides.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    id: Uuid,
    topic: Topic,
    event_type: String,
    key: Option<String>,
    source: Option<String>,
    subject: Option<String>,
    time: Option<OffsetDateTime>,
    payload: Option<Payload>,
    /// The payload was made by a serialiser, so that nobody need look whether it is JSON.
    serialised: bool,
    datacontenttype: Option<String>,
    dataschema: Option<String>,
    schemaversion: i32,
    correlationid: Option<String>,
    causationid: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    headers: Headers,
}

impl NewEvent {
    /// A row for a typed event, with a fresh UUIDv7 as its logical id and JSON as its payload.
    pub fn of<E: Event>(topic: Topic, event: &E) -> Result<Self, PublishError> {
        let json = serde_json::to_string(event).map_err(PublishError::Encode)?;
        let mut row = NewEvent::untyped(topic, E::TYPE);
        row.key = event.key().map(Cow::into_owned).filter(|key| !key.is_empty());
        row.payload = Some(Payload::Json(json));
        row.serialised = true;
        row.schemaversion = E::VERSION;
        Ok(row)
    }

    /// A row without a Rust type behind it: for programs that pass events on.
    pub fn untyped(topic: Topic, event_type: impl Into<String>) -> Self {
        NewEvent {
            id: Uuid::now_v7(),
            topic,
            event_type: event_type.into(),
            key: None,
            source: None,
            subject: None,
            time: None,
            payload: None,
            serialised: false,
            datacontenttype: None,
            dataschema: None,
            schemaversion: 1,
            correlationid: None,
            causationid: None,
            traceparent: None,
            tracestate: None,
            headers: Headers::new(),
        }
    }

    /// Sets the logical id, on which inboxes dedup.
    #[must_use]
    pub fn with_id(mut self, id: Uuid) -> Self {
        self.id = id;
        self
    }

    /// Sets the key. An empty one is none.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into()).filter(|key| !key.is_empty());
        self
    }

    /// Sets the payload.
    #[must_use]
    pub fn with_payload(mut self, payload: Payload) -> Self {
        self.payload = Some(payload);
        self.serialised = false;
        self
    }

    /// Sets CloudEvents `source`.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Sets CloudEvents `subject`.
    #[must_use]
    pub fn with_subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Sets the event time; the database's clock otherwise.
    #[must_use]
    pub fn with_time(mut self, time: OffsetDateTime) -> Self {
        self.time = Some(time);
        self
    }

    /// Sets the media type of the payload; `application/json` is meant where there is none.
    #[must_use]
    pub fn with_datacontenttype(mut self, media_type: impl Into<String>) -> Self {
        self.datacontenttype = Some(media_type.into());
        self
    }

    /// Sets the URI of the payload's schema.
    #[must_use]
    pub fn with_dataschema(mut self, uri: impl Into<String>) -> Self {
        self.dataschema = Some(uri.into());
        self
    }

    /// Sets the version of the payload's schema.
    #[must_use]
    pub fn with_schemaversion(mut self, version: i32) -> Self {
        self.schemaversion = version;
        self
    }

    /// Says what business process the event belongs to, and which message caused it.
    #[must_use]
    pub fn with_correlation(mut self, correlation: Option<String>, causation: Option<String>) -> Self {
        self.correlationid = correlation;
        self.causationid = causation;
        self
    }

    /// Stores the W3C trace context in which the event was created.
    #[must_use]
    pub fn with_trace(mut self, traceparent: impl Into<String>, tracestate: Option<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self.tracestate = tracestate;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// The logical id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Where it goes.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// CloudEvents `type`.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// What must stay in order.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// CloudEvents `source`; the service's default where there is none.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    /// CloudEvents `subject`.
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// Event time; the database's clock where there is none.
    pub fn time(&self) -> Option<OffsetDateTime> {
        self.time
    }

    /// The payload.
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// Media type of the payload.
    pub fn datacontenttype(&self) -> Option<&str> {
        self.datacontenttype.as_deref()
    }

    /// URI of the payload's schema.
    pub fn dataschema(&self) -> Option<&str> {
        self.dataschema.as_deref()
    }

    /// Version of the payload's schema.
    pub fn schemaversion(&self) -> i32 {
        self.schemaversion
    }

    /// The business process it belongs to.
    pub fn correlationid(&self) -> Option<&str> {
        self.correlationid.as_deref()
    }

    /// The message that caused it.
    pub fn causationid(&self) -> Option<&str> {
        self.causationid.as_deref()
    }

    /// W3C `traceparent`.
    pub fn traceparent(&self) -> Option<&str> {
        self.traceparent.as_deref()
    }

    /// W3C `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }

    /// Further headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Why the payload is no JSON although it should be, if so.
    pub(crate) fn not_json(&self) -> Option<String> {
        match &self.payload {
            Some(Payload::Json(json)) if !self.serialised => serde_json::from_str::<serde::de::IgnoredAny>(json)
                .err()
                .map(|error| error.to_string()),
            _ => None,
        }
    }

    /// Which text attribute holds a NUL character, if any.
    pub(crate) fn text_with_nul(&self) -> Option<&'static str> {
        let json = match &self.payload {
            Some(Payload::Json(json)) => Some(json.as_str()),
            _ => None,
        };
        let texts = [
            ("type", Some(self.event_type.as_str())),
            ("key", self.key()),
            ("source", self.source()),
            ("subject", self.subject()),
            ("data", json),
            ("datacontenttype", self.datacontenttype()),
            ("dataschema", self.dataschema()),
            ("correlationid", self.correlationid()),
            ("causationid", self.causationid()),
            ("traceparent", self.traceparent()),
            ("tracestate", self.tracestate()),
        ];
        let in_headers = self
            .headers
            .iter()
            .any(|(name, value)| name.contains('\0') || value.contains('\0'));
        let in_text = texts
            .into_iter()
            .find(|(_, text)| text.is_some_and(|text| text.contains('\0')));
        in_text.map(|(what, _)| what).or(in_headers.then_some("a header"))
    }
}

impl From<Refusal> for PublishError {
    fn from(refusal: Refusal) -> Self {
        PublishError::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Keyed(String);

    impl Event for Keyed {
        const TYPE: &'static str = "keyed";

        fn key(&self) -> Option<Cow<'_, str>> {
            Some(Cow::Borrowed(&self.0))
        }
    }

    #[test]
    fn an_empty_key_is_none() {
        let topic = || Topic::new("orders");
        for (key, wanted) in [("", None), ("order-17", Some("order-17"))] {
            let typed = NewEvent::of(topic(), &Keyed(key.to_owned())).unwrap();
            let untyped = NewEvent::untyped(topic(), "untyped").with_key("other").with_key(key);
            assert_eq!((typed.key(), untyped.key()), (wanted, wanted), "{key:?}");
        }
    }
}
