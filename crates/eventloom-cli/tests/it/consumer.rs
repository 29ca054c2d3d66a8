//! `consumer list|pause|resume|reset|drop` on a consumer that a service has registered.

use crate::{
    program::on,
    service,
    stores::{TestStore, on_each},
};

fn registered(store: &TestStore) {
    on(store, &["migrate"]).exits(0);
    for key in ["a", "b", "c"] {
        let data = format!("{{\"order\": \"{key}\"}}");
        on(
            store,
            &["publish", "orders", "order.placed", "--key", key, "--data", &data],
        )
        .exits(0);
    }
    service::run(store, &[], |reader| reader.lag_messages == 0, || ());
}

fn lag(store: &TestStore) -> i64 {
    let list = on(store, &["consumer", "list", "--json"]).exits(0).stdout;
    let reader: serde_json::Value = serde_json::from_str(&list).unwrap();
    reader["lag_messages"].as_i64().unwrap()
}

#[test]
fn they_are_listed() {
    on_each("they_are_listed", |store| {
        on(store, &["migrate"]).exits(0);
        on(store, &["consumer", "list"])
            .exits(0)
            .says(&["no consumer is registered"]);
        registered(store);
        on(store, &["consumer", "list"])
            .exits(0)
            .prints(&["CONSUMER", "invoicing", "active", "0/64 lanes"]);
        assert_eq!(on(store, &["consumer", "list", "-q"]).exits(0).stdout, "invoicing\n");
        for verb in ["pause", "resume", "drop"] {
            let answer = on(store, &["consumer", verb, "invoicin"]).exits(1);
            answer.says(&["no consumer invoicin is registered", "did you mean invoicing?"]);
        }
        on(store, &["consumer", "pause", "Not A Name"]).exits(2);
    });
}

#[test]
fn they_are_paused_and_resumed() {
    on_each("they_are_paused_and_resumed", |store| {
        registered(store);
        on(store, &["consumer", "pause", "invoicing"])
            .exits(0)
            .says(&["invoicing is paused"]);
        on(store, &["consumer", "pause", "invoicing"])
            .exits(0)
            .says(&["paused already"]);
        on(store, &["consumer", "list"]).exits(0).prints(&["paused"]);
        on(
            store,
            &["publish", "orders", "order.placed", "--data", "{\"order\": \"d\"}"],
        )
        .exits(0);
        let next = "next: eventloom consumer resume invoicing";
        on(store, &["status"]).exits(0).prints(&["! paused", "lag 1 ", next]);
        on(store, &["status", "-q"]).exits(0);
        service::run(
            store,
            &[],
            |reader| reader.lanes.iter().all(|lane| lane.owner.is_some()),
            || {
                assert_eq!(lag(store), 1, "a paused consumer is given nothing");
                on(store, &["consumer", "resume", "invoicing"])
                    .exits(0)
                    .says(&["goes on, 1 message behind"]);
                crate::wait::until("delivery after resume", || (lag(store) == 0).then_some(()));
            },
        );
        on(store, &["consumer", "resume", "invoicing"])
            .exits(0)
            .says(&["was not paused"]);
    });
}

#[test]
fn they_are_put_elsewhere() {
    on_each("they_are_put_elsewhere", |store| {
        registered(store);
        on(store, &["consumer", "reset", "invoicing"])
            .exits(2)
            .says(&["--earliest"]);
        let reset = |arguments: &[&str]| on(store, &[&["consumer", "reset", "invoicing"], arguments].concat());
        reset(&["--earliest"])
            .exits(2)
            .says(&["no terminal to ask on", "--yes"]);
        reset(&["--earliest", "--dry-run"])
            .exits(0)
            .says(&["dry run: would put invoicing", "nothing was changed"]);
        assert_eq!(lag(store), 0);
        reset(&["--earliest", "--yes"])
            .exits(0)
            .says(&["goes on after position 0"]);
        assert_eq!(lag(store), 3);
        reset(&["--latest", "-y", "-q"]).exits(0);
        assert_eq!(lag(store), 0);
        reset(&["--since", "1h", "--forget-handled", "--yes"]).exits(0);
        assert_eq!(lag(store), 3);
        reset(&["--to", "latest", "--yes"]).exits(0);
        assert_eq!(lag(store), 0);
        for place in ["earliest", "0", "1h"] {
            reset(&["--to", place, "--yes"]).exits(0);
            assert_eq!(lag(store), 3, "{place}");
        }
        reset(&["--to", "soon"])
            .exits(2)
            .says(&["no place of a log", "earliest"]);
        reset(&["--to", "0", "--latest", "--yes"]).exits(2);
        reset(&["--after", "1000000", "--yes"])
            .exits(1)
            .says(&["above the head of the log", "--latest"]);
        reset(&["--after", "0", "--latest", "--yes"]).exits(2);
        store.execute("UPDATE {t}logs SET pruned_to = (SELECT min(position) FROM {t}outbox)");
        reset(&["--after", "0", "--yes"])
            .exits(1)
            .says(&["were pruned", "next: "]);
        for place in [&["--earliest"][..], &["--since", "1h"]] {
            reset(&[place, &["--dry-run"]].concat()).exits(0).says(&[
                "were pruned: they cannot be delivered again",
                "keep_log",
                "--keep-log",
            ]);
        }
    });
}

#[test]
fn they_are_dropped() {
    on_each("they_are_dropped", |store| {
        registered(store);
        on(store, &["consumer", "drop", "invoicing"])
            .exits(2)
            .says(&["no terminal to ask on"]);
        let dry = on(store, &["consumer", "drop", "invoicing", "--dry-run"]).exits(0);
        dry.says(&["would drop invoicing with its cursors, its inbox, 0 waiting messages and 0 dead letters"]);
        on(store, &["consumer", "drop", "invoicing", "--yes"])
            .exits(0)
            .says(&["invoicing is dropped"]);
        on(store, &["consumer", "drop", "invoicing", "--yes"])
            .exits(1)
            .says(&["no consumer invoicing"]);
        on(store, &["status"])
            .exits(0)
            .prints(&["no consumer is registered yet"]);
    });
}
