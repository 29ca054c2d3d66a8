//! Both ends of a relay: how far a broker has confirmed what stands in this log, and what came here from other logs.

use crate::{error::while_doing, rows::bind_envelopes, store::Postgres};
use eventloom_core::{
    ConsumerName, Envelope, Epoch, Lane, Position, StoreError, StoreErrorKind, faults,
    ports::{LaneSent, Mark, Outgoing, RelayStanding, Relays, Source, Untaken},
};
use sqlx::{PgConnection, Row, postgres::PgRow, types::Uuid};
use std::collections::{HashMap, HashSet};

const BROKER: &str = "SELECT broker FROM eventloom.relays WHERE reader = $1";
const SENT: &str = "SELECT lane, epoch, confirmed FROM eventloom.cursors WHERE reader = $1 ORDER BY lane";
/// The one that is there stays. Locked by the update that changes nothing, so that the later statement sees it.
const REMEMBER: &str = "
INSERT INTO eventloom.relays (reader, broker) VALUES ($1, $2)
ON CONFLICT (reader) DO UPDATE SET broker = relays.broker RETURNING broker";
const MARKS: &str = "
SELECT lane, epoch, position, id FROM eventloom.relayed WHERE origin = $1 AND reader = $2 ORDER BY lane";
/// Locks the marks in the order of lanes. Those of a later epoch, and those below what was confirmed, stay and are not
/// returned. What was confirmed is older than this statement, so its snapshot has it.
const RAISE: &str = "
INSERT INTO eventloom.relayed AS r (origin, reader, lane, epoch, position, id)
SELECT $1, $2, m.lane, m.epoch, m.position, m.id
  FROM unnest($3::smallint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[]) m (lane, epoch, position, id, confirmed)
  LEFT JOIN eventloom.relayed k ON k.origin = $1 AND k.reader = $2 AND k.lane = m.lane
 WHERE coalesce(k.position, 0) >= m.confirmed
 ORDER BY m.lane
ON CONFLICT (origin, reader, lane) DO UPDATE
   SET epoch = excluded.epoch, position = greatest(r.position, excluded.position),
       id = CASE WHEN excluded.position > r.position THEN excluded.id ELSE r.id END
 WHERE r.epoch <= excluded.epoch
RETURNING lane";
/// Positions are handed out above the sort, so in the order given.
const TAKE_IN: &str = "
INSERT INTO eventloom.outbox (origin, id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype,
    dataschema, schemaversion, correlationid, causationid, traceparent, tracestate, headers)
SELECT $1, e.id::uuid, e.topic, e.type, e.key, e.source, e.subject, e.time, e.data::json, e.data_bytes, e.datacontenttype,
       e.dataschema, e.schemaversion, e.correlationid, e.causationid, e.traceparent, e.tracestate, e.headers::json
  FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::text[],
              $10::bytea[], $11::text[], $12::text[], $13::int[], $14::text[], $15::text[], $16::text[], $17::text[],
              $18::text[])
       WITH ORDINALITY AS e (id, topic, type, key, source, subject, time, data, data_bytes, datacontenttype, dataschema,
                             schemaversion, correlationid, causationid, traceparent, tracestate, headers, ordinal)
 ORDER BY e.ordinal";
const RENEW: &str = "UPDATE eventloom.logs SET identity = gen_random_uuid() WHERE name = 'outbox' RETURNING identity";
/// What was confirmed was confirmed to the former identity; brokers know nothing of the new one yet.
const FORGET_CONFIRMED: &str = "UPDATE eventloom.cursors SET confirmed = NULL WHERE confirmed IS NOT NULL";

/// A value that this database cannot hold is the message's fault, and so is one beyond a limit of it.
fn refused(error: sqlx::Error) -> StoreError {
    let doing = "taking in what was relayed";
    let state = error.as_database_error().and_then(|error| error.code());
    match state.as_deref().and_then(|state| state.get(..2)) {
        Some("22" | "54") => StoreError::new(StoreErrorKind::Constraint, doing, error),
        _ => while_doing(doing)(error),
    }
}

impl Relays for Postgres {
    async fn relay_standing(&self, reader: &ConsumerName) -> Result<RelayStanding, StoreError> {
        let doing = while_doing("looking where a relay stands");
        let mut tx = self.own("looking where a relay stands").await?;
        let broker = self.query(BROKER).bind(reader.as_str()).fetch_optional(&mut *tx).await;
        let broker = broker.map_err(&doing)?.map(|row| row.try_get(0)).transpose();
        let rows = self.query(SENT).bind(reader.as_str()).fetch_all(&mut *tx).await;
        let lane = |row: &PgRow| {
            Ok(LaneSent {
                lane: Lane(row.try_get(0)?),
                epoch: Epoch(row.try_get(1)?),
                confirmed: row.try_get::<Option<i64>, _>(2)?.map(Position),
            })
        };
        let lanes: Result<_, sqlx::Error> = rows.map_err(&doing)?.iter().map(lane).collect();
        Ok(RelayStanding {
            broker: broker.map_err(&doing)?,
            lanes: lanes.map_err(doing)?,
        })
    }

