//! Crash at every step: a process ends at the k-th passing of each named point, is started again, and is checked.

use crate::{
    check::{Expected, check},
    database::Database,
    evidence::{self, Acknowledged},
    ground::Ground,
    process::{Actor, Ledger, Recipe, lock},
    relay::relayed,
    script::GROUPS,
    site::{Site, StoreKind, runs_folder},
    tally::Tally,
};
use anyhow::{Context, Result, bail};
use eventloom_core::faults::POINTS;
use std::{
    os::unix::process::ExitStatusExt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinSet};

/// Runs at once: each waits for leases most of the time.
const AT_ONCE: usize = 4;
const RUN_WITHIN: Duration = Duration::from_secs(150);
const SIGABRT: i32 = 6;
/// Leaves batches behind that were begun and not finished: suspects for whoever comes next.
const PRELUDE: &str = "batch.after_handler:5";
/// Calls that a process which ends may leave without a stored result: two crashes, workers times batch.
const REPEATED_CALLS_MAX: usize = 2 * 4 * 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    store: StoreKind,
    /// Every k, and not only the first three of each point.
    #[arg(long)]
    all: bool,
    /// Only points whose name begins with this.
    #[arg(long, default_value = "")]
    only: String,
    /// Leaves the folder of the run also when it passed.
    #[arg(long)]
    keep: bool,
}

struct Run {
    ground: Ground,
    prepared: (Site, Acknowledged),
    k_max: u64,
}

pub(crate) async fn run(options: Options) -> Result<Tally> {
    let store = match options.store {
        StoreKind::Sqlite => "sqlite",
        StoreKind::Postgres => "postgres",
    };
    println!(
        "again: harness failpoints --store {store}{}",
        if options.all { " --all" } else { "" }
    );
    let ground = Ground::new(options.store, &runs_folder()?).await?;
    let prepared = prelude(&ground).await?;
    let run = Arc::new(Run {
        ground,
        prepared,
        k_max: if options.all { u64::MAX } else { 3 },
    });
    let mut tasks = JoinSet::new();
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    for point in POINTS.iter().copied().filter(|point| point.starts_with(&options.only)) {
        let (run, permits) = (run.clone(), permits.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            (point, every_k(&run, point).await)
        });
    }
    let mut tally = Tally::new();
    let mut crashes = 0;
    let mut unreached = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (point, result) = done?;
        match result {
            Ok((0, wrong)) => {
                unreached.push(point.to_owned());
                tally.note(point, &[wrong, vec!["it was never reached".to_owned()]].concat());
            }
            Ok((passed, wrong)) => {
                crashes += passed;
                tally.note(&format!("{point} ({passed} crashes)"), &wrong);
            }
            Err(error) => tally.note(point, &[format!("{error:#}")]),
        }
    }
    println!(
        "{crashes} crashes at {} points; never reached: {}",
        POINTS.len(),
        if unreached.is_empty() {
            "none".to_owned()
        } else {
            unreached.join(", ")
        }
    );
    let keep = options.keep || !tally.is_clean();
    let run = Arc::into_inner(run).context("a run goes on")?;
    run.ground.close(keep)?;
    Ok(tally)
}

/// A site on which a process has died in the middle of a batch.
async fn prelude(ground: &Ground) -> Result<(Site, Acknowledged)> {
    let site = ground.empty().await?;
    let ledger = Ledger::default();
    if !live(&site, &ledger, Some(PRELUDE), false).await? {
        bail!("the prelude did not reach {PRELUDE}");
    }
    let acknowledged = lock(&ledger).clone();
    Ok((site, acknowledged))
}

/// Ends a process at each k of a point until it is not reached any more. Returns how often it was, and what was wrong.
async fn every_k(run: &Run, point: &str) -> Result<(u64, Vec<String>)> {
    let (mut crashes, mut wrong) = (0, Vec::new());
    for k in 1..=run.k_max {
        let (crashed, found) = one(run, point, k).await.with_context(|| format!("{point}:{k}"))?;
        wrong.extend(found.into_iter().map(|wrong| format!("k = {k}: {wrong}")));
        if !crashed {
            break;
        }
        crashes += 1;
    }
    Ok((crashes, wrong))
}

async fn one(run: &Run, point: &str, k: u64) -> Result<(bool, Vec<String>)> {
    let (prepared, acknowledged) = &run.prepared;
    // A migration ends only where there is something to migrate.
    let (site, acknowledged) = if point.starts_with("migrate.") {
        (run.ground.empty().await?, Acknowledged::default())
    } else {
        (run.ground.copy_of(prepared).await?, acknowledged.clone())
    };
    let ledger: Ledger = Arc::new(Mutex::new(acknowledged));
    let prunes = point.starts_with("prune.");
    let crashed = live(&site, &ledger, Some(&format!("{point}:{k}")), prunes).await?;
    if crashed && live(&site, &ledger, None, prunes).await? {
        bail!("it ended again without a failpoint; see {}", site.folder.display());
    }
    let database = Database::of(&site)?;
    let acknowledged = lock(&ledger).clone();
    let evidence = evidence::read(&database, &site, acknowledged).await?;
    // What is pruned here cannot be compared with what arrived.
    let mut wrong = Vec::new();
    if !prunes {
        let target = relayed::database(&site)?;
        wrong = relayed::wrong(&database, &target).await?;
        target.close().await;
    }
    database.close().await;
    let expected = Expected {
        groups: GROUPS.to_vec(),
        repeated_calls_max: REPEATED_CALLS_MAX,
    };
    let verdicts = check(&evidence, &expected);
    let judged = verdicts.into_iter();
    wrong.extend(judged.flat_map(|(what, wrong)| wrong.into_iter().map(move |wrong| format!("{what}: {wrong}"))));
    if wrong.is_empty() {
        run.ground.discard(site).await?;
    } else {
        eprintln!("{point}:{k}: see {}", site.folder.display());
    }
    Ok((crashed, wrong))
}

/// One life of the script. Returns whether it ended at its failpoint.
async fn live(site: &Site, ledger: &Ledger, failpoint: Option<&str>, prunes: bool) -> Result<bool> {
    let mut recipe = Recipe::new("script", &["script"]);
    if prunes {
        recipe.arguments.push("--prune".to_owned());
    }
    if let Some(failpoint) = failpoint {
        recipe = recipe.with("EVENTLOOM_FAILPOINT", failpoint);
    }
    let (status, told) = Actor::start(site, &recipe, ledger)?.wait(RUN_WITHIN).await?;
    match status {
        Some(status) if status.signal() == Some(SIGABRT) => Ok(true),
        Some(status) if status.success() && told.done => Ok(false),
        Some(status) => bail!("the script did not end well ({status}); see {}", site.folder.display()),
        None => bail!(
            "the script did not end within {RUN_WITHIN:?}; see {}",
            site.folder.display()
        ),
    }
}
