//! What is published is seen by `tail`, byte for byte; what may not enter the log is refused by name and number.

use crate::{
    program::{command, on, on_with_stdin, start},
    stores::{TestStore, on_each},
    wait,
};
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command},
};

fn migrated(store: &TestStore) {
    on(store, &["migrate"]).exits(0);
}

/// The types of the events that a `tail` printed, in order.
fn types(store: &TestStore, arguments: &[&str]) -> Vec<String> {
    let answer = on(store, &[&["tail", "--json"], arguments].concat()).exits(0);
    let lines = answer
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

fn publish(store: &TestStore, topic: &str, event_type: &str) {
    on(store, &["publish", topic, event_type, "-q"]).exits(0);
}

#[test]
fn what_is_published_is_seen() {
    on_each("what_is_published_is_seen", |store| {
        migrated(store);
        let data = "{\"total\": 12.50,\n \"a\": 12345678901234567890123, \"e\": \"\\u001b[2J\"}";
        let arguments = [
            "publish",
            "orders",
            "order.placed",
            "--key",
            "order-17",
            "--subject",
            "s",
            "--source",
            "/shop",
        ];
        let more = ["--data", data, "--header", "tenant=7", "--header", "a=b=c"];
        let answer = on(store, &[&arguments[..], &more].concat())
            .exits(0)
            .says(&["published order.placed to orders"]);
        let id = answer.stdout.trim().to_owned();
        let line = on(store, &["tail", "--json"]).exits(0).stdout;
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&event["id"], &event["key"]),
            (&id.into(), &"order-17".into()),
            "{line}"
        );
        assert_eq!(
            (&event["subject"], &event["source"]),
            (&"s".into(), &"/shop".into()),
            "{line}"
        );
        assert_eq!(
            (&event["headers"]["tenant"], &event["headers"]["a"]),
            (&"7".into(), &"b=c".into()),
            "{line}"
        );
        assert!(
            line.contains("\"total\": 12.50") && line.contains("12345678901234567890123"),
            "as written: {line}"
        );
        on(store, &["tail"])
            .exits(0)
            .prints(&["orders  order.placed  order-17  {\"total\": 12.50"])
            .hides("\u{1b}");

        let id = "0193a3f2-0000-7000-8000-000000000001";
        let answer = on(store, &["publish", "orders", "order.paid", "--id", id, "-q"]).exits(0);
        assert_eq!((answer.stdout.trim(), answer.stderr.as_str()), (id, ""));
        on_with_stdin(store, &["publish", "scans", "scan.taken", "-"], "[1]\n").exits(0);
        on_with_stdin(
            store,
            &[
                "publish",
                "scans",
                "scan.taken",
                "--data-file",
                "-",
                "--content-type",
                "text/plain",
            ],
            "hi",
        )
        .exits(0);
        on(store, &["tail", "scans", "--json"]).exits(0).prints(&[
            "\"data\":[1]",
            "\"data_text\":\"hi\",\"datacontenttype\":\"text/plain\"",
        ]);
        std::fs::write(store.folder().join("scan.bin"), [0xff, 0x00, 0xfe]).unwrap();
        let arguments = [
            "publish",
            "scans",
            "scan.taken",
            "--data-file",
            "scan.bin",
            "--content-type",
            "image/png",
        ];
        on(store, &arguments).exits(0);
        on(store, &["tail", "scans", "--json"])
            .exits(0)
            .prints(&["\"data_base64\":\"/wD+\""]);
        on(store, &["tail"]).exits(0).prints(&["(3 bytes)"]);
    });
}

#[test]
fn what_is_refused() {
    on_each("what_is_refused", |store| {
        migrated(store);
        let large = "x".repeat(2000);
        std::fs::write(
            store.folder().join("large.json"),
            format!("\"{}\"", "x".repeat(1 << 20)),
        )
        .unwrap();
        let failed: &[(&[&str], &[&str])] = &[
            (
                &["--data", "{oops"],
                &["--data is not valid JSON", "line 1 column", "--content-type"],
            ),
            (&["--data-file", "large.json"], &["1048578 bytes", "1048576 bytes"]),
            (&["--data-file", "none.json"], &["none.json"]),
            (&["--key", &large], &["2000 bytes", "1024 bytes"]),
        ];
        for (arguments, parts) in failed {
            on(store, &[&["publish", "orders", "order.placed"], *arguments].concat())
                .exits(1)
                .says(parts);
        }
        on(store, &["publish", "orders", " "]).exits(1).says(&["type is empty"]);
        let usage: &[(&[&str], &[&str])] = &[
            (
                &["orders of today", "order.placed"],
                &["orders of today", "a-z A-Z 0-9 . _ -"],
            ),
            (
                &["orders", "order.placed", "--data", "{}", "--data-file", "f"],
                &["--data-file"],
            ),
            (
                &["orders", "order.placed", "--data", "{}", "-"],
                &["cannot be used with"],
            ),
            (&["orders", "order.placed", "--header", "tenant"], &["NAME=VALUE"]),
            (&["orders", "order.placed", "--id", "7"], &["--id"]),
            (&["orders", "order.placed", "--content-type", "text/plain"], &["--data"]),
        ];
        for (arguments, parts) in usage {
            on(store, &[&["publish"], *arguments].concat()).exits(2).says(parts);
        }
        on(store, &["status"]).exits(0).prints(&["0 held back"]);
        assert!(types(store, &[]).is_empty(), "nothing of it was written");
    });
}

