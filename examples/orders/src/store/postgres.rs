//! The shop on Postgres: its tables in the schema `orders_example`, those of Eventloom in `eventloom`.

use super::*;
use anyhow::Context;
use eventloom::{
    ConsumerName,
    ports::Readers,
    postgres::{MigrateOptions, Postgres, migrate},
};
use sqlx::{
    Connection, PgConnection, PgPool, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::io::Write as _;
use std::str::FromStr;

/// The turn is held until the transaction ends, and taking it again costs nothing. 1919251557 is any number, the same for
/// all.
const ADD_TO_REVENUE: &str = "INSERT INTO revenue (month, orders, cents)
    SELECT $1, 1, $2 FROM (SELECT pg_advisory_xact_lock(1919251557)) AS turn
    ON CONFLICT (month) DO UPDATE SET orders = revenue.orders + 1, cents = revenue.cents + excluded.cents";

/// Makes what is missing in the database, and opens it. `fresh` drops first what belongs to the example.
pub(crate) async fn prepare(url: &str, connections: u32, fresh: bool) -> anyhow::Result<Postgres> {
    let pool = pool(url, connections)?;
    let place = orders_ledger::Database::Postgres(url.to_owned()).place();
    let unreachable = || format!("cannot reach Postgres at {place}; see that it runs, and that --store is right");
    // A pool would try for half a minute.
    let first = PgConnection::connect_with(&pool.connect_options()).await;
    first.with_context(unreachable)?.close().await?;
    let no_tables = || format!("cannot make the tables of Eventloom at {place}");
    let migrated = migrate(&pool, MigrateOptions::default())
        .await
        .with_context(no_tables)?;
    if !migrated.applied.is_empty() {
        writeln!(
            std::io::stdout(),
            "Made the tables of Eventloom at {place}, schema eventloom: version {}.",
            migrated.to
        )?;
    }
    let shop = Postgres::builder(pool).open().await?;
    let no_right = || format!("cannot make the schema orders_example at {place}; it needs the right to create schemas");
    if fresh {
        // The run goes first: when this ends half-way, consumers without a run are seen and said.
        sqlx::query("DROP SCHEMA IF EXISTS orders_example CASCADE")
            .execute(shop.pool())
            .await
            .with_context(no_right)?;
        for group in ["totals", "revenue", "mailer", crate::consume::RELAY] {
            shop.drop_reader(&ConsumerName::parse(group)?).await?;
        }
    }
    sqlx::query("CREATE SCHEMA IF NOT EXISTS orders_example")
        .execute(shop.pool())
        .await
        .with_context(no_right)?;
    for table in TABLES {
        sqlx::query(table).execute(shop.pool()).await.with_context(no_right)?;
    }
    // Eighteen rows, rewritten by every order: room on each page for the versions that HOT updates leave behind.
    sqlx::query("ALTER TABLE revenue SET (fillfactor = 10)")
        .execute(shop.pool())
        .await
        .with_context(no_right)?;
    Ok(shop)
}

/// Opens the database.
pub(crate) async fn open(url: &str, connections: u32) -> anyhow::Result<Postgres> {
    Ok(Postgres::builder(pool(url, connections)?).open().await?)
}

fn pool(url: &str, connections: u32) -> anyhow::Result<PgPool> {
    let options = PgConnectOptions::from_str(url)
        .context("--store is no URL as postgres://user@host/database")?
        .application_name("orders")
        .options([("search_path", "orders_example")]);
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options))
}

impl Shop for Postgres {
    type Sale = Transaction<'static, sqlx::Postgres>;

    async fn begin_sale(&self) -> Result<Self::Sale, ShopError> {
        Ok(self.pool().begin().await?)
    }

    async fn commit_sale(sale: Self::Sale) -> Result<(), ShopError> {
        Ok(sale.commit().await?)
    }

    async fn insert_orders(connection: &mut PgConnection, orders: &[OrderPlaced]) -> Result<(), ShopError> {
        insert_orders::<sqlx::Postgres>(orders)
            .build()
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn add_to_total(connection: &mut PgConnection, order: &OrderPlaced) -> Result<(), ShopError> {
        let query = sqlx::query(ADD_TO_TOTAL)
            .bind(&order.customer)
            .bind(order.cents)
            .bind(order.order);
        query.execute(connection).await?;
        Ok(())
    }

    async fn add_to_revenue(connection: &mut PgConnection, order: &OrderPlaced) -> Result<(), ShopError> {
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
        let held = "SELECT consumer, count(*), count(due_at) FROM eventloom.held GROUP BY consumer";
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
