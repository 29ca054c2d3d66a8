//! The kill campaign: placers and consumers are killed, frozen and cut off at random while they work.

use crate::{
    business,
    campaign::{self, CALLER_BATCH, Ground, LEASE, Plan},
    process::Recipe,
    proxy::Proxy,
    server::Server,
    site::{Site, StoreKind, runs_folder},
    tally::Tally,
};
use anyhow::Result;
use eventloom::{postgres::Postgres, sqlite::Sqlite};
use std::{fs, path::Path};

const LANES: u16 = 64;
const PLACERS: u64 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    store: StoreKind,
    /// Processes to kill.
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Repeats what is random in the parent; drawn anew when it is missing.
    #[arg(long)]
    seed: Option<u64>,
    /// Orders to place at least.
    #[arg(long, default_value_t = 4000)]
    messages: i64,
    #[arg(long, default_value_t = 300)]
    keys: u64,
    /// Leaves the folder of the run also when it passed.
    #[arg(long)]
    keep: bool,
}

/// How often a campaign is run at most until one counts. A void one has found nothing wrong and proves nothing either.
const RUNS_MAX: u32 = 3;

pub(crate) async fn run(options: Options) -> Result<Tally> {
    let mut runs = 1;
    loop {
        let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
        let tally = run_once(&options, seed).await?;
        if !tally.is_void() || options.seed.is_some() || runs == RUNS_MAX {
            return Ok(tally);
        }
        tally.tell_void();
        println!("void, so it is run again with another seed ({runs} of {RUNS_MAX})");
        runs += 1;
    }
}

async fn run_once(options: &Options, seed: u64) -> Result<Tally> {
    let store = match options.store {
        StoreKind::Sqlite => "sqlite",
        StoreKind::Postgres => "postgres",
    };
    println!(
        "seed {seed}; again: harness kills --store {store} --kills {} --seed {seed}",
        options.kills
    );
    let plan = Plan {
        kills: options.kills,
        messages: options.messages,
        seed,
    };
    let folder = runs_folder()?;
    let mut tally = Tally::new();
    match options.store {
        StoreKind::Sqlite => {
            let site = Site::sqlite(&folder)?;
            business::migrate(&site, LANES).await?;
            let ground = Ground {
                direct: &site,
                through: &site,
            };
            campaign::run::<Sqlite>(&plan, recipes(options, seed), ground, None, &mut tally).await?;
        }
        StoreKind::Postgres => {
            let mut server = Server::start(&folder, true).await?;
            let proxy = Proxy::start(server.port).await?;
            let direct = Site::new(Server::url(server.port, "postgres"), &folder)?;
            let through = Site::new(Server::url(proxy.port, "postgres"), &folder)?;
            business::migrate(&direct, LANES).await?;
            let ground = Ground {
                direct: &direct,
                through: &through,
            };
            let faults = Some((&mut server, &proxy));
            campaign::run::<Postgres>(&plan, recipes(options, seed), ground, faults, &mut tally).await?;
            server.stop()?;
        }
    }
    close(&folder, options.keep || !tally.is_clean());
    Ok(tally)
}

fn close(folder: &Path, keep: bool) {
    if keep {
        println!("logs and data: {}", folder.display());
    } else if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("{} was not removed: {error}", folder.display());
    }
}

fn recipes(options: &Options, seed: u64) -> Vec<Recipe> {
    let (seed, keys, parts) = (seed.to_string(), options.keys.to_string(), PLACERS.to_string());
    let (lease, caller_batch) = (LEASE.as_millis().to_string(), CALLER_BATCH.to_string());
    let mut recipes = Vec::new();
    for part in 0..PLACERS {
        let part = part.to_string();
        let arguments = [
            "place", "--seed", &seed, "--keys", &keys, "--parts", &parts, "--part", &part,
        ];
        recipes.push(Recipe::new(format!("placer-{part}"), &arguments));
    }
    for instance in ["a", "b"] {
        // A process with two consumers shares one scan between them.
        for (name, groups, batch) in [
            ("ledger", "ledger,follower", "64"),
            ("hot", "hot", "64"),
            ("caller", "caller", &caller_batch),
        ] {
            let arguments = [
                "consume",
                "--groups",
                groups,
                "--lease-ms",
                &lease,
                "--batch-max",
                batch,
            ];
            recipes.push(Recipe::new(format!("{name}-{instance}"), &arguments));
        }
    }
    recipes
}
