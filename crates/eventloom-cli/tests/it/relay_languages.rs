//! A plain INSERT from another language arrives at a Rust handler, through the relay.

use crate::{
    daemon::Daemon,
    program::on,
    stores::{TestStore, block_on, on_postgres},
};
use eventloom::{Topic, sqlite::prelude::*};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use tokio::sync::mpsc;

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: String,
    cents: u64,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

impl Classify for Never {
    fn retry_class(&self) -> RetryClass {
        RetryClass::Permanent
    }
}

/// Tells the test of every order.
struct Telling(mpsc::UnboundedSender<(String, u64)>);

impl Handle<Sqlite> for Telling {
    type Event = OrderPlaced;
    type Output = ();
    type Error = Never;

    async fn handle(&self, event: OrderPlaced, _: &mut Context<'_>) -> Result<(), Never> {
        // The test has heard enough when nobody listens any more.
        let _ = self.0.send((event.order, event.cents));
        Ok(())
    }
}

/// Lets `insert` write to the source, and waits for what the handler at the other end gets.
fn arrives(source: &TestStore, insert: impl FnOnce(&TestStore), expected: (&str, u64)) {
    on(source, &["migrate"]).exits(0);
    let target = TestStore::sqlite();
    on(&target, &["migrate"]).exits(0);
    let daemon = Daemon::start(source, target.url(), &[]);
    insert(source);
    let heard = block_on(async {
        let (telling, mut told) = mpsc::unbounded_channel();
        let store = Sqlite::connect(target.url()).await.unwrap();
        let consumer = Consumer::new("invoicing")
            .topic(Topic::new("orders"))
            .handle(Telling(telling));
        let service = Eventloom::new(store).consumer(consumer).start().await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        service.shutdown(Duration::from_secs(30)).await.unwrap();
        heard.expect("the handler is called").unwrap()
    });
    assert_eq!((heard.0.as_str(), heard.1), expected);
    daemon.stop().exits(0);
}

/// Whether a program is there and does what it is asked.
fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn run(program: &str, arguments: &[&str], folder: &Path) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const PYTHON: &str = r#"
import json, sqlite3
connection = sqlite3.connect("shop.db", isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
connection.execute("INSERT INTO orders (id) VALUES (?)", ["order-17"])
connection.execute(
    "INSERT INTO eventloom_outbox (topic, type, key, data) VALUES (?, ?, ?, ?)",
    ["orders", "order.placed", "order-17", json.dumps({"order": "order-17", "cents": 1250})],
)
connection.execute("COMMIT")
"#;

#[test]
fn from_python() {
    if !works("python3", &["-c", "import sqlite3"]) {
        return println!("left out: from_python: there is no python3 with sqlite3");
    }
    let insert = |store: &TestStore| run("python3", &["-c", PYTHON], store.folder());
    arrives(&TestStore::sqlite(), insert, ("order-17", 1250));
}

const NODE: &str = r#"
const { DatabaseSync } = require("node:sqlite");
const database = new DatabaseSync("shop.db");
database.exec("PRAGMA busy_timeout = 10000"); // it does not wait for other writers by itself
database.exec("BEGIN IMMEDIATE");
database.exec("CREATE TABLE orders (id TEXT PRIMARY KEY)");
database.prepare("INSERT INTO orders (id) VALUES (?)").run("order-18");
database
  .prepare("INSERT INTO eventloom_outbox (topic, type, key, data) VALUES (?, ?, ?, ?)")
  .run("orders", "order.placed", "order-18", JSON.stringify({ order: "order-18", cents: 1800 }));
database.exec("COMMIT");
database.close();
"#;

#[test]
fn from_node() {
    if !works("node", &["-e", "require('node:sqlite')"]) {
        return println!("left out: from_node: there is no node with node:sqlite (22.13 or newer)");
    }
    let insert = |store: &TestStore| run("node", &["-e", NODE], store.folder());
    arrives(&TestStore::sqlite(), insert, ("order-18", 1800));
}

const PSQL: &str = "BEGIN; CREATE TABLE orders (id text PRIMARY KEY); INSERT INTO orders VALUES ('order-19'); \
                    INSERT INTO eventloom.outbox (topic, type, key, data) \
                    VALUES ('orders', 'order.placed', 'order-19', '{\"order\": \"order-19\", \"cents\": 99}'); COMMIT;";

#[test]
fn from_psql() {
    if !works("psql", &["--version"]) {
        return println!("left out: from_psql: there is no psql");
    }
    on_postgres("from_psql", |source| {
        let insert = |store: &TestStore| {
            let arguments = ["-X", "-v", "ON_ERROR_STOP=1", "-d", store.url(), "-c", PSQL];
            run("psql", &arguments, store.folder());
        };
        arrives(source, insert, ("order-19", 99));
    });
}
