//! The business side of the runs: tables without any constraint that would hide a doubled effect, and what handlers and
//! placers do with them. The texts are the same for both stores.

use crate::{
    site::{Site, StoreKind},
    workload::{ORDERS, Placed},
};
use anyhow::{Context, Result};
use eventloom::{
    LaneCount, NewEvent, SchemaName, ports,
    postgres::{self, Postgres},
    publish_rows,
    sqlite::{self, Sqlite},
};
use sqlx::{Connection, PgConnection, SqliteConnection, postgres::PgPoolOptions};
use std::{future::Future, time::Duration};

const TABLES: &str = "
    CREATE TABLE placed (key TEXT NOT NULL, seq BIGINT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (key, seq));
    CREATE TABLE effects ({ord}, consumer TEXT NOT NULL, key TEXT NOT NULL, seq BIGINT NOT NULL, prev BIGINT NOT NULL,
                          id TEXT NOT NULL, pid BIGINT NOT NULL);
    CREATE TABLE progress (consumer TEXT NOT NULL, key TEXT NOT NULL, last_seq BIGINT NOT NULL, PRIMARY KEY (consumer, key));
    CREATE TABLE shared (slot BIGINT PRIMARY KEY, touched BIGINT NOT NULL);
    INSERT INTO shared VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0);";
const ORD_POSTGRES: &str = "ord BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY";
const ORD_SQLITE: &str = "ord INTEGER PRIMARY KEY AUTOINCREMENT";

const PLACE: &str = "INSERT INTO placed (key, seq, id, kind) VALUES ($1, $2, $3, $4)";
const LAST_PLACED: &str = "SELECT coalesce(max(seq), 0) FROM placed WHERE key = $1";
const LAST_SEEN: &str = "SELECT coalesce(max(last_seq), 0) FROM progress WHERE consumer = $1 AND key = $2";
const EFFECT: &str = "INSERT INTO effects (consumer, key, seq, prev, id, pid) VALUES ($1, $2, $3, $4, $5, $6)";
const SEEN: &str = "INSERT INTO progress (consumer, key, last_seq) VALUES ($1, $2, $3)
                    ON CONFLICT (consumer, key) DO UPDATE SET last_seq = excluded.last_seq";
const TOUCH: &str = "UPDATE shared SET touched = touched + 1 WHERE slot = $1";

/// An effect of a handler in its transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect<'a> {
    pub(crate) consumer: &'a str,
    pub(crate) key: &'a str,
    pub(crate) seq: i64,
    pub(crate) id: &'a str,
}

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) connections: u32,
    /// As behind a pooler: the backend of a former owner is not ended.
    pub(crate) pooled: bool,
    /// On Postgres, another schema than the usual one.
    pub(crate) schema: Option<&'static str>,
}

/// A store with the business tables beside it.
pub(crate) trait Business: ports::Backend {
    /// Opens it; one attempt.
    fn open(site: &Site, opening: Opening) -> impl Future<Output = Result<Self>> + Send;

    /// Places orders: business rows and events in one transaction. Their kinds are stored with them.
    fn place_orders(&self, orders: &[Placed]) -> impl Future<Output = Result<()>> + Send;

    /// The last committed sequence number of a key.
    fn last_placed(&self, key: &str) -> impl Future<Output = Result<i64>> + Send;

