//! Rows to envelopes and back.
//!
//! Rows come from other programs too, and a row that cannot be read must not stop the log: text that is not UTF-8 is
//! repaired or handed on as bytes, and what cannot be is left out.

use eventloom_core::{Envelope, Headers, Lane, LaneCount, OffsetDateTime, Payload, Position, Recorded, Uuid};
use serde_json::value::RawValue;
use sqlx::{Row, sqlite::SqliteRow};
use std::{collections::HashMap, time::Duration};

/// Microseconds since 1970 by the bound parameter, or by the database's clock where it is NULL.
///
/// `unixepoch('subsec')` is younger than many SQLite libraries in use, so the clock is read as in the tables' defaults.
macro_rules! now {
    ($parameter:literal) => {
        concat!(
            "coalesce(",
            $parameter,
            ", CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)"
        )
    };
}
pub(crate) use now;

/// The columns of a message, in the order that [`recorded`] reads; `$source` is where CloudEvents `source` stands.
macro_rules! message_columns {
    ($table:literal, $source:literal) => {
        message_columns!(
            $table,
            $source,
            concat!($table, ".data"),
            concat!($table, ".data_bytes")
        )
    };
    ($table:literal, $source:literal, $data:expr, $data_bytes:expr) => {
        concat!(
            $table,
            ".position, ",
            $table,
            ".id, ",
            $table,
            ".topic, ",
            $table,
            ".type, ",
            $table,
            ".key, ",
            $table,
            ".",
            $source,
            ", ",
            $table,
            ".subject, ",
            $table,
            ".time, ",
            $data,
            ", ",
            $data_bytes,
            ", ",
            $table,
            ".datacontenttype, ",
            $table,
            ".dataschema, ",
            $table,
            ".schemaversion, ",
            $table,
            ".correlationid, ",
            $table,
            ".causationid, ",
            $table,
            ".traceparent, ",
            $table,
            ".tracestate, ",
            $table,
            ".headers, ",
            $table,
            ".origin"
        )
    };
}
pub(crate) use message_columns;

/// How many columns a message has.
pub(crate) const MESSAGE_COLUMNS: usize = 19;

/// Reads a message whose columns begin at `first`; its lane is computed.
pub(crate) fn recorded_of_log(row: &SqliteRow, first: usize, lanes: LaneCount) -> Result<Recorded, sqlx::Error> {
    let mut recorded = recorded(row, first, Lane(0))?;
    let key = recorded.envelope.key.as_deref().filter(|key| !key.is_empty());
    recorded.lane = lanes.lane_of(key.unwrap_or(&recorded.envelope.id));
    Ok(recorded)
}

/// Reads a message whose columns begin at `first`.
pub(crate) fn recorded(row: &SqliteRow, first: usize, lane: Lane) -> Result<Recorded, sqlx::Error> {
    let text = |column: usize| optional_text(row, first + column);
    let envelope = Envelope {
        id: text(1)?.unwrap_or_default(),
        topic: text(2)?.unwrap_or_default(),
        event_type: text(3)?.unwrap_or_default(),
        key: text(4)?,
        source: text(5)?,
        subject: text(6)?,
        time: time_of(row.try_get_unchecked(first + 7)?),
        payload: payload(row, first + 8)?,
        datacontenttype: text(10)?,
        dataschema: text(11)?,
        schemaversion: row.try_get_unchecked(first + 12)?,
        correlationid: text(13)?,
        causationid: text(14)?,
        traceparent: text(15)?,
        tracestate: text(16)?,
        headers: headers_of(text(17)?),
        origin: text(18)?.and_then(|text| Uuid::parse_str(&text).ok()),
    };
    Ok(Recorded {
        position: Position(row.try_get_unchecked(first)?),
        lane,
        envelope,
        omitted: None,
    })
}

/// Text of a column, repaired where it is not UTF-8.
pub(crate) fn optional_text(row: &SqliteRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

/// `data` and, next to it, `data_bytes`.
fn payload(row: &SqliteRow, column: usize) -> Result<Option<Payload>, sqlx::Error> {
    if let Some(data) = row.try_get_unchecked::<Option<&[u8]>, _>(column)? {
        // A handler finds it undecodable, and the dead letter has the bytes.
        return Ok(Some(match std::str::from_utf8(data) {
            Ok(text) => Payload::Json(text.to_owned()),
            Err(_) => Payload::Binary(data.to_vec()),
        }));
    }
    let bytes: Option<&[u8]> = row.try_get_unchecked(column + 1)?;
    Ok(bytes.map(|bytes| Payload::Binary(bytes.to_vec())))
}

/// The headers of an object of strings; other values as their JSON.
fn headers_of(text: Option<String>) -> Headers {
    let Some(text) = text else { return Headers::new() };
    // Raw: a number that no program can hold must not cost the headers beside it.
    let values: HashMap<String, Box<RawValue>> = serde_json::from_str(&text).unwrap_or_default();
    let texts = values.into_iter().map(|(name, value)| {
        let text = serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
        (name, text)
    });
    texts.collect()
}

/// As it stands in the column; NULL for none.
pub(crate) fn headers_json(headers: &Headers) -> Option<String> {
    // A map of strings always encodes.
    if headers.is_empty() {
        None
    } else {
        serde_json::to_string(headers).ok()
    }
}

/// The two payload columns.
pub(crate) fn payload_columns(payload: Option<&Payload>) -> (Option<&str>, Option<&[u8]>) {
    match payload {
        Some(Payload::Json(text)) => (Some(text), None),
        Some(Payload::Binary(bytes)) => (None, Some(bytes)),
        None => (None, None),
    }
}

/// Microseconds since 1970.
pub(crate) fn micros(time: OffsetDateTime) -> i64 {
    // Years -9999 to 9999 fit.
    (time.unix_timestamp_nanos() / 1000) as i64
}

/// The parameter of [`now!`].
pub(crate) fn bound(now: Option<OffsetDateTime>) -> Option<i64> {
    now.map(micros)
}

/// A span in microseconds, at most some 290,000 years.
pub(crate) fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros())
        .unwrap_or(i64::MAX / 4)
        .min(i64::MAX / 4)
}

/// A time of a column. The tables check the range; what is outside of it stands as 1970.
pub(crate) fn time_of(micros: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A JSON array, for `json_each`.
pub(crate) fn array<T: Into<serde_json::Value>>(values: impl IntoIterator<Item = T>) -> String {
    serde_json::Value::Array(values.into_iter().map(Into::into).collect()).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_that_are_no_text_become_text() {
        let headers = headers_of(Some(r#"{"a":"x","b":1,"c":{"d":true}}"#.to_owned()));
        assert_eq!(headers["a"], "x");
        assert_eq!(headers["b"], "1");
        assert_eq!(headers["c"], r#"{"d":true}"#);
        let headers = headers_of(Some(r#"{"a":"x","b":1e400}"#.to_owned()));
        assert_eq!((&*headers["a"], &*headers["b"]), ("x", "1e400"));
        assert!(headers_of(Some("[]".to_owned())).is_empty() && headers_of(None).is_empty());
    }

    #[test]
    fn times_keep_their_microseconds() {
        for micros_ in [0, 1, -1, 1_796_053_391_115_123, -62_135_596_800_000_000] {
            assert_eq!(micros(time_of(micros_)), micros_);
        }
        assert_eq!(time_of(i64::MAX), OffsetDateTime::UNIX_EPOCH);
    }
}
