//! The same on Postgres, in a database of its own, where a server is given.

use crate::refusals;
use eventloom::{
    Uuid,
    postgres::{MigrateOptions, Postgres, migrate},
};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

const VARIABLE: &str = "EVENTLOOM_TEST_PG15";

async fn execute(options: &PgConnectOptions, sql: String) {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_named_and_leave_the_transaction_usable() {
    let Ok(url) = std::env::var(VARIABLE) else {
        println!("left out: refusals on postgres: {VARIABLE} is not set");
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
    // In a task of its own, so that the database goes also when it panics.
    let checked = tokio::spawn(async move {
        migrate(&pool, MigrateOptions::default()).await.unwrap();
        let store = Postgres::builder(pool).open().await.unwrap();
        refusals::are_named_and_leave_the_transaction_usable(&store).await;
    })
    .await;
    execute(&admin, format!("DROP DATABASE {name} WITH (FORCE)")).await;
    checked.unwrap();
}
