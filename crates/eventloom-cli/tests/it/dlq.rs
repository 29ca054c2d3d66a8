//! `dlq list|show|redrive|delete` on messages that a service has set aside.

use crate::{
    program::on,
    service,
    stores::{TestStore, on_each},
};
use serde_json::Value;

/// Two orders of one key that is refused, one of another, and one without a key; returns the dead, oldest first.
fn dead(store: &TestStore) -> Vec<String> {
    on(store, &["migrate"]).exits(0);
    let mut ids = Vec::new();
    for (key, order) in [
        (Some("XK"), "XK"),
        (Some("XK"), "XK"),
        (Some("AQ"), "AQ"),
        (None, "none"),
    ] {
        let data = format!("{{\"order\": \"{order}\"}}");
        let key = key.map(|key| ["--key", key]);
        let arguments = [
            "publish",
            "orders",
            "order.placed",
            "--data",
            &data,
            "--header",
            "tenant=7",
            "-q",
        ];
        let answer = on(
            store,
            &[&arguments[..], key.as_ref().map_or(&[][..], |key| &key[..])].concat(),
        )
        .exits(0);
        ids.push(answer.stdout.trim().to_owned());
    }
    service::run(
        store,
        &["XK", "AQ", "none"],
        |reader| reader.dead == 3 && reader.waiting == 1,
        || (),
    );
    // The second of its key is not dead: it waits behind the first.
    ids.remove(1);
    ids
}

fn counts(store: &TestStore) -> (i64, i64) {
    let list = on(store, &["consumer", "list", "--json"]).exits(0).stdout;
    let reader: Value = serde_json::from_str(&list).unwrap();
    (reader["dead"].as_i64().unwrap(), reader["waiting"].as_i64().unwrap())
}

#[test]
fn they_are_looked_at() {
    on_each("they_are_looked_at", |store| {
        let ids = dead(store);
        let answer = on(store, &["dlq", "list", "--consumer", "invoicing"]).exits(0);
        let answer = answer.prints(&[
            "CONSUMER",
            "order.placed",
            "XK",
            "dead",
            "tax table has no row for 'AQ'",
        ]);
        answer.says(&["next: eventloom dlq show invoicing "]);
        let quiet = on(store, &["dlq", "list", "--consumer", "invoicing", "-q"])
            .exits(0)
            .stdout;
        let mut listed: Vec<&str> = quiet.lines().collect();
        let mut expected: Vec<&str> = ids.iter().map(String::as_str).collect();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
        on(store, &["dlq", "list", "-q", "--limit", "1"])
            .exits(0)
            .prints(&["invoicing "]);
        on(store, &["dlq", "list", "--limit", "1"])
            .exits(0)
            .says(&["there are more; --limit 10"]);
        let waiting = on(store, &["dlq", "list", "--state", "waiting"]).exits(0);
        waiting.prints(&["waiting", "(waits behind its key)"]);
        let of_key = on(store, &["dlq", "list", "--key", "XK", "--state", "all", "--json"])
            .exits(0)
            .stdout;
        assert_eq!(of_key.lines().count(), 2, "{of_key}");
        on(store, &["dlq", "list", "--key", "none of these"])
            .exits(0)
            .says(&["there are no dead letters with key \"none of these\""]);
        on(store, &["dlq", "list", "--consumer", "invoicin"])
            .exits(1)
            .says(&["did you mean invoicing?"]);

        let answer = on(store, &["dlq", "show", "invoicing", &ids[0]]).exits(0);
        let answer = answer.prints(&["state          dead, its key waits with it", "attempts       1"]);
        answer.prints(&[
            "tax table has no row for 'XK'",
            "tenant: 7",
            "{\"order\": \"XK\"}",
            "order.placed (version 1)",
        ]);
        let letter = on(store, &["dlq", "show", "invoicing", &ids[0], "--json"])
            .exits(0)
            .stdout;
        let letter: Value = serde_json::from_str(&letter).unwrap();
        assert_eq!(letter["message"]["data"]["order"], "XK", "{letter}");
        assert!(
            letter["fingerprint"].is_string() && letter["held_by"].is_string(),
            "{letter}"
        );
        on(store, &["dlq", "show", "invoicing", "no-such-id"])
            .exits(1)
            .says(&["invoicing holds no message no-such-id"]);
    });
}

