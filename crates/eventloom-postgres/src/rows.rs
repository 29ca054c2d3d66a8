//! Rows of the log and of the held messages, as envelopes.

use eventloom_core::{Envelope, Headers, Lane, Payload, Position, Recorded};
use sqlx::{Row, ValueRef, error::BoxDynError, postgres::PgRow};

/// Number of columns that [`recorded`] reads, in this order: position, lane, id (as text), topic, type, key, source,
/// subject, time, data, data_bytes, datacontenttype, dataschema, schemaversion, correlationid, causationid, traceparent,
/// tracestate, headers, origin.
pub(crate) const COLUMNS: usize = 20;

/// Decodes a message from the columns that begin at `first`.
pub(crate) fn recorded(row: &PgRow, first: usize) -> Result<Recorded, sqlx::Error> {
    let at = |column: usize| first + column;
    // Raw: `json` and `text` both arrive as their text, and stay as they were written, valid or not.
    let payload = match (raw_text(row, at(9))?, row.try_get::<Option<Vec<u8>>, _>(at(10))?) {
        (Some(json), _) => Some(Payload::Json(json)),
        (None, bytes) => bytes.map(Payload::Binary),
    };
    let envelope = Envelope {
        id: row.try_get(at(2))?,
        topic: row.try_get(at(3))?,
        event_type: row.try_get(at(4))?,
        key: row.try_get(at(5))?,
        source: row.try_get(at(6))?,
        subject: row.try_get(at(7))?,
        time: row.try_get(at(8))?,
        payload,
        datacontenttype: row.try_get(at(11))?,
        dataschema: row.try_get(at(12))?,
        schemaversion: row.try_get(at(13))?,
        correlationid: row.try_get(at(14))?,
        causationid: row.try_get(at(15))?,
        traceparent: row.try_get(at(16))?,
        tracestate: row.try_get(at(17))?,
        headers: raw_text(row, at(18))?
            .map(|json| headers_from(&json))
            .unwrap_or_default(),
        origin: row.try_get(at(19))?,
    };
    Ok(Recorded {
        position: Position(row.try_get(at(0))?),
        lane: Lane(row.try_get(at(1))?),
        envelope,
    })
}

fn raw_text(row: &PgRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    let text = value
        .as_str()
        .map_err(|source: BoxDynError| sqlx::Error::ColumnDecode {
            index: column.to_string(),
            source,
        })?;
    Ok(Some(text.to_owned()))
}

/// Headers as JSON text; `None` for none.
pub(crate) fn headers_to(headers: &Headers) -> Option<String> {
    // A map of strings always encodes.
    (!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_default())
}

/// Rows of other programs may hold numbers and the like where strings belong: those are kept as their JSON.
fn headers_from(json: &str) -> Headers {
    if let Ok(headers) = serde_json::from_str(json) {
        return headers;
    }
    let Ok(serde_json::Value::Object(values)) = serde_json::from_str(json) else {
        return Headers::new();
    };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    values.into_iter().map(|(name, value)| (name, text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_others() {
        let cases = [
            (r#"{"a": "b"}"#, vec![("a", "b")]),
            (
                r#"{"a": 1, "b": "c", "d": null}"#,
                vec![("a", "1"), ("b", "c"), ("d", "null")],
            ),
            ("[]", vec![]),
            ("nonsense", vec![]),
        ];
        for (json, expected) in cases {
            let expected: Headers = expected
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
            assert_eq!(headers_from(json), expected, "{json}");
        }
    }
}
