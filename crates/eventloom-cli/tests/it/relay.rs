//! `relay` as a daemon: from one database to another, through stops, crashes and databases that are down.

use crate::{
    daemon::Daemon,
    door::Door,
    program::on,
    stores::{Folder, TestStore, on_each, on_postgres},
    wait,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};

fn migrated(store: TestStore) -> TestStore {
    on(&store, &["migrate"]).exits(0);
    store
}

fn publish(store: &TestStore, key: &str) -> String {
    let arguments = ["publish", "orders", "order.placed", "--key", key, "--data", "{}"];
    on(store, &arguments).exits(0).stdout.trim().to_owned()
}

/// What a log holds, in order.
fn log(store: &TestStore) -> Vec<Value> {
    let answer = on(store, &["tail", "--from-start", "--json"]).exits(0);
    answer
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn ids(store: &TestStore) -> BTreeSet<String> {
    log(store)
        .iter()
        .map(|event| event["id"].as_str().unwrap().to_owned())
        .collect()
}

fn until_arrived(target: &TestStore, wished: &BTreeSet<String>) {
    wait::until("everything has arrived", || {
        ids(target).is_superset(wished).then_some(())
    });
}

#[test]
fn it_relays_until_it_is_asked_to_stop() {
    on_each("it_relays_until_it_is_asked_to_stop", |source| {
        on(source, &["migrate"]).exits(0);
        let target = migrated(TestStore::sqlite());
        let before = BTreeSet::from(["a", "b"].map(|key| publish(source, key)));
        let daemon = Daemon::start(source, target.url(), &[]);
        daemon.until("started", |started| started["source"].is_string());
        until_arrived(&target, &before);
        let all: BTreeSet<String> = before.into_iter().chain([publish(source, "c")]).collect();
        until_arrived(&target, &all);
        let settled = daemon.until("progress", |progress| {
            progress["relayed"] == 3 && progress["lag_messages"] == 0
        });
        assert_eq!(
            (&settled["dead"], &settled["target_takes_messages"]),
            (&0.into(), &true.into())
        );
        on(source, &["consumer", "list"]).exits(0).prints(&["relay", " relay "]);
        daemon
            .stop()
            .exits(0)
            .prints(&["\"event\":\"stopped\"", "\"relayed\":3", "\"drained\":true"]);
        assert_eq!(log(&target).len(), 3);
        let mut keys: Vec<Value> = log(&target).iter().map(|event| event["key"].clone()).collect();
        keys.sort_by_key(Value::to_string);
        assert_eq!(keys, ["a", "b", "c"]);
    });
}

#[test]
fn topics_are_chosen_and_null_throws_away() {
    let source = migrated(TestStore::sqlite());
    on(&source, &["publish", "payments", "payment.made"]).exits(0);
    publish(&source, "a");
    let target = migrated(TestStore::sqlite());
    let daemon = Daemon::start(&source, target.url(), &["--topic", "orders", "--keep-log", "forever"]);
    daemon.until("progress", |progress| progress["lag_messages"] == 0);
    daemon.stop().exits(0);
    let topics: Vec<Value> = log(&target).iter().map(|event| event["topic"].clone()).collect();
    assert_eq!(topics, ["orders"]);
    let daemon = Daemon::start(&source, "null:", &["--name", "nowhere", "--keep-log", "forever"]);
    daemon.until("progress", |progress| progress["relayed"] == 2);
    daemon.stop().exits(0).prints(&["\"throws_away\":true"]);
    // A new relay that begins at the end has nothing to do.
    let daemon = Daemon::start(&source, "null:", &["--name", "late", "--from", "latest"]);
    daemon.until("progress", |progress| {
        progress["lag_messages"] == 0 && progress["relayed"] == 0
    });
    daemon.stop().exits(0);
}

#[test]
fn a_target_that_is_down_is_waited_for() {
    on_postgres("a_target_that_is_down_is_waited_for", |target| {
        on(target, &["migrate"]).exits(0);
        let source = migrated(TestStore::sqlite());
        let sent = BTreeSet::from([publish(&source, "a")]);
        let door = Door::new(target);
        let daemon = Daemon::start(&source, door.url(), &[]);
        let waiting = daemon.until("waiting", |waiting| waiting["for"] == "target");
        assert!(waiting["why"].as_str().unwrap().contains("refused"), "{waiting}");
        daemon.until("trouble", |trouble| {
            trouble["why"].as_str().unwrap().contains("unreachable")
        });
        door.open();
        until_arrived(target, &sent);
        daemon.until("recovered", |_| true);
        // And later.
        door.shut();
        let sent = BTreeSet::from([publish(&source, "b")]);
        daemon.until_new("trouble", |trouble| trouble["why"].is_string());
        daemon.until("progress", |progress| progress["target_takes_messages"] == false);
        door.open();
        until_arrived(target, &sent);
        daemon.until_new("progress", |progress| progress["lag_messages"] == 0);
        daemon.stop().exits(0);
    });
}

#[test]
fn one_that_was_dropped_says_so() {
    let source = migrated(TestStore::sqlite());
    let target = migrated(TestStore::sqlite());
    let sent = BTreeSet::from([publish(&source, "a")]);
    let daemon = Daemon::start(&source, target.url(), &[]);
    until_arrived(&target, &sent);
    on(&source, &["consumer", "drop", "relay", "--yes"]).exits(0);
    daemon.until("trouble", |trouble| {
        trouble["why"].as_str().unwrap().contains("dropped")
    });
    daemon.stop().exits(0);
}

#[test]
fn a_source_that_is_down_is_waited_for() {
    on_postgres("a_source_that_is_down_is_waited_for", |source| {
        on(source, &["migrate"]).exits(0);
        let target = migrated(TestStore::sqlite());
        let sent = BTreeSet::from([publish(source, "a")]);
        let door = Door::new(source);
        let daemon = Daemon::start_at(source, door.url(), target.url(), &[]);
        daemon.until("waiting", |waiting| waiting["for"] == "source");
        daemon.stop().exits(0).prints(&["\"relayed\":0"]);
        let daemon = Daemon::start_at(source, door.url(), target.url(), &[]);
        daemon.until("waiting", |waiting| waiting["for"] == "source");
        door.open();
        until_arrived(&target, &sent);
        // And later.
        door.shut();
        daemon.until_new("trouble", |trouble| trouble["why"].is_string());
        let sent = BTreeSet::from([publish(source, "b")]);
        door.open();
        until_arrived(&target, &sent);
        daemon.stop().exits(0);
    });
}

#[test]
fn what_is_wrong_for_good_is_told_at_once() {
    on_each("what_is_wrong_for_good_is_told_at_once", |target| {
        let source = migrated(TestStore::sqlite());
        let next = format!("eventloom migrate --store {}", target.url());
        on(&source, &["relay", "--to", target.url()])
            .exits(1)
            .says(&["the target: ", &next]);
        let new = TestStore::sqlite();
        on(&new, &["relay", "--to", "null:"])
            .exits(1)
            .says(&["there is no database"]);
        let to = target.url();
        let cases = [
            (
                &["relay"][..],
                &["no target is given", "--to", "EVENTLOOM_RELAY_TO"][..],
            ),
            (
                &["relay", "--to", "kafka://u:geheim@h"],
                &["the target: ", "unknown scheme"],
            ),
            (
                &["relay", "--to", to, "--batch", "0"],
                &["--batch: ", "not between 1 and 10,000"],
            ),
            (&["relay", "--to", to, "--lease", "5"], &["--lease: ", "has no unit"]),
            (&["relay", "--to", to, "--from", "yesterday"], &["--from: ", "earliest"]),
            (&["relay", "--to", to, "--topic", "Not A Topic"], &["--topic: "]),
            (
                &["relay", "--to", "a.db", "--to-schema", "x"],
                &["SQLite has no schemas"],
            ),
            (
                &["relay", "--to", "null:", "--lease", "1s", "--confirm-within", "2s"],
                &["half of lease"],
            ),
        ];
        for (arguments, parts) in cases {
            on(&source, arguments).exits(2).says(parts).hides("geheim");
        }
    });
}

#[test]
fn the_same_database_needs_no_relay() {
    let store = migrated(TestStore::sqlite());
    let refused = |to: &str| {
        on(&store, &["relay", "--to", to])
            .exits(2)
            .says(&["source and target are the same database"]);
    };
    refused(store.url());
    refused("./shop.db");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(store.folder().join("shop.db"), store.folder().join("link.db")).unwrap();
        refused("link.db");
    }
    on_postgres("the_same_database_needs_no_relay", |store| {
        on(store, &["migrate"]).exits(0);
        publish(store, "a");
        on(store, &["relay", "--to", store.url()])
            .exits(2)
            .says(&["source and target are the same database"]);
        // By another name it is recognised when it is connected to.
        let door = Door::new(store);
        door.open();
        Daemon::start(store, door.url(), &[])
            .ended()
            .exits(1)
            .prints(&["\"event\":\"alarm\""])
            .says(&["is the database that is relayed from"]);
    });
}

