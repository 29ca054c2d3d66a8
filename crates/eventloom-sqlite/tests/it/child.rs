//! Other processes: this test binary once more, told by a variable what to be.

use crate::folder::{append, append_to, event};
use eventloom_sqlite::Sqlite;
use sqlx::Connection;
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const ROLE: &str = "EVENTLOOM_TEST_CHILD";
const FOLDER: &str = "EVENTLOOM_TEST_FOLDER";
const NUMBER: &str = "EVENTLOOM_TEST_NUMBER";
/// What begins a line of a child that is meant for us: the test harness writes too.
const MARK: &str = "child: ";

/// A process that is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    input: ChildStdin,
}

impl Process {
    pub(crate) fn start(role: &str, folder: &Path, number: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "child::is_another_process",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(FOLDER, folder)
            .env(NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (output, input) = (
            BufReader::new(child.stdout.take().unwrap()),
            child.stdin.take().unwrap(),
        );
        Process { child, output, input }
    }

    /// The next line that the child says; `None` at its end.
    pub(crate) fn hear(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(at) = line.find(MARK) {
                return Some(line[at + MARK.len()..].trim_end().to_owned());
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(done.success(), "kill {signal}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Everything that it says until it ends.
    pub(crate) fn rest(mut self) -> Vec<String> {
        let lines = std::iter::from_fn(|| self.hear()).collect();
        assert!(self.child.wait().unwrap().success(), "a child failed");
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{line}").unwrap();
    out.flush().unwrap();
}

fn wait_for_line() -> Option<String> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).unwrap() == 0 {
        None
    } else {
        Some(line.trim_end().to_owned())
    }
}

/// Does nothing in a normal run.
#[test]
fn is_another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let number: usize = std::env::var(NUMBER).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match role.as_str() {
            "hostile writer" => hostile_writer(&folder, number).await,
            "eager writer" => eager_writer(&folder).await,
            "writer on demand" => writer_on_demand(&folder).await,
            "holder of a transaction" => holder_of_a_transaction(&folder).await,
            "holder of the lock file" => holder_of_the_lock_file(&folder),
            other => panic!("no role {other}"),
        }
    });
}

async fn open(folder: &Path) -> Sqlite {
    Sqlite::connect(folder.join("test.db")).await.unwrap()
}

/// Writes in every way that a program may, and says which ids it has committed.
async fn hostile_writer(folder: &Path, number: usize) {
    let store = open(folder).await;
    say("ready");
    wait_for_line();
    for round in 0..60 {
        let mut committed = Vec::new();
        let mut new = |count: usize, counts: bool| {
            let events: Vec<_> = (0..count).map(|i| event(&format!("{number}-{round}-{i}"))).collect();
            if counts {
                committed.extend(events.iter().map(|event| event.id().to_string()));
            }
            events
        };
        match (number + round) % 6 {
            // Several inserts, among them a savepoint that is rolled back.
            0 => {
                let mut tx = store.begin_write().await.unwrap();
                append(&mut tx, &new(2, true)).await;
                let mut inner = tx.begin().await.unwrap();
                append_to(&mut inner, &new(3, false)).await;
                inner.rollback().await.unwrap();
                append(&mut tx, &new(1, true)).await;
                tx.commit().await.unwrap();
            }
            1 => {
                let mut tx = store.begin_write().await.unwrap();
                append(&mut tx, &new(5, false)).await;
                tx.rollback().await.unwrap();
            }
            2 => {
                let mut tx = store.begin_write().await.unwrap();
                append(&mut tx, &new(5, false)).await;
                drop(tx);
            }
            // A transaction that does not wait in line.
            3 => {
                let mut tx = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
                append_to(&mut tx, &new(1, true)).await;
                tx.commit().await.unwrap();
            }
            4 => {
                let event = new(1, true).remove(0);
                eventloom_core::ports::Outbox::publish_alone(&store, event)
                    .await
                    .unwrap();
            }
            _ => {
                let mut tx = store.begin_write().await.unwrap();
                append(&mut tx, &new(80, true)).await;
                tx.commit().await.unwrap();
            }
        }
        for id in committed {
            say(&id);
        }
    }
}

/// Commits as often as it can until it is told to stop, and says how often that was.
async fn eager_writer(folder: &Path) {
    let store = open(folder).await;
    say("ready");
    wait_for_line();
    let stop = std::thread::spawn(wait_for_line);
    let mut commits = 0;
    while !stop.is_finished() {
        let mut tx = store.begin_write().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        tx.commit().await.unwrap();
        commits += 1;
    }
    say(&commits.to_string());
}

async fn writer_on_demand(folder: &Path) {
    let store = open(folder).await;
    say("ready");
    while wait_for_line().is_some() {
        let mut tx = store.begin_write().await.unwrap();
        append(&mut tx, &[event("k")]).await;
        tx.commit().await.unwrap();
        say("committed");
    }
}

async fn holder_of_a_transaction(folder: &Path) {
    let store = open(folder).await;
    let mut tx = store.begin_write().await.unwrap();
    append(&mut tx, &[event("never committed")]).await;
    say("holding");
    wait_for_line();
}

fn holder_of_the_lock_file(folder: &Path) {
    let file = File::options()
        .write(true)
        .open(folder.join("test.db-eventloom-lock"))
        .unwrap();
    file.lock().unwrap();
    say("holding");
    wait_for_line();
    file.unlock().unwrap();
    say("given back");
}
