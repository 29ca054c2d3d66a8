//! The same on Postgres, in a database of its own, where a server is given.

use crate::refusals;
use eventloom::{
    ConsumerName, Once, SchemaName, Uuid, once_in,
    ports::Inbox,
    postgres::{MigrateOptions, Postgres, migrate},
};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{future::Future, time::Duration};

const VARIABLE: &str = "EVENTLOOM_TEST_PG15";

async fn execute(options: &PgConnectOptions, sql: String) {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// Runs `check` on a pool of a new database, which goes also when it panics; without a server it is left out.
async fn on_a_database<F: Future<Output = ()> + Send + 'static>(what: &str, check: impl FnOnce(PgPool) -> F) {
    let Ok(url) = std::env::var(VARIABLE) else {
        println!("left out: {what} on postgres: {VARIABLE} is not set");
        return;
    };
    let admin: PgConnectOptions = url.parse().unwrap();
    let name = format!("eventloom_test_{}", Uuid::new_v4().simple());
    execute(&admin, format!("CREATE DATABASE {name}")).await;
    let options = admin.clone().database(&name);
    let pool = PgPoolOptions::new()
        .max_connections(3)
        .connect_with(options)
        .await
        .unwrap();
    let checked = tokio::spawn(check(pool)).await;
    execute(&admin, format!("DROP DATABASE {name} WITH (FORCE)")).await;
    checked.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_named_and_leave_the_transaction_usable() {
    on_a_database("refusals", |pool| async move {
        migrate(&pool, MigrateOptions::default()).await.unwrap();
        let store = Postgres::builder(pool).open().await.unwrap();
        refusals::are_named_and_leave_the_transaction_usable(&store).await;
    })
    .await;
}

/// The default schema is not there at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_goes_by_the_tables_of_its_store() {
    on_a_database("once", |pool| async move {
        let schema = SchemaName::parse("shop").unwrap();
        let options = MigrateOptions::default().schema(schema.clone());
        migrate(&pool, options).await.unwrap();
        let store = Postgres::builder(pool.clone()).schema(schema).pooled().open().await;
        let store = store.unwrap();
        let scope = ConsumerName::parse("http-orders").unwrap();
        for wanted in [Once::Done(1), Once::Before(1)] {
            let mut tx = pool.begin().await.unwrap();
            let work = async |connection: &mut PgConnection| sqlx::query_scalar("SELECT 1").fetch_one(connection).await;
            let done = once_in(&store, &mut tx, &scope, "key-1", "a request", work).await;
            tx.commit().await.unwrap();
            let prepared: i64 =
                sqlx::query_scalar("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%shop.%'")
                    .persistent(false)
                    .fetch_one(&pool)
                    .await
                    .unwrap();
            assert_eq!(
                (done.unwrap(), prepared),
                (wanted, 0),
                "and no statement stays prepared"
            );
        }
        assert_eq!(store.forget_once(Duration::ZERO, 10, None).await.unwrap(), 1);
    })
    .await;
}
