//! Everything in processes of its own: two placers and two instances of each group (and of the relay), killed and started again.

use crate::{
    arguments::{Arguments, Role},
    board::Board,
    consume::{self, Group},
    input::Input,
    place::{Share, place},
    report::{End, Outcome},
    run::{Folder, Run},
    signals::Stop,
    store::Shop,
};
use anyhow::{Context, bail};
use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

const PLACERS: u64 = 2;
const INSTANCES: usize = 2;
/// Short, so that what a killed instance leaves behind is soon taken over, and often before it is back.
const LEASE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A killed consumer comes back within this: sooner or later than its lease ends.
const BACK_WITHIN_MS: u64 = 4_000;
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// So often may processes end that nobody has killed.
const FAILURES_MAX: u32 = 10;

/// One process, while it lives and while it is to come back.
struct Worker {
    role: Role,
    child: Option<Child>,
    /// It was sent SIGKILL, and that is why it will end.
    killed: bool,
    back_at: Instant,
    /// A placer that has placed everything.
    done: bool,
}

/// Runs until everything is placed and handled, killing on the way.
pub(crate) async fn run<S: Shop, B: Shop>(run: &Run<S, B>, kills: u32) -> anyhow::Result<Outcome> {
    let stop = Stop::on_signals()?;
    let mut workers = workers(run.relays);
    let mut board = Board::of(run);
    // At random places on the way, so that some hit the first steps and some the last.
    let mut at: Vec<f64> = (0..kills).map(|_| 0.97 * fastrand::f64()).collect();
    at.sort_by(|one, other| other.total_cmp(one));
    let mut killed = BTreeMap::new();
    let mut failures = 0;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    let end = loop {
        tokio::select! {
            () = stop.token().cancelled() => break End::Stopped(stop.code()),
            _ = ticks.tick() => {}
        }
        for worker in &mut workers {
            failures += worker.see_to(run)?;
        }
        if failures > FAILURES_MAX {
            bail!(
                "{failures} processes have ended by themselves; {} says why",
                run.folder.log_file().display()
            );
        }
        board.look(run).await;
        while at.last().is_some_and(|place| *place <= board.fraction()) {
            let Some(kind) = kill_one(&mut workers, &board) else {
                break;
            };
            at.pop();
            *killed.entry(kind).or_insert(0) += 1;
        }
        if board.all_done(run).await {
            break End::Done;
        }
        if let Some(why) = board.stalled() {
            break End::Stalled(format!("{why}; {} may say why", run.folder.log_file().display()));
        }
    };
    drain(workers).await;
    board.look(run).await;
    Ok(Outcome {
        end,
        rates: board.close(),
        killed: killed.into_iter().collect(),
    })
}

fn workers(relays: bool) -> Vec<Worker> {
    let placers = (0..PLACERS).map(|part| Role::Place { part, parts: PLACERS });
    let consumers = Group::ALL
        .into_iter()
        .flat_map(|group| vec![Role::Consume { group }; INSTANCES]);
    let relays = std::iter::repeat_n(Role::Relay, if relays { INSTANCES } else { 0 });
    let worker = |role| Worker {
        role,
        child: None,
        killed: false,
        back_at: Instant::now(),
        done: false,
    };
    placers.chain(relays).chain(consumers).map(worker).collect()
}

impl Role {
    /// What it is called on the board and in the report.
    fn kind(&self) -> &'static str {
        match self {
            Role::Place { .. } => "placed",
            Role::Relay => "relay",
            Role::Consume { group } => group.name(),
        }
    }
}