#[test]
fn nothing_is_missing_after_a_crash() {
    on_each("nothing_is_missing_after_a_crash", |source| {
        const EVENTS: usize = 3000;
        on(source, &["migrate"]).exits(0);
        let target = migrated(TestStore::sqlite());
        let rows = (0..EVENTS).map(|i| format!("('orders', 'order.placed', 'k{}', '{i}')", i % 50));
        let rows: Vec<String> = rows.collect();
        source.execute(&format!(
            "INSERT INTO {{t}}outbox (topic, type, key, data) VALUES {}",
            rows.join(", ")
        ));
        let sent = ids(source);
        assert_eq!(sent.len(), EVENTS);
        // A short lease, so that a successor need not wait for long.
        let settings = ["--batch", "10", "--lease", "2s"];
        for _ in 0..3 {
            let arrived = ids(&target).len();
            let daemon = Daemon::start(source, target.url(), &settings);
            wait::until("some have arrived", || (ids(&target).len() > arrived).then_some(()));
            daemon.kill();
        }
        let daemon = Daemon::start(source, target.url(), &["--lease", "2s"]);
        until_arrived(&target, &sent);
        daemon.stop().exits(0);
        // In order for each key, once what was sent twice is passed over.
        let mut seen = BTreeSet::new();
        let mut of_key = BTreeMap::<String, Vec<u64>>::new();
        for event in log(&target) {
            if seen.insert(event["id"].to_string()) {
                of_key
                    .entry(event["key"].to_string())
                    .or_default()
                    .push(event["data"].as_u64().unwrap());
            }
        }
        assert_eq!(of_key.len(), 50);
        for (key, numbers) in of_key {
            assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        }
    });
}

