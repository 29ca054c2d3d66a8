//! What the database says, by plain SQL.

use serde_json::Value;
use sqlx::{
    AssertSqlSafe, Connection, Executor, FromRow, IntoArguments, PgConnection, Postgres, Sqlite, SqliteConnection,
    postgres::PgConnectOptions, sqlite::SqliteConnectOptions,
};
use std::{path::PathBuf, str::FromStr};

/// Where the tables are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file of SQLite.
    Sqlite(PathBuf),
    /// A `postgres://` URL.
    Postgres(String),
}

/// What was to be done: the one row of the table `run`.
#[derive(Debug, Clone)]
pub struct RunRow {
    /// Name of the input, for people.
    pub input_name: String,
    /// SHA-256 of its text.
    pub input_sha256: String,
    /// How many of its purchases are to be placed, from the first on.
    pub purchases: i64,
    /// Name of the mailer's file in the data folder.
    pub mail_file: String,
}

/// An order that was placed.
#[derive(Debug, Clone)]
pub struct OrderRow {
    /// Its number.
    pub number: i64,
    /// Who bought.
    pub customer: String,
    /// What it cost.
    pub cents: i64,
}

/// What the group `totals` knows of a customer.
#[derive(Debug, Clone)]
pub struct TotalRow {
    /// Who.
    pub customer: String,
    /// Orders added.
    pub orders: i64,
    /// Their sum.
    pub cents: i64,
    /// Their running digest.
    pub digest: i64,
}

/// What the group `revenue` knows of a month.
#[derive(Debug, Clone)]
pub struct MonthRow {
    /// `1997-01`.
    pub month: String,
    /// Orders added.
    pub orders: i64,
    /// Their sum.
    pub cents: i64,
}

/// A message that a group has set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldOrder {
    /// Which group.
    pub group: String,
    /// Its order; `None` when its payload does not tell.
    pub order: Option<i64>,
    /// Why it failed last.
    pub error: Option<String>,
}

/// Everything that is read from the database.
#[derive(Debug, Clone)]
pub struct Books {
    /// What was to be done.
    pub run: RunRow,
    /// Orders, by number.
    pub orders: Vec<OrderRow>,
    /// Customer totals.
    pub totals: Vec<TotalRow>,
    /// Monthly revenue, by month.
    pub revenue: Vec<MonthRow>,
    /// Messages set aside.
    pub held: Vec<HeldOrder>,
}

/// The tables could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BooksError {
    /// No connection.
    #[error(
        "cannot open {place}: {}; place orders first with `cargo run --release -p orders`",
        in_the_servers_words(why)
    )]
    Open {
        /// File, or host and database.
        place: String,
        /// What the driver says.
        why: sqlx::Error,
    },
    /// The tables are missing, or of another make.
    #[error(
        "cannot read the tables in {place}: {}; place orders first with `cargo run --release -p orders`",
        in_the_servers_words(why)
    )]
    Read {
        /// File, or host and database.
        place: String,
        /// What the driver says.
        why: sqlx::Error,
    },
    /// There are tables, but nothing was begun.
    #[error("no run was begun in {place}; place orders first with `cargo run --release -p orders`")]
    NoRun {
        /// File, or host and database.
        place: String,
    },
}

/// The driver adds where in the server's source an error was raised, which helps nobody here.
fn in_the_servers_words(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        error => error.to_string(),
    }
}

impl Books {
    /// Reads all tables: the run and its orders from one database, what the groups made of them from `effects`.
    pub async fn read(database: &Database, effects: &Database) -> Result<Self, BooksError> {
        let shop = Books::of(database).await?;
        if database == effects {
            return Ok(shop);
        }
        let effects = Books::of(effects).await?;
        Ok(Books {
            run: shop.run,
            orders: shop.orders,
            ..effects
        })
    }