impl Worker {
    /// Notices its end, and starts it when it is time. Returns 1 when it has ended by itself.
    fn see_to<S: Shop, B: Shop>(&mut self, run: &Run<S, B>) -> anyhow::Result<u32> {
        let mut failures = 0;
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            self.child = None;
            self.back_at = Instant::now();
            if self.killed {
                let within = if matches!(self.role, Role::Place { .. }) {
                    300
                } else {
                    BACK_WITHIN_MS
                };
                self.back_at += Duration::from_millis(fastrand::u64(..within));
            } else if status.success() {
                self.done = true;
            } else {
                tracing::warn!(role = ?self.role, %status, "a process ended by itself, and is started again");
                self.back_at += Duration::from_millis(500);
                failures = 1;
            }
            self.killed = false;
        }
        if self.child.is_none() && !self.done && self.back_at <= Instant::now() {
            self.child = Some(spawn(run, &self.role)?);
        }
        Ok(failures)
    }
}

fn spawn<S: Shop, B: Shop>(run: &Run<S, B>, role: &Role) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program, to start it again as a child")?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(run.folder.log_file())?;
    let (arguments, environment) = run.arguments.of_child();
    let mut command = Command::new(program);
    command.args(arguments).envs(environment);
    match role {
        Role::Place { part, parts } => command.arg("place").args([part, parts].map(u64::to_string)),
        Role::Relay => command.arg("relay"),
        Role::Consume { group } => command.arg("consume").arg(group.name()),
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    command.spawn().context("cannot start a process")
}

/// Kills one that lives and still has work to do; `None` when there is none at the moment.
fn kill_one(workers: &mut [Worker], board: &Board) -> Option<&'static str> {
    let at_work = |worker: &&mut Worker| worker.child.is_some() && !worker.killed && !board.is_done(worker.role.kind());
    let mut at_work: Vec<&mut Worker> = workers.iter_mut().filter(at_work).collect();
    let chosen = (!at_work.is_empty()).then(|| fastrand::usize(..at_work.len()))?;
    let worker = &mut at_work[chosen];
    worker.child.as_mut()?.start_kill().ok()?;
    worker.killed = true;
    Some(worker.role.kind())
}

/// Closes their standard input, at which they drain and end.
async fn drain(workers: Vec<Worker>) {
    let mut children: Vec<Child> = workers.into_iter().filter_map(|worker| worker.child).collect();
    for child in &mut children {
        drop(child.stdin.take());
    }
    let patience = Instant::now() + 2 * DRAIN_WITHIN;
    for mut child in children {
        // Whoever is still there then is killed when it is dropped.
        let _ = tokio::time::timeout_at(patience.into(), child.wait()).await;
    }
}

/// The body of one such process.
pub(crate) async fn serve<S: Shop, B: Shop>(
    shop: S,
    market: B,
    arguments: &Arguments,
    folder: &Folder,
    role: &Role,
) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let run = shop
        .run()
        .await?
        .context("no run was begun here; start without a subcommand")?;
    let parent = stop.token().clone();
    std::thread::spawn(move || {
        // Ends when the parent closes it, and when the parent is gone, whatever killed it.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        parent.cancel();
    });
    match *role {
        Role::Place { part, parts } => {
            let input = Input::read(arguments.input.as_deref())?;
            let wanted = input.purchases.len().min(usize::try_from(run.purchases)?);
            let share = Share { part, parts };
            place(
                &shop,
                &input.purchases[..wanted],
                share,
                arguments.batch.into(),
                stop.token(),
            )
            .await?;
        }
        Role::Relay => {
            let service = consume::relay(shop, market, Some(LEASE)).start().await?;
            tokio::select! {
                () = stop.token().cancelled() => {}
                (_, why) = service.alarmed() => bail!("{why}"),
            }
            consume::note_health(&service).await;
            service.shutdown(DRAIN_WITHIN).await?;
        }
        Role::Consume { group } => {
            let service = consume::service(market, &[group], &folder.path().join(run.mail_file), Some(LEASE))?;
            let service = service.start().await?;
            stop.token().cancelled().await;
            consume::note_health(&service).await;
            service.shutdown(DRAIN_WITHIN).await?;
        }
    }
    Ok(())
}
