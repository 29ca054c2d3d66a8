//! The oracle's own look at a database: plain SQL, no code of Eventloom, every column as text.

use crate::site::{Site, StoreKind};
use anyhow::Result;
use sqlx::{
    AssertSqlSafe, PgPool, Row, SqlitePool,
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use std::{str::FromStr, time::Duration};

/// A database, seen from outside of all faults.
#[derive(Debug, Clone)]
pub(crate) enum Database {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Database {
    /// Connects when it is first asked.
    pub(crate) fn of(site: &Site) -> Result<Self> {
        Ok(match site.store()? {
            StoreKind::Postgres => Database::Postgres(
                PgPoolOptions::new()
                    .max_connections(3)
                    .acquire_timeout(Duration::from_secs(2))
                    .connect_lazy(&site.url)?,
            ),
            StoreKind::Sqlite => {
                let options = SqliteConnectOptions::from_str(&site.url)?.busy_timeout(Duration::from_secs(20));
                Database::Sqlite(SqlitePoolOptions::new().max_connections(2).connect_lazy_with(options))
            }
        })
    }

    /// Rows of a query whose columns are all text; NULL becomes the empty text. `eventloom.x` is spelled as the store does.
    pub(crate) async fn rows(&self, sql: &str) -> Result<Vec<Vec<String>>> {
        match self {
            Database::Postgres(pool) => {
                let rows = sqlx::query(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_all(pool)
                    .await?;
                rows.iter()
                    .map(|row| {
                        (0..row.len())
                            .map(|column| Ok(row.try_get::<Option<String>, _>(column)?.unwrap_or_default()))
                            .collect()
                    })
                    .collect()
            }
            Database::Sqlite(pool) => {
                let sql = sqlite_spelling(sql);
                let rows = sqlx::query(AssertSqlSafe(sql))
                    .persistent(false)
                    .fetch_all(pool)
                    .await?;
                rows.iter()
                    .map(|row| {
                        (0..row.len())
                            .map(|column| Ok(row.try_get::<Option<String>, _>(column)?.unwrap_or_default()))
                            .collect()
                    })
                    .collect()
            }
        }
    }

    /// The first column of the first row, as a number; 0 when there is none.
    pub(crate) async fn number(&self, sql: &str) -> Result<i64> {
        let rows = self.rows(sql).await?;
        Ok(rows
            .first()
            .and_then(|row| row.first())
            .and_then(|text| text.parse().ok())
            .unwrap_or_default())
    }

    /// Runs a statement, spelled as [`Database::rows`] are.
    pub(crate) async fn execute(&self, sql: &str) -> Result<()> {
        match self {
            Database::Postgres(pool) => {
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await?;
            }
            Database::Sqlite(pool) => {
                sqlx::raw_sql(AssertSqlSafe(sqlite_spelling(sql))).execute(pool).await?;
            }
        }
        Ok(())
    }

    /// Keeps everybody else from writing to a table (on SQLite, to the file) until what is returned is dropped.
    pub(crate) async fn lock(&self, table: &str) -> Result<Locked> {
        Ok(match self {
            Database::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                let lock = format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
                sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *tx).await?;
                Locked::Postgres(tx)
            }
            Database::Sqlite(pool) => Locked::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    pub(crate) async fn close(&self) {
        match self {
            Database::Postgres(pool) => pool.close().await,
            Database::Sqlite(pool) => pool.close().await,
        }
    }
}

/// A lock, until it is dropped.
#[allow(dead_code)] // held, not read
pub(crate) enum Locked {
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
}

fn sqlite_spelling(sql: &str) -> String {
    sql.replace("eventloom.", "eventloom_")
        .replace("relayed.", "eventloom_")
}
