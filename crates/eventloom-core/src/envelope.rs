//! An event as its readers see it: CloudEvents attributes around a payload that passes through untouched.

use crate::place::{Lane, Position};
use std::collections::BTreeMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// Further headers: names and values of text.
pub type Headers = BTreeMap<String, String>;

/// A payload, byte for byte as its author wrote it. Exhaustive: the tables have these two columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text (column `data`). Kept as text: neither reordered nor reformatted.
    Json(String),
    /// Any other content type (column `data_bytes`).
    Binary(Vec<u8>),
}

impl Payload {
    /// The bytes, whichever kind they are.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Binary(bytes) => bytes,
        }
    }
}

/// An event with its CloudEvents 1.0 attributes, as read from a log or from a broker.
///
/// Fields are as the writer left them. Rows of other programs may lack what our own always have, so nothing is assumed:
/// `event_type` may be unknown and the payload may not decode. Exhaustive: a store that overlooked a new attribute would
/// lose it.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Logical id: what inboxes dedup on. Any text; a UUIDv7 from our own libraries. Never used for order.
    pub id: String,
    /// Where it was published.
    pub topic: String,
    /// CloudEvents `type`.
    pub event_type: String,
    /// CloudEvents `partitionkey`: what must stay in order. `None`, or empty in rows of other programs: no order asked.
    pub key: Option<String>,
    /// CloudEvents `source`.
    pub source: Option<String>,
    /// CloudEvents `subject`.
    pub subject: Option<String>,
    /// Event time.
    pub time: OffsetDateTime,
    /// The payload.
    pub payload: Option<Payload>,
    /// Media type of the payload; JSON where there is none.
    pub datacontenttype: Option<String>,
    /// URI of the payload's schema.
    pub dataschema: Option<String>,
    /// Version of the payload's schema.
    pub schemaversion: i32,
    /// The business process it belongs to.
    pub correlationid: Option<String>,
    /// The message that caused it.
    pub causationid: Option<String>,
    /// W3C trace context of its creation.
    pub traceparent: Option<String>,
    /// W3C vendor state.
    pub tracestate: Option<String>,
    /// Further headers.
    pub headers: Headers,
    /// The log it was relayed from; `None`: written here.
    pub origin: Option<Uuid>,
}

impl Envelope {
    /// An envelope with what every event has; the other attributes are set on its fields.
    pub fn new(
        id: impl Into<String>,
        topic: impl Into<String>,
        event_type: impl Into<String>,
        time: OffsetDateTime,
    ) -> Self {
        Envelope {
            id: id.into(),
            topic: topic.into(),
            event_type: event_type.into(),
            key: None,
            source: None,
            subject: None,
            time,
            payload: None,
            datacontenttype: None,
            dataschema: None,
            schemaversion: 1,
            correlationid: None,
            causationid: None,
            traceparent: None,
            tracestate: None,
            headers: Headers::new(),
            origin: None,
        }
    }
}

/// An envelope with its place in a log.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Place in the log.
    pub position: Position,
    /// Hash class of its key.
    pub lane: Lane,
    /// The event.
    pub envelope: Envelope,
    /// Size of the payload where it was larger than the reader asked for: it was not read, and `payload` is `None`.
    pub omitted: Option<u64>,
}
