//! A database for a measurement, dropped when it is over.

use crate::wire::Wire;
use anyhow::Result;
use eventloom::postgres::{MigrateOptions, Postgres, migrate};
use sqlx::{
    AssertSqlSafe, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::str::FromStr;

/// A database with Eventloom's tables in it.
pub(crate) struct Scratch {
    admin: PgPool,
    name: String,
    wire: Option<Wire>,
    pub(crate) pool: PgPool,
    pub(crate) store: Postgres,
}

impl Scratch {
    /// Makes it, with room for this many connections.
    pub(crate) async fn new(url: &str, connections: u32) -> Result<Self> {
        Scratch::made(url, connections, None).await
    }

    /// As [`Scratch::new`], with a counter of round trips between it and its clients. Slower: not to be timed.
    pub(crate) async fn counted(url: &str, connections: u32) -> Result<Self> {
        let server = PgConnectOptions::from_str(url)?;
        let wire = Wire::before(server.get_host().to_owned(), server.get_port()).await?;
        Scratch::made(url, connections, Some(wire)).await
    }

    async fn made(url: &str, connections: u32, wire: Option<Wire>) -> Result<Self> {
        let admin = PgPoolOptions::new().max_connections(1).connect(url).await?;
        let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&admin)
            .await?;
        let mut options = PgConnectOptions::from_str(url)?.database(&name);
        if let Some(wire) = &wire {
            options = options.host("127.0.0.1").port(wire.port);
        }
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(connections)
            .connect_with(options)
            .await?;
        migrate(&pool, MigrateOptions::default()).await?;
        let store = Postgres::builder(pool.clone()).open().await?;
        Ok(Scratch {
            admin,
            name,
            wire,
            pool,
            store,
        })
    }

    /// How others reach it: through the counter, where there is one.
    pub(crate) fn url(&self, server: &str) -> Result<String> {
        let options = PgConnectOptions::from_str(server)?;
        let (host, port) = match &self.wire {
            Some(wire) => ("127.0.0.1".to_owned(), wire.port),
            None => (options.get_host().to_owned(), options.get_port()),
        };
        Ok(format!(
            "postgres://{}@{host}:{port}/{}",
            options.get_username(),
            self.name
        ))
    }

    /// A connection that is not counted.
    pub(crate) async fn direct(&self, server: &str) -> Result<PgPool> {
        let options = PgConnectOptions::from_str(server)?.database(&self.name);
        Ok(PgPoolOptions::new().max_connections(1).connect_with(options).await?)
    }

    /// Runs statements of a set-up.
    pub(crate) async fn run(&self, statements: &'static [&'static str]) -> Result<()> {
        for statement in statements {
            sqlx::query(*statement).execute(&self.pool).await?;
        }
        Ok(())
    }

    /// Writes dirty pages now, so that no lane pays for the one before it.
    pub(crate) async fn settle(&self) -> Result<()> {
        sqlx::query("CHECKPOINT").execute(&self.pool).await?;
        Ok(())
    }

    pub(crate) fn counts_round_trips(&self) -> bool {
        self.wire.is_some()
    }

    /// Questions that were asked so far.
    pub(crate) fn round_trips(&self) -> f64 {
        self.wire.as_ref().map_or(0.0, |wire| wire.round_trips() as f64)
    }

    /// Drops it.
    pub(crate) async fn drop(self) -> Result<()> {
        self.pool.close().await;
        sqlx::query(AssertSqlSafe(format!("DROP DATABASE {} WITH (FORCE)", self.name)))
            .execute(&self.admin)
            .await?;
        Ok(())
    }
}
