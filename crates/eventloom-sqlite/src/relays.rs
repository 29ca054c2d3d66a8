//! Both ends of a relay: how far a broker has confirmed what stands in this log, and what came here from other logs.

use crate::{
    Sqlite,
    error::failed,
    rows::{headers_json, micros, optional_text, payload_columns},
};
use eventloom_core::{
    ConsumerName, Envelope, Epoch, Lane, Position, StoreError, StoreErrorKind, Uuid, faults,
    ports::{LaneSent, Mark, Outgoing, RelayStanding, Relays, Source, Untaken},
};
use sqlx::{SqliteConnection, sqlite::SqliteRow};
use std::collections::HashMap;

const BROKER: &str = "SELECT broker FROM eventloom_relays WHERE reader = ?1";
const SENT: &str = "SELECT lane, epoch, confirmed FROM eventloom_cursors WHERE reader = ?1 ORDER BY lane";
/// The one that is there stays.
const REMEMBER: &str = "INSERT INTO eventloom_relays (reader, broker) VALUES (?1, ?2) \
                        ON CONFLICT (reader) DO UPDATE SET broker = broker RETURNING broker";
const MARKS: &str =
    "SELECT lane, epoch, position, id FROM eventloom_relayed WHERE origin = ?1 AND reader = ?2 ORDER BY lane";
/// Those of a later epoch, and those below what was confirmed, stay and are not counted.
const RAISE: &str = "INSERT INTO eventloom_relayed (origin, reader, lane, epoch, position, id) \
                     SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE ?7 <= coalesce((SELECT position FROM eventloom_relayed \
                         WHERE origin = ?1 AND reader = ?2 AND lane = ?3), 0) ON CONFLICT (origin, reader, lane) DO UPDATE \
                     SET epoch = excluded.epoch, position = max(position, excluded.position), \
                         id = iif(excluded.position > position, excluded.id, id) \
                     WHERE epoch <= excluded.epoch";
const IS_LATER: &str =
    "SELECT count(*) FROM eventloom_relayed WHERE origin = ?1 AND reader = ?2 AND lane = ?3 AND epoch > ?4";
const TAKE_IN: &str = "INSERT INTO eventloom_outbox (id, topic, type, key, source, subject, time, data, data_bytes, \
                       datacontenttype, dataschema, schemaversion, correlationid, causationid, traceparent, tracestate, \
                       headers, origin) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";
const RENEW: &str = "UPDATE eventloom_logs SET identity = ?1 WHERE name = 'outbox'";
/// What was confirmed was confirmed to the former identity; brokers know nothing of the new one yet.
const FORGET_CONFIRMED: &str = "UPDATE eventloom_cursors SET confirmed = NULL WHERE confirmed IS NOT NULL";

impl Relays for Sqlite {
    async fn relay_standing(&self, reader: &ConsumerName) -> Result<RelayStanding, StoreError> {
        let looking = failed("looking where a relay stands");
        let mut tx = self.0.pool.begin().await.map_err(looking)?;
        let broker = sqlx::query(BROKER).bind(reader.as_str()).fetch_optional(&mut *tx).await;
        let broker = broker.map_err(looking)?.map(|row| identity(&row)).transpose()?;
        let lanes = sqlx::query_as(SENT).bind(reader.as_str()).fetch_all(&mut *tx).await;
        let lanes: Vec<(i16, i64, Option<i64>)> = lanes.map_err(looking)?;
        tx.rollback().await.map_err(looking)?;
        let lanes = lanes.into_iter().map(|(lane, epoch, confirmed)| LaneSent {
            lane: Lane(lane),
            epoch: Epoch(epoch),
            confirmed: confirmed.map(Position),
        });
        Ok(RelayStanding {
            broker,
            lanes: lanes.collect(),
        })
    }

    async fn remember_broker(&self, reader: &ConsumerName, broker: Uuid) -> Result<Uuid, StoreError> {
        let mut tx = self.begin_write().await?;
        let remember = sqlx::query(REMEMBER).bind(reader.as_str()).bind(broker.to_string());
        let known = remember.fetch_one(&mut *tx).await;
        let known = identity(&known.map_err(failed("remembering the broker of a relay"))?)?;
        tx.commit().await?;
        Ok(known)
    }

