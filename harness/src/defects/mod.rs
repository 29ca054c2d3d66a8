//! Planted defects: each is provoked under several seeds and must be seen; the same seeds are green without it.
//!
//! A scenario forces the interleaving that its defect needs, by gates in handlers, locks in the database or a clock that
//! runs ahead, so that neither verdict hangs on luck.

mod calls;
mod held;
mod killers;
mod log;
mod messages;
mod owners;
mod relay;
mod scene;

use crate::{
    business::{self, Business},
    ground::Ground,
    script::LANES,
    site::{Site, StoreKind, runs_folder},
    tally::Tally,
};
use anyhow::{Context, Result, bail};
use eventloom::{postgres::Postgres, sqlite::Sqlite};
use eventloom_core::faults::DEFECTS;
use scene::Scene;
use std::sync::Arc;
use tokio::{sync::Semaphore, task::JoinSet};

const AT_ONCE: usize = 4;
/// Defects that must be seen on Postgres at least.
const SEEN_MIN: usize = 12;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    store: StoreKind,
    /// Seeds to run each scenario under.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    seeds: Vec<u64>,
    /// Only defects whose name begins with this.
    #[arg(long, default_value = "")]
    only: String,
    /// Leaves the folder of the run also when it passed.
    #[arg(long)]
    keep: bool,
}

/// Why a defect cannot show on a store.
fn hidden_on(store: StoreKind, defect: &str) -> Option<&'static str> {
    if store == StoreKind::Postgres {
        return None;
    }
    match defect {
        "inbox_in_own_transaction" => Some("there is one write transaction at a time, so a second one waits for ever"),
        "let_go_in_one_statement" | "queue_without_lock" => {
            Some("nobody writes between two statements of a transaction")
        }
        "horizon_ignored" => Some("positions are handed out in the order of commits"),
        _ => None,
    }
}

/// Provokes a defect that shows on both stores. Returns what the checkers say.
async fn provoke<S: Business>(scene: &mut Scene<S>, defect: &str) -> Result<Vec<String>> {
    match defect {
        "cursor_past_unfinished" => calls::cursor_past_unfinished(scene).await,
        "no_epoch_check" => owners::no_epoch_check(scene).await,
        "two_tasks_on_one_key" => calls::two_tasks_on_one_key(scene).await,
        "attempts_lost_at_restart" => killers::attempts_lost_at_restart(scene).await,
        "prune_past_reader" => log::prune_past_reader(scene).await,
        "held_asked_once_a_batch" => messages::held_asked_once_a_batch(scene).await,
        "lease_renewed_without_epoch" => owners::lease_renewed_without_epoch(scene).await,
        "two_suspects_at_a_time" => killers::two_suspects_at_a_time(scene).await,
        "claim_without_inbox" => messages::claim_without_inbox(scene).await,
        "effect_result_not_stored" => calls::effect_result_not_stored(scene).await,
        "take_without_bump" => killers::take_without_bump(scene).await,
        "advance_before_confirmation" => relay::advance_before_confirmation(scene).await,
        "refused_counted_as_confirmed" => relay::refused_counted_as_confirmed(scene).await,
        "successor_after_unknown" => relay::successor_after_unknown(scene).await,
        "delivery_id_changed_on_resend" => relay::delivery_id_changed_on_resend(scene).await,
        "relay_takes_foreign_rows" => relay::relay_takes_foreign_rows(scene).await,
        "relay_marks_ignored" => relay::relay_marks_ignored(scene).await,
        "inbox_in_own_transaction" => messages::inbox_in_own_transaction(scene).await,
        _ => bail!("there is no scenario for {defect}"),
    }
}

