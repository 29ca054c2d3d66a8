//! The shop on SQLite: one file.

use super::*;
use anyhow::Context;
use eventloom::sqlite::{MigrateOptions, Sqlite, SqliteTransaction, migrate};
use sqlx::SqliteConnection;
use std::io::Write as _;
use std::path::Path;

/// A file has one writer at a time, so here turns come by themselves.
const ADD_TO_REVENUE: &str = "INSERT INTO revenue (month, orders, cents) VALUES ($1, 1, $2)
    ON CONFLICT (month) DO UPDATE SET orders = revenue.orders + 1, cents = revenue.cents + excluded.cents";

/// Makes what is missing in the file, and opens it.
pub(crate) async fn prepare(path: &Path) -> anyhow::Result<Sqlite> {
    let migrated = migrate(path, MigrateOptions::default()).await?;
    if migrated.from < migrated.to {
        writeln!(
            std::io::stdout(),
            "Made the tables of Eventloom in {}: version {}.",
            path.display(),
            migrated.to
        )?;
    }
    let shop = open(path).await?;
    for table in TABLES {
        sqlx::query(table).execute(shop.pool()).await.with_context(|| {
            format!(
                "cannot make the tables of the shop in {}; give another folder with --data",
                path.display()
            )
        })?;
    }
    Ok(shop)
}

/// Deletes the file, and what SQLite keeps beside it.
pub(crate) fn remove(path: &Path) -> anyhow::Result<()> {
    for beside in ["", "-wal", "-shm"] {
        let file = format!("{}{beside}", path.display());
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot delete {file}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens the file.
pub(crate) async fn open(path: &Path) -> anyhow::Result<Sqlite> {
    Ok(Sqlite::connect(path).await?)
}

impl Shop for Sqlite {
    type Sale = SqliteTransaction;

    async fn begin_sale(&self) -> Result<SqliteTransaction, ShopError> {
        // In line with the other writers of the file, and BEGIN IMMEDIATE.
        Ok(self.begin_write().await?)
    }

    async fn commit_sale(sale: SqliteTransaction) -> Result<(), ShopError> {
        Ok(sale.commit().await?)
    }

    async fn insert_orders(connection: &mut SqliteConnection, orders: &[OrderPlaced]) -> Result<(), ShopError> {
        insert_orders::<sqlx::Sqlite>(orders)
            .build()
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn add_to_total(connection: &mut SqliteConnection, order: &OrderPlaced) -> Result<(), ShopError> {
        let query = sqlx::query(ADD_TO_TOTAL)
            .bind(&order.customer)
            .bind(order.cents)
            .bind(order.order);
        query.execute(connection).await?;
        Ok(())
    }

    async fn add_to_revenue(connection: &mut SqliteConnection, order: &OrderPlaced) -> Result<(), ShopError> {
        sqlx::query(ADD_TO_REVENUE)
            .bind(order.month())
            .bind(order.cents)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn placed(&self) -> Result<Vec<i64>, ShopError> {
        Ok(sqlx::query_scalar(PLACED).fetch_all(self.pool()).await?)
    }

    async fn standing(&self) -> Result<Standing, ShopError> {
        let held = "SELECT consumer, count(*), count(due_at) FROM eventloom_held GROUP BY consumer";
        let held = sqlx::query_as(held).fetch_all(self.pool()).await?;
        Ok(standing(sqlx::query_as(STANDING).fetch_one(self.pool()).await?, held))
    }

    async fn run(&self) -> Result<Option<RunRow>, ShopError> {
        Ok(sqlx::query_as(RUN).fetch_optional(self.pool()).await?.map(run_row))
    }

    async fn save_run(&self, run: &RunRow) -> Result<(), ShopError> {
        let query = sqlx::query(SAVE_RUN).bind(&run.input_name).bind(&run.input_sha256);
        query
            .bind(run.purchases)
            .bind(&run.mail_file)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}
