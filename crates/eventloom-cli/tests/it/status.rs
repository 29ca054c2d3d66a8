//! `status` on a log whose readers lag, hold, and are held back.

use crate::{
    program::on,
    service,
    stores::{TestStore, block_on, on_each, on_postgres},
};
use serde_json::Value;
use sqlx::{Connection, PgConnection};

fn order(store: &TestStore, key: &str) {
    let data = format!("{{\"order\": \"{key}\"}}");
    on(
        store,
        &["publish", "orders", "order.placed", "--key", key, "--data", &data, "-q"],
    )
    .exits(0);
}

fn json(store: &TestStore) -> Value {
    serde_json::from_str(&on(store, &["status", "--json"]).exits(0).stdout).unwrap()
}

#[test]
fn a_reader_that_is_well_and_one_that_is_not() {
    on_each("a_reader_that_is_well_and_one_that_is_not", |store| {
        on(store, &["migrate"]).exits(0);
        on(store, &["status"])
            .exits(0)
            .prints(&["0 held back", "no consumer is registered yet"]);
        for key in ["XK", "XK", "later", "a", "b"] {
            order(store, key);
        }
        let stands = |reader: &eventloom::ports::ReaderStatus| {
            let owned = reader.lanes.iter().filter(|lane| lane.owner.is_some()).count();
            reader.lag_messages == 0 && reader.dead == 1 && reader.waiting == 2 && owned == 64
        };
        service::run(store, &["XK", "later"], stands, || {
            let answer = on(store, &["status"]).exits(0);
            answer
                .prints(&["invoicing    consumer   lag 0   oldest -   64/64 lanes   host-a 64"])
                .prints(&["held keys 2   waiting 2   dead 1   first dead letter ", " ago"])
                .prints(&["last error: ", "tax table has no row for 'XK'"])
                .prints(&["next: eventloom dlq list --consumer invoicing"]);
            on(store, &["status", "-q"]).exits(3).prints(&["invoicing"]);
            let status = json(store);
            let reader = &status["readers"][0];
            assert_eq!(
                (&reader["dead"], &reader["waiting"]),
                (&1.into(), &2.into()),
                "{status}"
            );
            assert_eq!(reader["lanes"].as_array().unwrap().len(), 64);
            assert_eq!(reader["owners"].as_object().unwrap().len(), 1);
        });
        on(store, &["status"])
            .exits(0)
            .prints(&["0/64 lanes   ! nobody runs it"]);
        order(store, "c");
        on(store, &["status"])
            .exits(0)
            .prints(&["lag 1 ", "next: start an instance of invoicing"]);
    });
}

#[test]
fn what_waits_after_a_failure_says_why() {
    on_each("what_waits_after_a_failure_says_why", |store| {
        on(store, &["migrate"]).exits(0);
        ["later", "later", "a"].iter().for_each(|key| order(store, key));
        let stands = |reader: &eventloom::ports::ReaderStatus| reader.lag_messages == 0 && reader.waiting == 2;
        service::run(store, &["later"], stands, || {
            on(store, &["status"]).exits(0).prints(&[
                "last error: ",
                "tax table has no row for 'later'",
                "next: eventloom dlq list --consumer invoicing --state all",
            ]);
        });
    });
}

#[test]
fn a_reader_that_is_well_needs_nobody() {
    on_each("a_reader_that_is_well_needs_nobody", |store| {
        on(store, &["migrate"]).exits(0);
        order(store, "a");
        service::run(store, &[], |reader| reader.lag_messages == 0, || ());
        let answer = on(store, &["status", "-q"]).exits(0);
        assert!(answer.stdout.is_empty());
        let answer = on(store, &["status"]).exits(0);
        assert!(!answer.stdout.contains("next: "), "{}", answer.stdout);
    });
}

#[test]
fn whoever_holds_the_horizon_back_is_named() {
    on_postgres("whoever_holds_the_horizon_back_is_named", |store| {
        on(store, &["migrate"]).exits(0);
        order(store, "a");
        let (answer, status, pid) = block_on(async {
            let mut writer = PgConnection::connect(&format!("{}?application_name=batch-job", store.url()))
                .await
                .unwrap();
            let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
                .fetch_one(&mut writer)
                .await
                .unwrap();
            let mut tx = writer.begin().await.unwrap();
            let insert = "INSERT INTO eventloom.outbox (topic, type) VALUES ('orders', 'order.placed')";
            sqlx::query(insert).execute(&mut *tx).await.unwrap();
            order(store, "b");
            (on(store, &["status"]).exits(0), json(store), pid)
        });
        let answer = answer.prints(&[&format!("held back by pid {pid} (batch-job), open for ")]);
        let answer = answer.prints(&["INSERT INTO eventloom.outbox", "2 held back"]);
        assert_eq!(status["log"]["held_by"]["pid"], pid, "{status}");
        assert_eq!(status["log"]["held_back"], 2, "{}", answer.stdout);
    });
}
