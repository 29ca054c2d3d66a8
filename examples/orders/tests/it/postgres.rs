//! The same on Postgres, where there is one.

#![allow(clippy::unwrap_used)]

use crate::shop::Shop;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// The server, or a line that says what was left out.
fn server(test: &str) -> Option<String> {
    let server = std::env::var("EVENTLOOM_TEST_PG15").ok();
    if server.is_none() {
        println!("left out: {test}: EVENTLOOM_TEST_PG15 is not set");
    }
    server
}

async fn execute(server: &str, sql: String) {
    let mut connection = PgConnection::connect(server).await.unwrap();
    sqlx::query(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn runs_on_postgres_balance_with_and_without_kills() {
    let Some(server) = server("runs_on_postgres_balance_with_and_without_kills") else {
        return;
    };
    let database = format!("orders_{:08x}", fastrand::u32(..));
    execute(&server, format!("CREATE DATABASE {database}")).await;
    let (root, _) = server.rsplit_once('/').unwrap();
    let shop = Shop::on("postgres", format!("{root}/{database}"));
    shop.orders("--limit 800").ended(
        0,
        &[
            "schema eventloom",
            "800 orders of",
            "none sent twice",
            "Nothing is missing",
        ],
    );
    shop.orders("--limit 1500")
        .ended(0, &["Goes on where it was: 800 of 1,500 placed", "Nothing is missing"]);
    shop.orders("--limit 1500 --fresh --kill 4 --batch 20")
        .ended(0, &["1,500 orders of", "Nothing is missing"]);
    let ledger = shop.ledger().await;
    assert!(ledger.is_clean(), "{:#?}", ledger.findings);
    assert_eq!(ledger.groups.map(|group| group.handled), [1500; 3]);
    execute(&server, format!("DROP DATABASE {database} WITH (FORCE)")).await;
}

#[tokio::test]
async fn by_relay_to_postgres_it_balances_too() {
    let Some(server) = server("by_relay_to_postgres_it_balances_too") else {
        return;
    };
    let database = format!("orders_{:08x}", fastrand::u32(..));
    execute(&server, format!("CREATE DATABASE {database}")).await;
    let (root, _) = server.rsplit_once('/').unwrap();
    let shop = Shop::new("to-postgres").with_broker(Some(format!("{root}/{database}")));
    shop.orders("--limit 1500 --kill 4 --batch 20")
        .ended(0, &["Broker ", "1,500 orders of", "Nothing is missing"]);
    let ledger = shop.ledger().await;
    assert!(ledger.is_clean(), "{:#?}", ledger.findings);
    assert_eq!(ledger.groups.map(|group| group.handled), [1500; 3]);
    execute(&server, format!("DROP DATABASE {database} WITH (FORCE)")).await;
}

#[tokio::test]
async fn a_refusal_is_told_in_the_servers_words() {
    let Some(server) = server("a_refusal_is_told_in_the_servers_words") else {
        return;
    };
    let (root, _) = server.rsplit_once('/').unwrap();
    let shop = Shop::on("refused", format!("{root}/orders_that_is_not_there"));
    let ran = shop.orders("--limit 1");
    ran.ended(1, &["database \"orders_that_is_not_there\" does not exist\n"]);
}