    async fn relay_marks(&self, source: &Source) -> Result<Vec<Mark>, StoreError> {
        let looking = failed("looking what a relay has sent");
        let marks = sqlx::query_as(MARKS)
            .bind(source.log.to_string())
            .bind(source.reader.as_str());
        let marks: Vec<(i16, i64, i64, String)> = marks.fetch_all(&self.0.pool).await.map_err(looking)?;
        let mark = |(lane, epoch, position, id)| Mark {
            lane: Lane(lane),
            epoch: Epoch(epoch),
            position: Position(position),
            id,
        };
        Ok(marks.into_iter().map(mark).collect())
    }

    async fn take_in(&self, source: &Source, messages: &[Outgoing]) -> Result<HashMap<Lane, Untaken>, StoreError> {
        let taking = failed("taking in what was relayed");
        let mut untaken = HashMap::new();
        let confirmed = Mark::confirmed(messages);
        let mut tx = self.begin_write().await?;
        for mark in Mark::of(messages) {
            let raise = sqlx::query(RAISE)
                .bind(source.log.to_string())
                .bind(source.reader.as_str())
                .bind(mark.lane.0)
                .bind(mark.epoch.0)
                .bind(mark.position.0)
                .bind(&mark.id)
                .bind(confirmed.get(&mark.lane).copied().unwrap_or_default().0);
            if raise.execute(&mut *tx).await.map_err(taking)?.rows_affected() == 0 {
                let is_later = sqlx::query_scalar(IS_LATER)
                    .bind(source.log.to_string())
                    .bind(source.reader.as_str())
                    .bind(mark.lane.0)
                    .bind(mark.epoch.0);
                let is_later: i64 = is_later.fetch_one(&mut *tx).await.map_err(taking)?;
                let why = if is_later > 0 { Untaken::Fenced } else { Untaken::Lost };
                untaken.insert(mark.lane, why);
            }
        }
        faults::point("relay.before_insert");
        for message in messages
            .iter()
            .filter(|message| !untaken.contains_key(&message.message.lane))
        {
            take_in(&mut tx, source, &message.message.envelope)
                .await
                .map_err(taking)?;
        }
        faults::point("relay.before_delivery");
        tx.commit().await?;
        faults::point("relay.after_delivery");
        Ok(untaken)
    }

    async fn renew_identity(&self) -> Result<Uuid, StoreError> {
        let identity = Uuid::new_v4();
        let mut tx = self.begin_write().await?;
        let renew = sqlx::query(RENEW).bind(identity.to_string()).execute(&mut *tx).await;
        renew.map_err(failed("giving the log a new identity"))?;
        let forget = sqlx::query(FORGET_CONFIRMED).execute(&mut *tx).await;
        forget.map_err(failed("giving the log a new identity"))?;
        tx.commit().await?;
        Ok(identity)
    }
}

async fn take_in(connection: &mut SqliteConnection, source: &Source, envelope: &Envelope) -> Result<(), sqlx::Error> {
    let (data, data_bytes) = payload_columns(envelope.payload.as_ref());
    sqlx::query(TAKE_IN)
        .bind(&envelope.id)
        .bind(&envelope.topic)
        .bind(&envelope.event_type)
        .bind(envelope.key.as_deref())
        .bind(envelope.source.as_deref())
        .bind(envelope.subject.as_deref())
        .bind(micros(envelope.time))
        .bind(data)
        .bind(data_bytes)
        .bind(envelope.datacontenttype.as_deref())
        .bind(envelope.dataschema.as_deref())
        .bind(envelope.schemaversion)
        .bind(envelope.correlationid.as_deref())
        .bind(envelope.causationid.as_deref())
        .bind(envelope.traceparent.as_deref())
        .bind(envelope.tracestate.as_deref())
        .bind(headers_json(&envelope.headers))
        .bind(source.log.to_string())
        .execute(connection)
        .await?;
    Ok(())
}

fn identity(row: &SqliteRow) -> Result<Uuid, StoreError> {
    let text = optional_text(row, 0).map_err(failed("reading an identity"))?;
    Uuid::parse_str(&text.unwrap_or_default())
        .map_err(|error| StoreError::new(StoreErrorKind::Other, "reading an identity", error))
}