#[test]
fn two_databases_may_relay_to_each_other() {
    let (left, right) = (migrated(TestStore::sqlite()), migrated(TestStore::sqlite()));
    let there = Daemon::start(&left, right.url(), &["--keep-log", "forever"]);
    let back = Daemon::start(&right, left.url(), &["--keep-log", "forever"]);
    let all: BTreeSet<String> = [publish(&left, "a"), publish(&right, "b"), publish(&left, "c")].into();
    until_arrived(&left, &all);
    until_arrived(&right, &all);
    for daemon in [&there, &back] {
        daemon.until_new("progress", |progress| progress["lag_messages"] == 0);
    }
    there.stop().exits(0).prints(&["\"relayed\":2"]);
    back.stop().exits(0).prints(&["\"relayed\":1"]);
    assert_eq!((log(&left).len(), log(&right).len()), (3, 3));
}

#[test]
fn a_source_that_was_restored_needs_another_identity() {
    let source = migrated(TestStore::sqlite());
    let target = migrated(TestStore::sqlite());
    let file = source.folder().join("shop.db");
    let backup = Folder::new();
    let relay_all = |keys: &[&str]| {
        let sent: BTreeSet<String> = keys.iter().map(|key| publish(&source, key)).collect();
        let daemon = Daemon::start(&source, target.url(), &["--keep-log", "forever"]);
        until_arrived(&target, &sent);
        daemon.until("progress", |progress| progress["lag_messages"] == 0);
        daemon.stop().exits(0);
    };
    relay_all(&["a"]);
    std::fs::copy(&file, backup.path().join("shop.db")).unwrap();
    relay_all(&["b", "c"]);
    for of_the_log in ["shop.db-wal", "shop.db-shm"] {
        let _ = std::fs::remove_file(source.folder().join(of_the_log));
    }
    std::fs::copy(backup.path().join("shop.db"), &file).unwrap();
    publish(&source, "d");
    Daemon::start(&source, target.url(), &[])
        .ended()
        .exits(1)
        .prints(&["\"event\":\"alarm\""])
        .says(&["has gone back", "next: eventloom migrate --promoted"]);
    assert_eq!(log(&target).len(), 3);
    on(&source, &["migrate", "--promoted"])
        .exits(2)
        .says(&["needs a yes", "--yes"]);
    on(&source, &["migrate", "--promoted", "--dry-run"])
        .exits(0)
        .says(&["nothing was changed"]);
    on(&source, &["migrate", "--promoted", "--yes"])
        .exits(0)
        .says(&["has a new identity"]);
    relay_all(&["e"]);
    assert_eq!(log(&target).len(), 5);
}

