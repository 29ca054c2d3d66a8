//! Runs on SQLite: whole, gone on with, stopped, killed.

#![allow(clippy::unwrap_used)]

use crate::shop::{Ran, Shop, wait_until};
use std::process::Command;

const BALANCED: &str = "Nothing is missing, nothing happened twice, every customer's orders came in order.";

#[tokio::test]
async fn a_run_balances_and_mails_each_order_once() {
    let shop = Shop::new("whole");
    shop.orders("--limit 1500")
        .ended(0, &["Made the tables", "1,500 orders of", "none sent twice", BALANCED]);
    let ledger = shop.ledger().await;
    assert_eq!((ledger.mail_raw, ledger.mail_distinct), (1500, 1500));
    assert_eq!(ledger.groups.map(|group| group.handled), [1500; 3]);
    assert_eq!([ledger.totals_cents, ledger.revenue_cents], [ledger.input_cents; 2]);
}

#[tokio::test]
async fn started_again_it_goes_on() {
    let shop = Shop::new("again");
    shop.orders("--limit 400").ended(0, &[BALANCED]);
    shop.orders("--limit 900").ended(
        0,
        &["Goes on where it was: 400 of 900 placed", "900 orders of", BALANCED],
    );
    shop.orders("--limit 900").ended(
        0,
        &["All of it was placed and handled before", "900 orders of", BALANCED],
    );
    shop.orders("--limit 300")
        .ended(1, &["--limit 300 is less than the 900 orders that are placed already"]);
    shop.orders("--limit 300 --fresh")
        .ended(0, &["300 orders of", BALANCED]);
    assert_eq!(shop.ledger().await.groups.map(|group| group.handled), [300; 3]);
}

#[tokio::test]
async fn another_input_is_taken_and_not_mixed_up() {
    let shop = Shop::new("input");
    let input = std::env::temp_dir().join(format!("orders-input-{:08x}.txt", fastrand::u32(..)));
    std::fs::write(
        &input,
        "ada 20240101 1 10.00\nbob 20240102 2 5.50\nada 20240201 1 0.25\n",
    )
    .unwrap();
    let asked = format!("--input {}", input.display());
    shop.orders(&asked)
        .ended(0, &["3 orders of 2 customers", "$15.75", "2024-02", BALANCED]);
    shop.orders("").ended(1, &["is another input", "--fresh"]);
    std::fs::write(&input, "ada 20240101 1 10.00\nbob 2024-01-02 2 5.50\n").unwrap();
    shop.orders(&asked).ended(1, &["line 2 is no purchase"]);
    std::fs::remove_file(&input).unwrap();
}

#[tokio::test]
async fn sigterm_drains_and_the_next_start_goes_on() {
    for kill in ["", " --kill 0"] {
        let shop = Shop::new("stopped");
        let arguments = format!("--batch 5{kill}");
        let child = shop.begin(&arguments);
        wait_until("orders to be placed", async || shop.placed().await >= 200).await;
        let sent = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        let ran = Ran::of(child.wait_with_output().unwrap());
        ran.ended(143, &["Stopped; ", " are left, start it again to go on."]);
        let placed = shop.placed().await;
        let limit = placed + 500;
        shop.orders(&format!("--limit {limit}"))
            .ended(0, &["Goes on where it was", "none sent twice", BALANCED]);
    }
}

#[tokio::test]
async fn a_closed_pipe_ends_it_quietly() {
    let shop = Shop::new("pipe");
    let mut child = shop.begin("--limit 200");
    drop(child.stdout.take());
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.ended(0, &[]);
    assert!(
        !ran.text.contains("panicked") && !ran.text.contains("pipe"),
        "{}",
        ran.text
    );
}

#[tokio::test]
async fn sigkill_of_everything_loses_nothing() {
    let shop = Shop::new("killed");
    let mut child = shop.begin("--batch 5");
    wait_until("orders to be placed", async || shop.placed().await >= 200).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let limit = shop.placed().await + 500;
    shop.orders(&format!("--limit {limit}"))
        .ended(0, &["Goes on where it was", BALANCED]);
}

#[tokio::test]
async fn processes_killed_on_the_way_change_nothing() {
    let shop = Shop::new("kill");
    let ran = shop.orders("--limit 3000 --batch 20 --kill 6");
    ran.ended(0, &["3,000 orders of", "processes with SIGKILL", BALANCED]);
    // A run that ends between two looks may leave a kill or two undone.
    let killed = ran.text.lines().find_map(|line| line.trim().strip_prefix("killed"));
    let killed: u32 = killed.unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!((4..=6).contains(&killed), "{}", ran.text);
    let ledger = shop.ledger().await;
    assert!(ledger.is_clean(), "{:#?}", ledger.findings);
    assert_eq!(ledger.groups.map(|group| group.handled), [3000; 3]);
}

#[tokio::test]
async fn one_run_at_a_time_works_in_a_folder() {
    let shop = Shop::new("twice");
    let mut child = shop.begin("--batch 1");
    wait_until("orders to be placed", async || shop.placed().await >= 1).await;
    shop.orders("").ended(1, &["another run works in", "--data"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn by_relay_to_another_database_it_balances_too() {
    let shop = Shop::new("relay").with_broker(None);
    shop.orders("--limit 800").ended(
        0,
        &["Broker ", "market.db", "800 orders of", "none sent twice", BALANCED],
    );
    shop.orders("--limit 2500 --batch 20 --kill 8")
        .ended(0, &["Goes on where it was: 800 of 2,500 placed", "relay", BALANCED]);
    let ledger = shop.ledger().await;
    assert!(ledger.is_clean(), "{:#?}", ledger.findings);
    assert_eq!(ledger.groups.map(|group| group.handled), [2500; 3]);
}

#[tokio::test]
async fn a_database_is_its_own_broker_without_a_relay() {
    let shop = Shop::new("own");
    shop.orders("--limit 10").ended(0, &[BALANCED]);
    let own = format!("--limit 300 --broker {}", shop.file("orders.db").display());
    shop.orders(&own).ended(
        0,
        &["Broker the same database, so nothing needs to be relayed", BALANCED],
    );
}