    async fn of(database: &Database) -> Result<Self, BooksError> {
        let place = database.place();
        let open = |why| BooksError::Open {
            place: place.clone(),
            why,
        };
        let books = match database {
            Database::Sqlite(path) => {
                let options = SqliteConnectOptions::new().filename(path);
                let mut connection = SqliteConnection::connect_with(&options).await.map_err(open)?;
                collect::<Sqlite>(&mut connection, "", "eventloom_held").await
            }
            Database::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.map_err(open)?;
                collect::<Postgres>(&mut connection, "orders_example.", "eventloom.held").await
            }
        };
        match books {
            Ok(Some(books)) => Ok(books),
            Ok(None) => Err(BooksError::NoRun { place }),
            Err(why) => Err(BooksError::Read { place, why }),
        }
    }
}

impl Database {
    /// File, or host and database; never a password.
    pub fn place(&self) -> String {
        match self {
            Database::Sqlite(path) => path.display().to_string(),
            Database::Postgres(url) => match PgConnectOptions::from_str(url) {
                Ok(options) => {
                    let database = options.get_database().unwrap_or_default();
                    format!("{}:{}/{database}", options.get_host(), options.get_port())
                }
                Err(_) => "Postgres".to_owned(),
            },
        }
    }
}

async fn collect<DB: sqlx::Database>(
    connection: &mut DB::Connection,
    schema: &str,
    held: &str,
) -> Result<Option<Books>, sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'r> (String, String, i64, String): FromRow<'r, DB::Row>,
    for<'r> (i64, String, i64): FromRow<'r, DB::Row>,
    for<'r> (String, i64, i64, i64): FromRow<'r, DB::Row>,
    for<'r> (String, i64, i64): FromRow<'r, DB::Row>,
    for<'r> (String, Option<String>, Option<String>): FromRow<'r, DB::Row>,
{
    // Both parts of the texts are constants of this file.
    let table = |columns: &str, table: &str| AssertSqlSafe(format!("SELECT {columns} FROM {schema}{table}"));
    let run = table("input_name, input_sha256, purchases, mail_file", "run");
    let Some(run) = sqlx::query_as(run).fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let (input_name, input_sha256, purchases, mail_file) = run;
    let run = RunRow {
        input_name,
        input_sha256,
        purchases,
        mail_file,
    };

    let orders = table("number, customer, cents", "orders ORDER BY number");
    let orders: Vec<(i64, String, i64)> = sqlx::query_as(orders).fetch_all(&mut *connection).await?;
    let orders = orders
        .into_iter()
        .map(|(number, customer, cents)| OrderRow {
            number,
            customer,
            cents,
        })
        .collect();

    let totals = table("customer, orders, cents, digest", "totals ORDER BY customer");
    let totals: Vec<(String, i64, i64, i64)> = sqlx::query_as(totals).fetch_all(&mut *connection).await?;
    let totals = totals
        .into_iter()
        .map(|(customer, orders, cents, digest)| TotalRow {
            customer,
            orders,
            cents,
            digest,
        })
        .collect();

    let revenue = table("month, orders, cents", "revenue ORDER BY month");
    let revenue: Vec<(String, i64, i64)> = sqlx::query_as(revenue).fetch_all(&mut *connection).await?;
    let revenue = revenue
        .into_iter()
        .map(|(month, orders, cents)| MonthRow { month, orders, cents })
        .collect();

    let held = AssertSqlSafe(format!(
        "SELECT consumer, data, error FROM {held} WHERE consumer IN ('totals', 'revenue', 'mailer') ORDER BY position"
    ));
    let held: Vec<(String, Option<String>, Option<String>)> = sqlx::query_as(held).fetch_all(connection).await?;
    let held = held
        .into_iter()
        .map(|(group, data, error)| HeldOrder {
            group,
            order: order_of(data),
            error,
        })
        .collect();
    Ok(Some(Books {
        run,
        orders,
        totals,
        revenue,
        held,
    }))
}

fn order_of(data: Option<String>) -> Option<i64> {
    serde_json::from_str::<Value>(&data?).ok()?.get("order")?.as_i64()
}