#[test]
fn a_target_that_was_restored_is_sent_to_again() {
    let source = migrated(TestStore::sqlite());
    let target = migrated(TestStore::sqlite());
    let (file, backup) = (target.folder().join("shop.db"), Folder::new());
    let relay_all = |sent: &BTreeSet<String>| {
        let daemon = Daemon::start(&source, target.url(), &["--keep-log", "forever"]);
        until_arrived(&target, sent);
        daemon.until("progress", |progress| progress["lag_messages"] == 0);
        daemon.stop().exits(0);
    };
    let mut sent = BTreeSet::from([publish(&source, "a")]);
    relay_all(&sent);
    std::fs::copy(&file, backup.path().join("shop.db")).unwrap();
    sent.insert(publish(&source, "b"));
    relay_all(&sent);
    for of_the_log in ["shop.db-wal", "shop.db-shm"] {
        let _ = std::fs::remove_file(target.folder().join(of_the_log));
    }
    std::fs::copy(backup.path().join("shop.db"), &file).unwrap();
    sent.insert(publish(&source, "c"));
    Daemon::start(&source, target.url(), &[]).ended().exits(1).says(&[
        "has lost messages",
        "next: eventloom consumer reset relay --to earliest",
    ]);
    on(&source, &["consumer", "reset", "relay", "--to", "earliest", "--yes"]).exits(0);
    relay_all(&sent);
}

#[test]
fn a_promoted_log_goes_on() {
    on_each("a_promoted_log_goes_on", |source| {
        on(source, &["migrate"]).exits(0);
        let target = migrated(TestStore::sqlite());
        let first = BTreeSet::from([publish(source, "a")]);
        let daemon = Daemon::start(source, target.url(), &[]);
        until_arrived(&target, &first);
        daemon.until("progress", |progress| progress["lag_messages"] == 0);
        on(source, &["migrate", "--promoted", "--yes"])
            .exits(1)
            .says(&["relay is running"]);
        daemon.stop().exits(0);
        on(source, &["migrate", "--promoted", "--yes"])
            .exits(0)
            .says(&["has a new identity"]);
        let second = BTreeSet::from([publish(source, "b")]);
        let daemon = Daemon::start(source, target.url(), &[]);
        until_arrived(&target, &second);
        daemon.stop().exits(0);
        assert_eq!(log(&target).len(), 2);
    });
}

/// One request, as a probe makes it.
fn get(port: u16, path: &str) -> Option<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn it_answers_for_metrics_and_health() {
    let (source, target) = (migrated(TestStore::sqlite()), migrated(TestStore::sqlite()));
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    let address = port.to_string();
    let taken = ["relay", "--to", target.url(), "--listen", &address];
    on(&source, &taken)
        .exits(1)
        .says(&[&address, "give another address with --listen"]);
    drop(free);
    let daemon = Daemon::start(&source, target.url(), &["--listen", &address]);
    wait::until("it is ready", || {
        get(port, "/health/ready").filter(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    publish(&source, "a");
    wait::until("what was sent is counted", || {
        get(port, "/metrics").filter(|answer| answer.contains("messaging_client_sent_messages"))
    });
    daemon.stop().exits(0);
    assert!(get(port, "/health/live").is_none(), "it ends with the relay");
}