    async fn remember_broker(&self, reader: &ConsumerName, broker: Uuid) -> Result<Uuid, StoreError> {
        let doing = while_doing("remembering the broker of a relay");
        let mut tx = self.own("remembering the broker of a relay").await?;
        let query = self.query(REMEMBER).bind(reader.as_str()).bind(broker);
        let row = query.fetch_one(&mut *tx).await.map_err(&doing)?;
        let known = row.try_get(0).map_err(doing)?;
        tx.commit_own().await?;
        Ok(known)
    }

    async fn relay_marks(&self, source: &Source) -> Result<Vec<Mark>, StoreError> {
        let doing = while_doing("looking what a relay has sent");
        let mut tx = self.own("looking what a relay has sent").await?;
        self.marks_on(&mut tx, source).await.map_err(doing)
    }

    async fn take_in(&self, source: &Source, messages: &[Outgoing]) -> Result<HashMap<Lane, Untaken>, StoreError> {
        let doing = while_doing("taking in what was relayed");
        let marks = Mark::of(messages);
        let mut tx = self.own("taking in what was relayed").await?;
        let query = self.query(RAISE).bind(source.log).bind(source.reader.as_str());
        let query = query
            .bind(marks.iter().map(|mark| mark.lane.0).collect::<Vec<_>>())
            .bind(marks.iter().map(|mark| mark.epoch.0).collect::<Vec<_>>())
            .bind(marks.iter().map(|mark| mark.position.0).collect::<Vec<_>>())
            .bind(marks.iter().map(|mark| mark.id.as_str()).collect::<Vec<_>>())
            .bind(Mark::confirmed(messages).values().map(|to| to.0).collect::<Vec<_>>());
        let raised = query.fetch_all(&mut *tx).await.map_err(&doing)?;
        let raised: Result<HashSet<Lane>, _> = raised.iter().map(|row| row.try_get(0).map(Lane)).collect();
        let raised = raised.map_err(&doing)?;
        let mut untaken = HashMap::new();
        if raised.len() < marks.len() {
            let there = self.marks_on(&mut tx, source).await.map_err(&doing)?;
            let later = |mark: &&Mark| there.iter().any(|it| it.lane == mark.lane && it.epoch > mark.epoch);
            for mark in marks.iter().filter(|mark| !raised.contains(&mark.lane)) {
                let why = if later(&mark) { Untaken::Fenced } else { Untaken::Lost };
                untaken.insert(mark.lane, why);
            }
        }
        let accepted = messages.iter().filter(|message| raised.contains(&message.message.lane));
        let envelopes: Vec<&Envelope> = accepted.map(|message| &message.message.envelope).collect();
        faults::point("relay.before_insert");
        let query = self.query(TAKE_IN).bind(source.log);
        let taken = bind_envelopes(query, &envelopes).execute(&mut *tx).await;
        taken.map_err(refused)?;
        faults::point("relay.before_delivery");
        tx.commit_own().await?;
        faults::point("relay.after_delivery");
        Ok(untaken)
    }

    async fn renew_identity(&self) -> Result<Uuid, StoreError> {
        let doing = while_doing("giving the log a new identity");
        let mut tx = self.own("giving the log a new identity").await?;
        let row = self.query(RENEW).fetch_one(&mut *tx).await.map_err(&doing)?;
        let identity = row.try_get(0).map_err(&doing)?;
        self.query(FORGET_CONFIRMED).execute(&mut *tx).await.map_err(doing)?;
        tx.commit_own().await?;
        Ok(identity)
    }
}

impl Postgres {
    async fn marks_on(&self, connection: &mut PgConnection, source: &Source) -> Result<Vec<Mark>, sqlx::Error> {
        let query = self.query(MARKS).bind(source.log).bind(source.reader.as_str());
        let mark = |row: &PgRow| {
            Ok(Mark {
                lane: Lane(row.try_get(0)?),
                epoch: Epoch(row.try_get(1)?),
                position: Position(row.try_get(2)?),
                id: row.try_get(3)?,
            })
        };
        query.fetch_all(connection).await?.iter().map(mark).collect()
    }
}