/// The same, with those that need transactions side by side.
async fn provoke_postgres(scene: &mut Scene<Postgres>, defect: &str) -> Result<Vec<String>> {
    match defect {
        "let_go_in_one_statement" => held::let_go_in_one_statement(scene).await,
        "queue_without_lock" => held::queue_without_lock(scene).await,
        "horizon_ignored" => log::horizon_ignored(scene).await,
        _ => provoke(scene, defect).await,
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    defect: &'static str,
    seed: u64,
    planted: bool,
}

pub(crate) async fn run(options: Options) -> Result<Tally> {
    let store = match options.store {
        StoreKind::Sqlite => "sqlite",
        StoreKind::Postgres => "postgres",
    };
    let seeds: Vec<String> = options.seeds.iter().map(u64::to_string).collect();
    println!("again: harness defects --store {store} --seeds {}", seeds.join(","));
    let ground = Ground::new(options.store, &runs_folder()?).await?;
    let template = ground.empty().await?;
    business::migrate(&template, LANES).await?;
    let shared = Arc::new((ground, template));
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    let mut tally = Tally::new();
    let asked: Vec<&'static str> = DEFECTS
        .iter()
        .copied()
        .filter(|defect| defect.starts_with(&options.only))
        .collect();
    for defect in &asked {
        if let Some(why) = hidden_on(options.store, defect) {
            println!("left out {defect}: {why}");
            continue;
        }
        for (seed, planted) in options.seeds.iter().flat_map(|seed| [(*seed, true), (*seed, false)]) {
            let case = Case { defect, seed, planted };
            let (shared, permits, store) = (shared.clone(), permits.clone(), options.store);
            tasks.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let (ground, template) = &*shared;
                (case, one(ground, template, store, case).await)
            });
        }
    }
    let mut results = Vec::new();
    while let Some(done) = tasks.join_next().await {
        results.push(done?);
    }
    let seen = judge(&mut tally, &asked, &results);
    println!("{seen} of {} defects were seen under every seed", asked.len());
    if options.store == StoreKind::Postgres && options.only.is_empty() && seen < SEEN_MIN {
        tally.note(
            "enough defects are seen",
            &[format!("{seen}, and {SEEN_MIN} are wanted")],
        );
    }
    let keep = options.keep || !tally.is_clean();
    let (ground, _) = Arc::into_inner(shared).context("a run goes on")?;
    ground.close(keep)?;
    Ok(tally)
}

fn judge(tally: &mut Tally, asked: &[&'static str], results: &[(Case, Result<Vec<String>>)]) -> usize {
    let mut seen = 0;
    for defect in asked {
        let of = |planted| {
            results
                .iter()
                .filter(move |(case, _)| case.defect == *defect && case.planted == planted)
        };
        let mut unseen = Vec::new();
        for (case, result) in of(true) {
            match result {
                Ok(wrong) if wrong.is_empty() => unseen.push(format!("seed {}: nobody saw it", case.seed)),
                Ok(wrong) => eprintln!(
                    "{defect}, seed {}: {}",
                    case.seed,
                    wrong.first().map_or("", String::as_str)
                ),
                Err(error) => unseen.push(format!("seed {}: {error:#}", case.seed)),
            }
        }
        if of(true).next().is_none() {
            continue;
        }
        seen += usize::from(unseen.is_empty());
        tally.note(&format!("{defect} is seen"), &unseen);
        let mut wrong = Vec::new();
        for (case, result) in of(false) {
            match result {
                Ok(found) => wrong.extend(found.iter().map(|found| format!("seed {}: {found}", case.seed))),
                Err(error) => wrong.push(format!("seed {}: {error:#}", case.seed)),
            }
        }
        tally.note(&format!("all is well without {defect}"), &wrong);
    }
    seen
}

async fn one(ground: &Ground, template: &Site, store: StoreKind, case: Case) -> Result<Vec<String>> {
    let site = ground.copy_of(template).await?;
    let planted = case.planted.then_some(case.defect);
    let found = match store {
        StoreKind::Sqlite => {
            let mut scene = Scene::<Sqlite>::open(&site, case.seed, planted).await?;
            let found = provoke(&mut scene, case.defect).await;
            scene.close().await;
            found
        }
        StoreKind::Postgres => {
            let mut scene = Scene::<Postgres>::open(&site, case.seed, planted).await?;
            let found = provoke_postgres(&mut scene, case.defect).await;
            scene.close().await;
            found
        }
    };
    let as_wanted = matches!(&found, Ok(wrong) if wrong.is_empty() != case.planted);
    if as_wanted {
        ground.discard(site).await?;
    } else {
        eprintln!("{case:?}: see {}", site.folder.display());
    }
    found
}
