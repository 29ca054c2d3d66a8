//! Writing the log: in the caller's transaction, or alone with whoever else publishes at the moment.

use crate::{
    error::while_doing,
    rows::headers_to,
    store::{Postgres, Tables},
};
use eventloom_core::{NewEvent, Payload, PublishError, PublishLimits, StoreError, faults, ports::Outbox};
use sqlx::{PgConnection, types::Uuid};

/// One event with nothing but what every event has: the usual case. Eleven parameters less are a few microseconds.
const APPEND_PLAIN: &str = "
INSERT INTO eventloom.outbox (id, topic, type, key, data, schemaversion) VALUES ($1, $2, $3, $4, $5::json, $6)";

/// One event with all of its attributes.
const APPEND_ONE: &str = "
INSERT INTO eventloom.outbox (id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype, dataschema,
    schemaversion, correlationid, causationid, traceparent, tracestate, headers)
VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, now()), $8::json, $9, $10, $11, $12, $13, $14, $15, $16, $17::json)";

/// Several. Positions are handed out above the sort, so in the order given.
const APPEND_ALL: &str = "
INSERT INTO eventloom.outbox (id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype, dataschema,
    schemaversion, correlationid, causationid, traceparent, tracestate, headers)
SELECT e.id, e.topic, e.type, e.key, e.source, e.subject, coalesce(e.time, now()), e.data::json, e.data_bytes,
       e.datacontenttype, e.dataschema, e.schemaversion, e.correlationid, e.causationid, e.traceparent, e.tracestate,
       e.headers::json
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::text[],
              $9::bytea[], $10::text[], $11::text[], $12::int[], $13::text[], $14::text[], $15::text[], $16::text[],
              $17::text[])
       WITH ORDINALITY AS e (id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype, dataschema,
                             schemaversion, correlationid, causationid, traceparent, tracestate, headers, ordinal)
 ORDER BY e.ordinal";

impl Outbox for Postgres {
    fn limits(&self) -> &PublishLimits {
        self.publish_limits()
    }

    async fn append(tables: &Tables, connection: &mut PgConnection, events: &[NewEvent]) -> Result<(), StoreError> {
        faults::point("publish.before_insert");
        match events {
            [] => {}
            [event] if is_plain(event) => append_plain(tables, connection, event)
                .await
                .map_err(while_doing("publishing"))?,
            [event] => append_one(tables, connection, event)
                .await
                .map_err(while_doing("publishing"))?,
            events => append_all(tables, connection, events)
                .await
                .map_err(while_doing("publishing"))?,
        }
        faults::point("publish.after_insert");
        Ok(())
    }

    async fn publish_alone(&self, event: NewEvent) -> Result<(), PublishError> {
        self.limits().check(&event)?;
        self.shared_commit()
            .publish(event, |events| async move {
                let mut tx = self.own("publishing").await?;
                Self::append(eventloom_core::ports::Store::tables(self), &mut tx, &events).await?;
                faults::point("publish.before_commit");
                tx.commit_own().await?;
                faults::point("publish.after_commit");
                Ok(())
            })
            .await
    }
}

/// Whether every attribute that a writer may leave out is left out.
fn is_plain(event: &NewEvent) -> bool {
    let texts = [
        event.source(),
        event.subject(),
        event.datacontenttype(),
        event.dataschema(),
        event.correlationid(),
        event.causationid(),
        event.traceparent(),
        event.tracestate(),
    ];
    event.time().is_none() && event.headers().is_empty() && bytes_of(event).is_none() && texts == [None; 8]
}

async fn append_plain(tables: &Tables, connection: &mut PgConnection, event: &NewEvent) -> Result<(), sqlx::Error> {
    tables
        .query(APPEND_PLAIN)
        .bind(event.id())
        .bind(event.topic().as_str())
        .bind(event.event_type())
        .bind(event.key())
        .bind(json_of(event))
        .bind(event.schemaversion())
        .execute(connection)
        .await?;
    Ok(())
}

async fn append_one(tables: &Tables, connection: &mut PgConnection, event: &NewEvent) -> Result<(), sqlx::Error> {
    tables
        .query(APPEND_ONE)
        .bind(event.id())
        .bind(event.topic().as_str())
        .bind(event.event_type())
        .bind(event.key())
        .bind(event.source())
        .bind(event.subject())
        .bind(event.time())
        .bind(json_of(event))
        .bind(bytes_of(event))
        .bind(event.datacontenttype())
        .bind(event.dataschema())
        .bind(event.schemaversion())
        .bind(event.correlationid())
        .bind(event.causationid())
        .bind(event.traceparent())
        .bind(event.tracestate())
        .bind(headers_to(event.headers()))
        .execute(connection)
        .await?;
    Ok(())
}

async fn append_all(tables: &Tables, connection: &mut PgConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    let texts = |of: fn(&NewEvent) -> Option<&str>| events.iter().map(of).collect::<Vec<_>>();
    tables
        .query(APPEND_ALL)
        .bind(events.iter().map(NewEvent::id).collect::<Vec<Uuid>>())
        .bind(events.iter().map(|event| event.topic().as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(NewEvent::event_type).collect::<Vec<_>>())
        .bind(texts(NewEvent::key))
        .bind(texts(NewEvent::source))
        .bind(texts(NewEvent::subject))
        .bind(events.iter().map(NewEvent::time).collect::<Vec<_>>())
        .bind(texts(json_of))
        .bind(events.iter().map(bytes_of).collect::<Vec<_>>())
        .bind(texts(NewEvent::datacontenttype))
        .bind(texts(NewEvent::dataschema))
        .bind(events.iter().map(NewEvent::schemaversion).collect::<Vec<_>>())
        .bind(texts(NewEvent::correlationid))
        .bind(texts(NewEvent::causationid))
        .bind(texts(NewEvent::traceparent))
        .bind(texts(NewEvent::tracestate))
        .bind(
            events
                .iter()
                .map(|event| headers_to(event.headers()))
                .collect::<Vec<_>>(),
        )
        .execute(connection)
        .await?;
    Ok(())
}

fn json_of(event: &NewEvent) -> Option<&str> {
    match event.payload() {
        Some(Payload::Json(json)) => Some(json),
        _ => None,
    }
}

fn bytes_of(event: &NewEvent) -> Option<&[u8]> {
    match event.payload() {
        Some(Payload::Binary(bytes)) => Some(bytes),
        _ => None,
    }
}
