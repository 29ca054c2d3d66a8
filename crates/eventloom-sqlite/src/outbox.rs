//! Writing the log: one INSERT for all events of a call.

use crate::{
    Sqlite, Tables,
    error::failed,
    rows::{headers_json, micros, now, payload_columns},
};
use eventloom_core::{NewEvent, PublishError, PublishLimits, StoreError, faults, ports::Outbox};
use sqlx::{AssertSqlSafe, SqliteConnection};

const INSERT: &str = "INSERT INTO eventloom_outbox (id, topic, type, key, source, subject, time, data, data_bytes, \
                      datacontenttype, dataschema, schemaversion, correlationid, causationid, traceparent, tracestate, \
                      headers) VALUES ";
const ROW: &str = concat!("(?, ?, ?, ?, ?, ?, ", now!("?"), ", ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
/// SQLite binds 32,766 parameters to a statement, and a row has 17.
const ROWS_MAX: usize = 1900;
/// Statements of up to this many rows stay prepared, one for each number.
const ROWS_PREPARED_MAX: usize = 64;

impl Outbox for Sqlite {
    fn limits(&self) -> &PublishLimits {
        self.publish_limits()
    }

    async fn append(
        _tables: &Tables,
        connection: &mut SqliteConnection,
        events: &[NewEvent],
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        faults::point("publish.before_insert");
        let done = match events.len() {
            0..=ROWS_MAX => insert(connection, events).await,
            _ => insert_in_pieces(connection, events).await,
        };
        done.map_err(failed("publishing"))?;
        faults::point("publish.after_insert");
        Ok(())
    }

    async fn publish_alone(&self, event: NewEvent) -> Result<(), PublishError> {
        self.publish_limits().check(&event)?;
        let commit = |events: Vec<NewEvent>| async move {
            debug_assert!(events.len() <= ROWS_MAX, "one statement is one transaction");
            faults::point("publish.before_commit");
            self.write_alone("publishing", async |connection| insert(connection, &events).await)
                .await?;
            faults::point("publish.after_commit");
            Ok(())
        };
        self.0.shared_commit.0.publish(event, commit).await
    }
}

async fn insert(connection: &mut SqliteConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    let mut sql = String::with_capacity(INSERT.len() + events.len() * (ROW.len() + 2));
    sql += INSERT;
    for row in 0..events.len() {
        sql += if row == 0 { "" } else { ", " };
        sql += ROW;
    }
    let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(events.len() <= ROWS_PREPARED_MAX);
    for event in events {
        let (data, data_bytes) = payload_columns(event.payload());
        query = query
            .bind(event.id().to_string())
            .bind(event.topic().as_str())
            .bind(event.event_type())
            .bind(event.key())
            .bind(event.source())
            .bind(event.subject())
            .bind(event.time().map(micros))
            .bind(data)
            .bind(data_bytes)
            .bind(event.datacontenttype())
            .bind(event.dataschema())
            .bind(event.schemaversion())
            .bind(event.correlationid())
            .bind(event.causationid())
            .bind(event.traceparent())
            .bind(event.tracestate())
            .bind(headers_json(event.headers()));
    }
    query.execute(connection).await?;
    Ok(())
}

/// All or none, as one statement would.
async fn insert_in_pieces(connection: &mut SqliteConnection, events: &[NewEvent]) -> Result<(), sqlx::Error> {
    sqlx::query("SAVEPOINT eventloom_append")
        .execute(&mut *connection)
        .await?;
    let mut done = Ok(());
    for piece in events.chunks(ROWS_MAX) {
        done = insert(connection, piece).await;
        if done.is_err() {
            sqlx::query("ROLLBACK TO eventloom_append")
                .execute(&mut *connection)
                .await?;
            break;
        }
    }
    sqlx::query("RELEASE eventloom_append").execute(connection).await?;
    done
}
