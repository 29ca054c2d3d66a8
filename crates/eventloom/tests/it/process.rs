//! Instances of a consumer in processes of their own: this test binary once more, told by variables what to be.

use crate::database::Database;
use eventloom::{Lane, postgres::prelude::*};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::{
    borrow::Cow,
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

pub(crate) const MOVES: Topic = Topic::new("moves");
pub(crate) const LEASE: Duration = Duration::from_secs(4);

const SERVER: &str = "EVENTLOOM_TEST_CHILD_SERVER";
const DATABASE: &str = "EVENTLOOM_TEST_CHILD_DATABASE";
const ROLE: &str = "EVENTLOOM_TEST_CHILD_ROLE";
/// What begins a line of a child that is meant for us: the test harness writes too.
const MARK: &str = "child: ";

/// The effects of handlers: what each did, and when, by the database's clock.
pub(crate) const TABLES: &str = "
CREATE TABLE users (name text PRIMARY KEY, moves int NOT NULL DEFAULT 0);
CREATE TABLE effects (seq bigint GENERATED ALWAYS AS IDENTITY, role text, key text, number int,
                      at timestamptz NOT NULL DEFAULT clock_timestamp())";

/// What an instance is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Stands still after the effect of the message that asks for it, until it is told to go on.
    Owner,
    /// The same; and no time limit of the server ends its transaction.
    OwnerWithoutLimit,
    /// The same, behind a pooler.
    OwnerPooled,
    Successor,
    SuccessorPooled,
}

impl Role {
    const ALL: [Role; 5] = [
        Role::Owner,
        Role::OwnerWithoutLimit,
        Role::OwnerPooled,
        Role::Successor,
        Role::SuccessorPooled,
    ];

    fn is_pooled(self) -> bool {
        matches!(self, Role::OwnerPooled | Role::SuccessorPooled)
    }

    fn stands_still(self) -> bool {
        !matches!(self, Role::Successor | Role::SuccessorPooled)
    }
}

/// One move of a user, in the order of its key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) key: String,
    pub(crate) number: i32,
    pub(crate) user: String,
    /// An owner stands still after its effect.
    pub(crate) stand_still: bool,
}

impl Event for Moved {
    const TYPE: &'static str = "user.moved";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.key))
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct MoveError(#[from] sqlx::Error);
impl Classify for MoveError {}

struct Mover {
    role: Role,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Handle<Postgres> for Mover {
    type Event = Moved;
    type Output = ();
    type Error = MoveError;
    async fn handle(&self, moved: Moved, cx: &mut Context<'_>) -> Result<(), MoveError> {
        if self.role == Role::OwnerWithoutLimit {
            let limit = "SET LOCAL idle_in_transaction_session_timeout = 0";
            sqlx::query(limit).persistent(false).execute(cx.connection()).await?;
        }
        let effect = "UPDATE users SET moves = moves + 1 WHERE name = $1";
        let effect = sqlx::query(effect).persistent(false).bind(&moved.user);
        effect.execute(cx.connection()).await?;
        let note = "INSERT INTO effects (role, key, number) VALUES ($1, $2, $3)";
        let note = sqlx::query(note).persistent(false).bind(format!("{:?}", self.role));
        note.bind(&moved.key)
            .bind(moved.number)
            .execute(cx.connection())
            .await?;
        if moved.stand_still && self.role.stands_still() {
            say("the effect is done");
            let told = || self.go_on.lock().unwrap_or_else(PoisonError::into_inner).recv();
            // Blocks, so that what comes first after the freeze is the way to the commit.
            let _ended = tokio::task::block_in_place(told);
        }
        Ok(())
    }
}

/// An instance in a process of its own, killed when dropped.
pub(crate) struct Instance {
    child: Child,
    output: BufReader<ChildStdout>,
    input: ChildStdin,
    /// As it stands in the tables.
    pub(crate) owner: String,
}

impl Instance {
    /// Starts one; `server` is where it connects.
    pub(crate) fn start(role: Role, server: &str, database: &Database) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "process::is_another_process",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, format!("{role:?}"))
            .env(SERVER, server)
            .env(DATABASE, &database.name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        let mut instance = Instance {
            child,
            output,
            input,
            owner: String::new(),
        };
        instance.owner = instance.hear();
        instance
    }

    /// The next line that it says.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "a child has ended");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Returns when it stands still.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        let state = || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().chars().next()
        };
        while state() != Some('T') {
            std::thread::yield_now();
        }
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success(), "kill {signal}");
    }

    /// Stops it in an orderly way; returns whether it has ever dropped its work.
    pub(crate) fn stop(mut self) -> bool {
        self.tell("stop");
        let dropped = self.hear().parse().unwrap();
        assert!(self.child.wait().unwrap().success(), "a child failed");
        dropped
    }
}

impl Drop for Instance {
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

/// Does nothing in a normal run.
#[test]
fn is_another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let role = Role::ALL
        .into_iter()
        .find(|known| format!("{known:?}") == role)
        .unwrap();
    let server: PgConnectOptions = std::env::var(SERVER).unwrap().parse().unwrap();
    let options = server.database(&std::env::var(DATABASE).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(role, options));
}

async fn run(role: Role, options: PgConnectOptions) {
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options);
    let builder = Postgres::builder(pool.await.unwrap());
    let builder = if role.is_pooled() { builder.pooled() } else { builder };
    let (go_on, told) = mpsc::channel();
    let mover = Mover {
        role,
        go_on: Mutex::new(told),
    };
    let backoff = Backoff::default()
        .first(Duration::from_millis(50))
        .most(Duration::from_millis(500));
    let consumer = Consumer::new("moving").topic(MOVES).handle(mover);
    let consumer = consumer.lease(LEASE).backoff(backoff).attempts(20);
    let store = builder.open().await.unwrap();
    let service = Eventloom::new(store).consumer(consumer).start().await.unwrap();
    say(service.owner().as_str());
    let stopped = tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lock().lines() {
            match line.unwrap().as_str() {
                "go on" => go_on.send(()).unwrap(),
                _ => return,
            }
        }
    });
    stopped.await.unwrap();
    let health = service.health().await.consumers.remove(0);
    // Its lanes were somebody else's, or its connection was gone.
    let dropped = health.fenced > 0 || health.trouble.is_some();
    service.shutdown(Duration::from_secs(30)).await.unwrap();
    say(&dropped.to_string());
}

/// A key of one of these lanes, different for each `nth`.
pub(crate) fn key_of(lanes: &[Lane], nth: usize) -> String {
    let count = eventloom::LaneCount::default();
    let keys = (0..).map(|number| format!("key-{number}"));
    let mut keys = keys.filter(|key| lanes.contains(&count.lane_of(key)));
    keys.nth(nth).unwrap()
}
