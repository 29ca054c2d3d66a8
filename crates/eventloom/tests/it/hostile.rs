//! What a handler does to its connection costs its own message, and nobody else's.

use crate::{database::with_database, folder::until};
use eventloom::{
    Backoff, Consumer, Eventloom, LetterFilter,
    ports::{DeadLetters, HeldState},
    postgres::prelude::*,
    publish_all,
};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgConnection};
use std::time::Duration;

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize)]
struct Placed {
    statement: String,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Failure(#[from] sqlx::Error);
impl Classify for Failure {}

async fn book(placed: Placed, cx: &mut Context<'_>) -> Result<(), Failure> {
    let connection: &mut PgConnection = cx.connection();
    sqlx::query("INSERT INTO booked (statement) VALUES ($1)")
        .bind(&placed.statement)
        .execute(&mut *connection)
        .await?;
    sqlx::raw_sql(AssertSqlSafe(placed.statement))
        .execute(connection)
        .await?;
    Ok(())
}

fn orders(statement: &str, count: usize) -> Vec<Placed> {
    let order = || Placed {
        statement: statement.to_owned(),
    };
    std::iter::repeat_with(order).take(count).collect()
}

/// One message with this statement among others, and others after it: they are handled, and it is handled or dead.
async fn costs_nobody_else(statement: &'static str) {
    with_database(statement, async |database| {
        let pool = database.pool(1).await;
        sqlx::raw_sql("CREATE TABLE booked (statement text)")
            .execute(&pool)
            .await
            .unwrap();
        let store = database.store(4).await;
        let wait = Duration::from_millis(10);
        let consumer = Consumer::new("books").topic(ORDERS).handle(book).attempts(2);
        let consumer = consumer.backoff(Backoff::default().first(wait).most(wait));
        let service = Eventloom::new(store.clone()).consumer(consumer).start().await.unwrap();
        let mut innocent = 0;
        for round in [
            [orders("SELECT 1", 20), orders(statement, 1), orders("SELECT 1", 20)],
            [orders("SELECT 1", 20), Vec::new(), Vec::new()],
        ] {
            innocent += round[0].len() + round[2].len();
            let round: Vec<Placed> = round.into_iter().flatten().collect();
            let mut tx = pool.begin().await.unwrap();
            publish_all(&mut *tx, ORDERS, &round).await.unwrap();
            tx.commit().await.unwrap();
            until("every other message, and an end of this one", async || {
                let booked = "SELECT count(*) FILTER (WHERE statement = 'SELECT 1'), count(*) FROM booked";
                let (others, all): (i64, i64) = sqlx::query_as(booked).fetch_one(&pool).await.unwrap();
                // A connection may still lack its statements when it comes to ask.
                let letters = store.letters(&LetterFilter::default()).await.unwrap_or_default();
                let dead = letters.iter().filter(|letter| letter.state == HeldState::Dead).count() as i64;
                (others == innocent as i64 && all + dead == others + 1).then_some(())
            })
            .await;
        }
        service.shutdown(Duration::from_secs(20)).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_are_no_longer_prepared() {
    costs_nobody_else("DEALLOCATE ALL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_rights() {
    costs_nobody_else("SET ROLE pg_monitor").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_may_only_read() {
    costs_nobody_else("SET TRANSACTION READ ONLY").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_were_reset() {
    costs_nobody_else("RESET ALL").await;
}
