//! An event as programs get it: one object of JSON with the names of the SQL contract.

use crate::{
    figures,
    output::{plain, shortened},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use eventloom::{Headers, Payload, Recorded};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// An event in JSON. The payload stands in one of three members: `data` as it was written, `data_text` where it is
/// text that is not JSON, `data_base64` otherwise.
#[derive(Serialize)]
pub(crate) struct EventJson<'a> {
    position: i64,
    lane: i16,
    id: &'a str,
    topic: &'a str,
    r#type: &'a str,
    key: Option<&'a str>,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacontenttype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataschema: Option<&'a str>,
    schemaversion: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlationid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causationid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: &'a Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
}

impl<'a> EventJson<'a> {
    pub(crate) fn of(recorded: &'a Recorded) -> Self {
        let envelope = &recorded.envelope;
        let (mut data, mut data_text, mut data_base64) = (None, None, None);
        match &envelope.payload {
            Some(Payload::Json(text)) => match raw_json(text) {
                Some(raw) => data = Some(raw),
                None => data_text = Some(text.as_str()),
            },
            Some(Payload::Binary(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => data_text = Some(text),
                Err(_) => data_base64 = Some(BASE64_STANDARD.encode(bytes)),
            },
            None => {}
        }
        EventJson {
            position: recorded.position.0,
            lane: recorded.lane.0,
            id: &envelope.id,
            topic: &envelope.topic,
            r#type: &envelope.event_type,
            key: envelope.key.as_deref(),
            time: figures::rfc3339(envelope.time),
            source: envelope.source.as_deref(),
            subject: envelope.subject.as_deref(),
            data,
            data_text,
            data_base64,
            datacontenttype: envelope.datacontenttype.as_deref(),
            dataschema: envelope.dataschema.as_deref(),
            schemaversion: envelope.schemaversion,
            correlationid: envelope.correlationid.as_deref(),
            causationid: envelope.causationid.as_deref(),
            traceparent: envelope.traceparent.as_deref(),
            tracestate: envelope.tracestate.as_deref(),
            headers: &envelope.headers,
            origin: envelope.origin.map(|origin| origin.to_string()),
        }
    }
}

/// Numbers and order of the payload stay as they were written; only line ends go, which JSON allows between its parts
/// alone, so that an event is one line.
fn raw_json(text: &str) -> Option<Box<RawValue>> {
    let line = match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], " "),
        false => text.to_owned(),
    };
    RawValue::from_string(line).ok()
}

/// The payload on one line for people.
pub(crate) fn payload_line(payload: Option<&Payload>, characters_max: usize) -> String {
    let text = match payload {
        None => Cow::Borrowed("-"),
        Some(Payload::Json(text)) => Cow::Borrowed(text.as_str()),
        Some(Payload::Binary(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(format!("({} bytes)", figures::thousands(bytes.len() as i64))),
        },
    };
    // Cut before it is cleaned, or a payload of a megabyte is looked at in full for a line.
    let text = shortened(&text, characters_max);
    shortened(&plain(&text), characters_max).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use eventloom::{Envelope, Lane, OffsetDateTime, Position};

    fn recorded(payload: Option<Payload>) -> Recorded {
        let mut envelope = Envelope::new("an id", "orders", "order.placed", OffsetDateTime::UNIX_EPOCH);
        envelope.payload = payload;
        Recorded {
            position: Position(7),
            lane: Lane(3),
            envelope,
            omitted: None,
        }
    }

    fn check(payload: Option<Payload>, member: &str, line: &str) {
        let recorded = recorded(payload);
        let json = serde_json::to_string(&EventJson::of(&recorded)).unwrap();
        assert!(json.contains(member) && !json.contains('\n'), "{json}");
        assert_eq!(payload_line(recorded.envelope.payload.as_ref(), 20), line);
    }

    #[test]
    fn payloads() {
        check(None, r#""time":"1970-01-01T00:00:00Z","schemaversion":1}"#, "-");
        let json = "{\"b\": 1.50,\n \"a\": 12345678901234567890123}";
        check(
            Some(Payload::Json(json.to_owned())),
            r#""data":{"b": 1.50,  "a": 12345678901234567890123}"#,
            "{\"b\": 1.50,  \"a\": 1…",
        );
        check(
            Some(Payload::Json("{oops".to_owned())),
            r#""data_text":"{oops""#,
            "{oops",
        );
        check(
            Some(Payload::Binary(b"a\x1bb".to_vec())),
            r#""data_text":"a\u001bb""#,
            "a\\u{1b}b",
        );
        check(
            Some(Payload::Binary(vec![0xff, 0xfe])),
            r#""data_base64":"//4=""#,
            "(2 bytes)",
        );
    }
}
