//! The same on Postgres, in a database of its own, where a server is given.

use crate::{database::with_database, refusals};
use eventloom::{
    ConsumerName, Once, SchemaName, once_in,
    ports::Inbox,
    postgres::{MigrateOptions, Postgres, migrate},
};
use sqlx::PgConnection;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_named_and_leave_the_transaction_usable() {
    with_database("refusals on postgres", async |database| {
        refusals::are_named_and_leave_the_transaction_usable(&database.store(3).await).await;
    })
    .await;
}

/// The default schema is not there at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_goes_by_the_tables_of_its_store() {
    with_database("once on postgres", async |database| {
        let pool = database.pool(3).await;
        sqlx::raw_sql("DROP SCHEMA eventloom CASCADE")
            .execute(&pool)
            .await
            .unwrap();
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