#[test]
fn where_tail_begins_and_ends() {
    on_each("where_tail_begins_and_ends", |store| {
        migrated(store);
        assert!(types(store, &[]).is_empty());
        for number in 1..=12 {
            publish(
                store,
                if number % 4 == 0 { "payments" } else { "orders" },
                &format!("t{number}"),
            );
        }
        let last = |count: usize| (13 - count..=12).map(|number| format!("t{number}")).collect::<Vec<_>>();
        assert_eq!(types(store, &[]), last(10));
        assert_eq!(types(store, &["--limit", "3"]), last(3));
        assert_eq!(types(store, &["payments"]), ["t4", "t8", "t12"]);
        assert_eq!(types(store, &["payments", "orders", "-n", "2"]), ["t11", "t12"]);
        assert_eq!(types(store, &["--from-start", "--limit", "2"]), ["t1", "t2"]);
        assert_eq!(types(store, &["--from-start"]).len(), 12);
        assert_eq!(types(store, &["--since", "1h"]).len(), 12);
        assert!(types(store, &["--since", "2999-01-01"]).is_empty());
        let first = on(store, &["tail", "--from-start", "--limit", "1", "--json"])
            .exits(0)
            .stdout;
        let first: serde_json::Value = serde_json::from_str(&first).unwrap();
        let after = first["position"].to_string();
        assert_eq!(types(store, &["--after", &after]).len(), 11);
        on(store, &["tail", "--after", "0", "--from-start"]).exits(2);
        on(store, &["tail", "--since", "soon"]).exits(2).says(&["how long ago"]);
    });
}

#[test]
fn what_was_pruned_is_said() {
    on_each("what_was_pruned_is_said", |store| {
        migrated(store);
        publish(store, "orders", "t1");
        publish(store, "orders", "t2");
        store.execute("UPDATE {t}logs SET pruned_to = (SELECT max(position) - 1 FROM {t}outbox)");
        on(store, &["tail", "--after", "0"])
            .exits(1)
            .says(&["pruned", "next: ", "--from-start"]);
        assert_eq!(types(store, &["--from-start"]), ["t2"]);
        assert_eq!(types(store, &[]), ["t2"]);
    });
}

#[test]
fn why_there_is_nothing_to_see_is_said() {
    on_each("why_there_is_nothing_to_see_is_said", |store| {
        migrated(store);
        let tail = |arguments: &[&str], why: &str| {
            let answer = on(store, &[&["tail"], arguments].concat()).exits(0).says(&[why]);
            assert_eq!((answer.stdout.as_str(), answer.stderr.lines().count()), ("", 1));
        };
        tail(&[], "the log is empty");
        publish(store, "orders", "t1");
        tail(&["payments"], "there is no event of topic payments");
        tail(&["--since", "2100-01-01"], "there is no event from there on");
        store.execute("UPDATE {t}logs SET pruned_to = (SELECT max(position) FROM {t}outbox)");
        tail(&[], "were pruned, since every reader has passed them");
        tail(
            &["payments", "--from-start"],
            "there is no event of topic payments; rows up to ",
        );
        let answer = on(store, &["tail", "--limit", "0"]).exits(0);
        assert!(answer.stderr.is_empty(), "{}", answer.stderr);
    });
}

fn next_line(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    lines.next().expect("it goes on").unwrap()
}

fn ended(mut child: Child) -> Option<i32> {
    wait::until("the end of the program", || child.try_wait().unwrap()).code()
}

#[test]
fn a_follower_sees_what_comes_and_stops_when_asked() {
    on_each("a_follower_sees_what_comes_and_stops_when_asked", |store| {
        migrated(store);
        publish(store, "orders", "before");
        for signal in ["-INT", "-TERM"] {
            let mut child = start(store, &["tail", "--follow", "--json", "-n", "1"]);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            next_line(&mut lines);
            publish(store, "orders", "after");
            assert!(next_line(&mut lines).contains("\"type\":\"after\""));
            let killed = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status()
                .unwrap();
            assert!(killed.success());
            assert_eq!(ended(child), Some(0), "{signal}");
        }
        let mut child = start(store, &["tail", "-f", "--json", "--after", "0", "--limit", "3"]);
        assert_eq!(BufReader::new(child.stdout.take().unwrap()).lines().count(), 3);
        assert_eq!(ended(child), Some(0), "it ends after so many");
    });
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    on_each("a_closed_pipe_ends_it_quietly", |store| {
        migrated(store);
        let payload = format!("\"{}\"", "x".repeat(100_000));
        for _ in 0..3 {
            on_with_stdin(store, &["publish", "orders", "large", "-"], &payload).exits(0);
        }
        // While there is something to print: more than a pipe holds.
        let mut child = start(store, &["tail", "--json", "--from-start"]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        next_line(&mut lines);
        drop(lines);
        assert_eq!(ended(child), Some(0));
        // And while there is nothing.
        let mut child = start(store, &["tail", "-f", "payments"]);
        drop(child.stdout.take());
        assert_eq!(ended(child), Some(0));
    });
}

#[test]
fn a_long_key_is_cut_for_people() {
    let store = TestStore::sqlite();
    migrated(&store);
    let key = format!("order-{}", "7".repeat(60));
    on(&store, &["publish", "orders", "order.placed", "--key", &key]).exits(0);
    let shown = on(&store, &["tail"]).exits(0).prints(&["order-777", "…"]).stdout;
    assert!(!shown.contains(&key), "{shown}");
    on(&store, &["tail", "--json"]).exits(0).prints(&[&key]);
}

#[test]
fn a_follower_of_an_empty_log_says_that_it_waits() {
    let store = TestStore::sqlite();
    migrated(&store);
    let mut command = command(store.folder(), &["tail", "orders", "--follow", "--store", store.url()]);
    let mut tail = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(tail.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    tail.kill().unwrap();
    tail.wait().unwrap();
    assert!(said.contains("nothing of topic orders yet; waiting"), "{said}");
}