#[test]
fn consumer_and_id_the_other_way_round() {
    on_each("consumer_and_id_the_other_way_round", |store| {
        let ids = dead(store);
        for verb in ["show", "redrive", "delete"] {
            on(store, &["dlq", verb, &ids[0], "invoicing"])
                .exits(2)
                .says(&[&ids[0], "the order is swapped: the consumer comes first"]);
        }
        for verb in ["redrive", "delete"] {
            on(store, &["dlq", verb, "--help"])
                .exits(0)
                .prints(&[&format!("Usage: eventloom dlq {verb} [OPTIONS] <CONSUMER> <ID>...|")]);
        }
        assert_eq!(counts(store), (3, 1), "nothing was changed");
    });
}

#[test]
fn advice_names_the_store() {
    let store = TestStore::sqlite();
    dead(&store);
    let url = store.url().to_owned();
    let cases = [
        (
            &["dlq", "show", "invoicing", "none"][..],
            "dlq list --consumer invoicing --state all",
        ),
        (
            &["dlq", "redrive", "invoicing", "none"],
            "dlq list --consumer invoicing",
        ),
        (&["consumer", "pause", "nobody"], "consumer list"),
        (&["dlq", "list", "nobody"], "consumer list"),
    ];
    for (arguments, next) in cases {
        on(&store, &[arguments, &["--store", &url]].concat())
            .exits(1)
            .says(&[&format!("next: eventloom {next} --store {url}\n")]);
    }
}

#[test]
fn they_are_sent_again() {
    on_each("they_are_sent_again", |store| {
        let ids = dead(store);
        let redrive = |arguments: &[&str]| on(store, &[&["dlq", "redrive", "invoicing"], arguments].concat());
        redrive(&[]).exits(2);
        redrive(&["--all", "--key", "XK"]).exits(2);
        redrive(&["--all"])
            .exits(2)
            .says(&["needs a yes", "redrive all 3 dead letters of invoicing", "--yes"]);
        let dry = redrive(&["--key", "XK", "--dry-run"])
            .exits(0)
            .says(&["would redrive 1 dead letter of key XK"]);
        assert_eq!(dry.stdout.trim(), ids[0]);
        assert_eq!(counts(store), (3, 1), "nothing was changed");
        redrive(&["no-such-id", "--yes"])
            .exits(1)
            .says(&["no-such-id is no dead letter of invoicing"]);
        redrive(&[&ids[2]])
            .exits(0)
            .says(&["redriven 1 of invoicing", "nobody runs it"]);
        assert_eq!(counts(store), (2, 2));
        on(store, &["dlq", "list", "--state", "waiting"])
            .exits(0)
            .prints(&["redriven"]);
        assert_eq!(redrive(&["--key", "XK", "--yes", "-q"]).exits(0).stdout, "1\n");
        redrive(&["--all", "--yes"]).exits(0).says(&["redriven 1 of invoicing"]);
        redrive(&["--all", "--yes"])
            .exits(0)
            .says(&["has no such dead letters"]);
        service::run(
            store,
            &[],
            |reader| (reader.dead, reader.waiting, reader.held_keys) == (0, 0, 0),
            || (),
        );
        on(store, &["dlq", "list", "--state", "all"])
            .exits(0)
            .says(&["nothing is held"]);
    });
}

#[test]
fn they_are_given_up() {
    on_each("they_are_given_up", |store| {
        let ids = dead(store);
        let delete = |arguments: &[&str]| on(store, &[&["dlq", "delete", "invoicing"], arguments].concat());
        delete(&[&ids[0]])
            .exits(2)
            .says(&["needs a yes", "delete 1 dead letter of invoicing"]);
        delete(&["--all", "--dry-run"])
            .exits(0)
            .says(&["would delete all 3 dead letters of invoicing"]);
        assert_eq!(counts(store), (3, 1));
        delete(&[&ids[0], "--yes"]).exits(0).says(&["deleted 1 of invoicing"]);
        assert_eq!(counts(store), (2, 1));
        delete(&["--key", "AQ", "--yes"]).exits(0).says(&["deleted 1 "]);
        assert_eq!(delete(&["--all", "-y", "-q"]).exits(0).stdout, "1\n");
        // What waited behind the one that was given up flows on.
        service::run(
            store,
            &[],
            |reader| (reader.dead, reader.waiting, reader.held_keys) == (0, 0, 0),
            || (),
        );
    });
}

#[test]
fn a_long_key_makes_no_wide_table() {
    let store = TestStore::sqlite();
    on(&store, &["migrate"]).exits(0);
    let key = "k".repeat(1000);
    let data = "{\"order\": \"XK\"}";
    on(
        &store,
        &["publish", "orders", "order.placed", "--key", &key, "--data", data],
    )
    .exits(0);
    service::run(&store, &["XK"], |reader| reader.dead == 1, || ());
    let list = on(&store, &["dlq", "list"]).exits(0).stdout;
    let widest = list.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest < 400, "{widest}: {list}");
}