    /// Counts on a row that many keys share.
    fn touch(connection: &mut Self::Connection, slot: i64) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Adds an effect, with what was the last one of its key before.
    fn effect(
        connection: &mut Self::Connection,
        effect: Effect<'_>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// The bodies are the same text for two connection types that share no trait which carries executor bounds simply.
macro_rules! with_business {
    ($connection:ty) => {
        async fn last_placed(&self, key: &str) -> Result<i64> {
            Ok(sqlx::query_scalar(LAST_PLACED)
                .bind(key)
                .fetch_one(self.pool())
                .await?)
        }

        async fn touch(connection: &mut $connection, slot: i64) -> Result<(), sqlx::Error> {
            sqlx::query(TOUCH).bind(slot).execute(connection).await.map(drop)
        }

        async fn effect(connection: &mut $connection, effect: Effect<'_>) -> Result<(), sqlx::Error> {
            let Effect {
                consumer,
                key,
                seq,
                id,
            } = effect;
            let prev: i64 = sqlx::query_scalar(LAST_SEEN)
                .bind(consumer)
                .bind(key)
                .fetch_one(&mut *connection)
                .await?;
            let insert = sqlx::query(EFFECT)
                .bind(consumer)
                .bind(key)
                .bind(seq)
                .bind(prev)
                .bind(id);
            insert
                .bind(i64::from(std::process::id()))
                .execute(&mut *connection)
                .await?;
            sqlx::query(SEEN)
                .bind(consumer)
                .bind(key)
                .bind(seq)
                .execute(connection)
                .await
                .map(drop)
        }
    };
}

/// Inserts the business rows of orders and returns the events to publish after them.
macro_rules! insert_orders {
    ($connection:expr, $orders:expr) => {{
        let mut rows = Vec::new();
        for order in $orders {
            let row = NewEvent::of(ORDERS, order)?;
            let kind = serde_json::to_string(&order.kind)?;
            let insert = sqlx::query(PLACE)
                .bind(&order.key)
                .bind(order.seq)
                .bind(row.id().to_string())
                .bind(kind);
            insert.execute($connection).await?;
            rows.push(row);
        }
        rows
    }};
}

impl Business for Postgres {
    async fn open(site: &Site, opening: Opening) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(opening.connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy(&site.url)?;
        let builder = Postgres::builder(pool);
        let builder = if opening.pooled { builder.pooled() } else { builder };
        let builder = match opening.schema {
            Some(schema) => builder.schema(SchemaName::parse(schema)?),
            None => builder,
        };
        Ok(builder.open().await?)
    }

    async fn place_orders(&self, orders: &[Placed]) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        let rows = insert_orders!(&mut *tx, orders);
        publish_rows(&mut *tx, &rows).await?;
        tx.commit().await?;
        Ok(())
    }

    with_business!(PgConnection);
}

impl Business for Sqlite {
    async fn open(site: &Site, opening: Opening) -> Result<Self> {
        Ok(Sqlite::builder(&site.url)
            .connections_max(opening.connections)
            .open()
            .await?)
    }

    async fn place_orders(&self, orders: &[Placed]) -> Result<()> {
        let mut tx = self.begin_write().await?;
        let rows = insert_orders!(&mut *tx, orders);
        publish_rows(&mut *tx, &rows).await?;
        tx.commit().await?;
        Ok(())
    }

    with_business!(SqliteConnection);
}

/// Makes Eventloom's tables and the business tables. Safe to repeat.
pub(crate) async fn migrate(site: &Site, lanes: u16) -> Result<()> {
    let lanes = LaneCount::new(lanes).context("a number of lanes")?;
    match site.store()? {
        StoreKind::Postgres => {
            let pool = PgPoolOptions::new().max_connections(2).connect(&site.url).await?;
            let options = postgres::MigrateOptions::default().lanes(lanes);
            postgres::migrate(&pool, options).await?;
            let there: bool = sqlx::query_scalar("SELECT to_regclass('placed') IS NOT NULL")
                .fetch_one(&pool)
                .await?;
            if !there {
                let sql = TABLES.replace("{ord}", ORD_POSTGRES);
                let mut tx = pool.begin().await?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await?;
                tx.commit().await?;
            }
            pool.close().await;
        }
        StoreKind::Sqlite => {
            let options = sqlite::MigrateOptions::default().lanes(lanes);
            sqlite::migrate(&site.url, options).await?;
            let mut connection = SqliteConnection::connect(&site.url).await?;
            let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'shared'";
            if sqlx::query_scalar::<_, i64>(there).fetch_one(&mut connection).await? == 0 {
                let sql = TABLES.replace("{ord}", ORD_SQLITE);
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await?;
                tx.commit().await?;
            }
            connection.close().await?;
        }
    }
    Ok(())
}
