//! Rows of the log and of the held messages, as envelopes.

use crate::{prune::micros, store::Tables};
use eventloom_core::{
    ConsumerName, Envelope, Headers, Lane, OffsetDateTime, OwnerId, Payload, Position, Recorded,
    ports::{HeldState, NewHeld},
};
use serde_json::value::RawValue;
use sqlx::{
    PgConnection, Row, ValueRef,
    error::BoxDynError,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use std::collections::HashMap;

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
        omitted: None,
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

/// One statement for all, in the order of ids: whoever else inserts some of them locks in the same order. Of two rows of one
/// id the first is held, at its place in the queue.
const PUT_HELD: &str = "
INSERT INTO eventloom.held (consumer, held_by, held_at, position, lane, id, topic, type, key, event_source, subject, time,
    data, data_bytes, datacontenttype, dataschema, schemaversion, correlationid, causationid, traceparent, tracestate,
    headers, origin, queued, state, attempts, due_at, error, fingerprint, first_failed_at, last_failed_at)
SELECT $1, $2, n.now, m.position, m.lane, m.id, m.topic, m.type, m.key, m.event_source, m.subject, m.time,
       CASE WHEN m.omitted THEN (SELECT o.data::text FROM eventloom.outbox o WHERE o.position = m.position) ELSE m.data END,
       CASE WHEN m.omitted THEN (SELECT o.data_bytes FROM eventloom.outbox o WHERE o.position = m.position)
            ELSE m.data_bytes END, m.datacontenttype, m.dataschema, m.schemaversion, m.correlationid, m.causationid,
       m.traceparent, m.tracestate, m.headers, m.origin, m.queued, m.state, m.attempts,
       n.now + m.due_in * interval '1 microsecond', m.error, m.fingerprint,
       CASE WHEN m.error IS NOT NULL THEN n.now END, CASE WHEN m.error IS NOT NULL THEN n.now END
  FROM (SELECT coalesce($3, clock_timestamp()) AS now) n,
       unnest($4::bigint[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[],
              $12::timestamptz[], $13::text[], $14::bytea[], $15::text[], $16::text[], $17::int[], $18::text[],
              $19::text[], $20::text[], $21::text[], $22::text[], $23::uuid[], $24::boolean[], $25::text[], $26::int[],
              $27::bigint[], $28::text[], $29::text[], $30::boolean[])
       m (position, lane, id, topic, type, key, event_source, subject, time, data, data_bytes, datacontenttype,
          dataschema, schemaversion, correlationid, causationid, traceparent, tracestate, headers, origin, queued, state,
          attempts, due_in, error, fingerprint, omitted)
 ORDER BY m.id COLLATE \"C\", m.position
ON CONFLICT (consumer, id) DO NOTHING";

/// Inserts messages into `held`; those that are there already stay as they are. Returns how many were new.
pub(crate) async fn put_held(
    tables: &Tables,
    connection: &mut PgConnection,
    consumer: &ConsumerName,
    owner: &OwnerId,
    messages: &[NewHeld<'_>],
    now: Option<OffsetDateTime>,
) -> Result<u64, sqlx::Error> {
    fn all<'a, T>(messages: &'a [NewHeld<'a>], of: impl Fn(&'a NewHeld<'a>) -> T) -> Vec<T> {
        messages.iter().map(of).collect()
    }
    let due_in = |held: &NewHeld<'_>| held.due_in.filter(|_| held.state == HeldState::Waiting).map(micros);
    let envelopes: Vec<&Envelope> = messages.iter().map(|held| &held.message.envelope).collect();
    let put = tables
        .query(PUT_HELD)
        .bind(consumer.as_str())
        .bind(owner.as_str())
        .bind(now)
        .bind(all(messages, |held| held.message.position.0))
        .bind(all(messages, |held| held.message.lane.0));
    let put = bind_envelopes(put, &envelopes)
        .bind(all(messages, |held| held.message.envelope.origin))
        .bind(all(messages, |held| held.queued))
        .bind(all(messages, |held| held.state.as_str()))
        .bind(all(messages, |held| i32::try_from(held.attempts).unwrap_or(i32::MAX)))
        .bind(all(messages, due_in))
        .bind(all(messages, |held| held.failure.map(|failure| failure.error.as_str())))
        .bind(all(messages, |held| {
            held.failure.map(|failure| failure.fingerprint.as_str())
        }))
        // Copied inside the database: what was too large to be read is too large to be sent back.
        .bind(all(messages, |held| held.message.omitted.is_some()))
        .execute(connection)
        .await?;
    Ok(put.rows_affected())
}

/// Binds seventeen arrays: id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype, dataschema,
/// schemaversion, correlationid, causationid, traceparent, tracestate, headers.
pub(crate) fn bind_envelopes<'q>(
    query: Query<'q, sqlx::Postgres, PgArguments>,
    envelopes: &[&'q Envelope],
) -> Query<'q, sqlx::Postgres, PgArguments> {
    let texts = |of: fn(&Envelope) -> Option<&String>| -> Vec<Option<&'q str>> {
        envelopes
            .iter()
            .map(|envelope| of(envelope).map(String::as_str))
            .collect()
    };
    let json = |envelope: &&'q Envelope| match &envelope.payload {
        Some(Payload::Json(json)) => Some(json.as_str()),
        _ => None,
    };
    let bytes = |envelope: &&'q Envelope| match &envelope.payload {
        Some(Payload::Binary(bytes)) => Some(bytes.as_slice()),
        _ => None,
    };
    query
        .bind(texts(|envelope| Some(&envelope.id)))
        .bind(texts(|envelope| Some(&envelope.topic)))
        .bind(texts(|envelope| Some(&envelope.event_type)))
        .bind(texts(|envelope| envelope.key.as_ref()))
        .bind(texts(|envelope| envelope.source.as_ref()))
        .bind(texts(|envelope| envelope.subject.as_ref()))
        .bind(envelopes.iter().map(|envelope| envelope.time).collect::<Vec<_>>())
        .bind(envelopes.iter().map(json).collect::<Vec<_>>())
        .bind(envelopes.iter().map(bytes).collect::<Vec<_>>())
        .bind(texts(|envelope| envelope.datacontenttype.as_ref()))
        .bind(texts(|envelope| envelope.dataschema.as_ref()))
        .bind(
            envelopes
                .iter()
                .map(|envelope| envelope.schemaversion)
                .collect::<Vec<_>>(),
        )
        .bind(texts(|envelope| envelope.correlationid.as_ref()))
        .bind(texts(|envelope| envelope.causationid.as_ref()))
        .bind(texts(|envelope| envelope.traceparent.as_ref()))
        .bind(texts(|envelope| envelope.tracestate.as_ref()))
        .bind(
            envelopes
                .iter()
                .map(|envelope| headers_to(&envelope.headers))
                .collect::<Vec<_>>(),
        )
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
    // Raw: a number that no program can hold must not cost the headers beside it.
    let values: HashMap<String, Box<RawValue>> = serde_json::from_str(json).unwrap_or_default();
    let texts = values.into_iter().map(|(name, value)| {
        let text = serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
        (name, text)
    });
    texts.collect()
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
            (r#"{"a": 1e400, "b": "c"}"#, vec![("a", "1e400"), ("b", "c")]),
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
