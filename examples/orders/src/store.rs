//! What this service asks of its database: a trait of its own, so that placing and handling are written once.
//!
//! The statements are the same text on both stores: on Postgres the tables are in the schema `orders_example`, which is on
//! the search path of the service's own connections. No constraint here hides a double: `totals` and `revenue` add up
//! whatever reaches them.

pub(crate) mod postgres;
pub(crate) mod sqlite;

use crate::event::OrderPlaced;
use eventloom::{
    Classify, PublishError, StoreError, StoreErrorKind,
    ports::{Backend, ConnectionOf, Store},
};
use sqlx::{Database, Encode, QueryBuilder, Type};
use std::{future::Future, ops::DerefMut};

/// The service's database failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ShopError {
    #[error("a statement failed")]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Transient, unless the engine finds out by itself that it is not.
impl Classify for ShopError {}

impl ShopError {
    /// What kind of trouble with the store it is, when it is that.
    pub(crate) fn kind<S: Store>(&self) -> Option<StoreErrorKind> {
        match self {
            ShopError::Store(error) | ShopError::Publish(PublishError::Store(error)) => Some(error.kind()),
            ShopError::Sql(error) => S::kind_of(error),
            ShopError::Publish(_) => None,
        }
    }
}

/// What a run was begun with: the one row of `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    pub(crate) input_name: String,
    pub(crate) input_sha256: String,
    pub(crate) purchases: i64,
    pub(crate) mail_file: String,
}

/// How far everything is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) placed: u64,
    pub(crate) totals: u64,
    pub(crate) revenue: u64,
    pub(crate) held: [Held; 3],
}

/// What a group has set aside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) messages: u64,
    /// Of them, those that will be tried again by themselves.
    pub(crate) due: u64,
}

/// A database with the tables of this service and of Eventloom in it.
pub(crate) trait Shop: Backend + Store<Connection: ConnectionOf<Self>> {
    /// A transaction in which orders are placed.
    type Sale: DerefMut<Target = Self::Connection> + Send;

    fn begin_sale(&self) -> impl Future<Output = Result<Self::Sale, ShopError>> + Send;
    fn commit_sale(sale: Self::Sale) -> impl Future<Output = Result<(), ShopError>> + Send;

    fn insert_orders(
        connection: &mut Self::Connection,
        orders: &[OrderPlaced],
    ) -> impl Future<Output = Result<(), ShopError>> + Send;
    fn add_to_total(
        connection: &mut Self::Connection,
        order: &OrderPlaced,
    ) -> impl Future<Output = Result<(), ShopError>> + Send;
    /// Transactions that do this take turns: each updates rows of several months, in the order of its messages, and two
    /// at once would deadlock.
    fn add_to_revenue(
        connection: &mut Self::Connection,
        order: &OrderPlaced,
    ) -> impl Future<Output = Result<(), ShopError>> + Send;

    /// Numbers of all orders that were placed.
    fn placed(&self) -> impl Future<Output = Result<Vec<i64>, ShopError>> + Send;
    fn standing(&self) -> impl Future<Output = Result<Standing, ShopError>> + Send;
    fn run(&self) -> impl Future<Output = Result<Option<RunRow>, ShopError>> + Send;
    fn save_run(&self, run: &RunRow) -> impl Future<Output = Result<(), ShopError>> + Send;
}

const TABLES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS orders (
        number bigint PRIMARY KEY, customer text NOT NULL, day text NOT NULL, discs bigint NOT NULL, cents bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS totals (
        customer text PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL, digest bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS revenue (month text PRIMARY KEY, orders bigint NOT NULL, cents bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS run (
        one int PRIMARY KEY CHECK (one = 1), input_name text NOT NULL, input_sha256 text NOT NULL,
        purchases bigint NOT NULL, mail_file text NOT NULL)",
];

/// The digest is `(last * 1000003 + order) mod (2^31 - 1)`: it shows loss, doubling and order, and fits into `+=`.
const ADD_TO_TOTAL: &str = "INSERT INTO totals (customer, orders, cents, digest) VALUES ($1, 1, $2, $3 % 2147483647)
    ON CONFLICT (customer) DO UPDATE SET
        orders = totals.orders + 1,
        cents  = totals.cents + excluded.cents,
        digest = (totals.digest * 1000003 + excluded.digest) % 2147483647";

const PLACED: &str = "SELECT number FROM orders ORDER BY number";

const STANDING: &str = "SELECT (SELECT count(*) FROM orders),
    (SELECT CAST(coalesce(sum(orders), 0) AS bigint) FROM totals),
    (SELECT CAST(coalesce(sum(orders), 0) AS bigint) FROM revenue)";

const RUN: &str = "SELECT input_name, input_sha256, purchases, mail_file FROM run";

const SAVE_RUN: &str =
    "INSERT INTO run (one, input_name, input_sha256, purchases, mail_file) VALUES (1, $1, $2, $3, $4)
    ON CONFLICT (one) DO UPDATE SET purchases = excluded.purchases";

/// One statement for a batch of orders. The primary key refuses an order that is there already, and with it its event.
fn insert_orders<DB: Database>(orders: &[OrderPlaced]) -> QueryBuilder<DB>
where
    DB::Arguments: Default,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'q> String: Encode<'q, DB> + Type<DB>,
{
    let mut query = QueryBuilder::new("INSERT INTO orders (number, customer, day, discs, cents) ");
    query.push_values(orders, |mut row, order| {
        row.push_bind(order.order)
            .push_bind(order.customer.clone())
            .push_bind(order.day.clone())
            .push_bind(order.discs)
            .push_bind(order.cents);
    });
    query
}

fn standing((placed, totals, revenue): (i64, i64, i64), held: Vec<(String, i64, i64)>) -> Standing {
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let of = |name: &str| {
        let row = held.iter().find(|(consumer, ..)| consumer == name);
        row.map_or(Held::default(), |(_, messages, due)| Held {
            messages: number(*messages),
            due: number(*due),
        })
    };
    Standing {
        placed: number(placed),
        totals: number(totals),
        revenue: number(revenue),
        held: [of("totals"), of("revenue"), of("mailer")],
    }
}

type RunColumns = (String, String, i64, String);

fn run_row((input_name, input_sha256, purchases, mail_file): RunColumns) -> RunRow {
    RunRow {
        input_name,
        input_sha256,
        purchases,
        mail_file,
    }
}
