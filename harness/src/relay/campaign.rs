//! Placers on one store, two relays, and consumers on another one: killed, frozen and cut off at random while they work.
//!
//! What is right: every order that was acknowledged at the source has its effects at the target, once, in the order of its
//! key; and the target's log holds second copies of no more than what was in flight when somebody was struck.

use super::relayed::compare;
use crate::{
    business::{self, Business, Opening},
    campaign::LEASE,
    check::{Expected, check},
    database::Database,
    evidence,
    fleet::Fleet,
    operator::Operator,
    process::{Recipe, lock},
    proxy::Proxy,
    server::Server,
    site::{Site, StoreKind, flag, runs_folder},
    tally::Tally,
    watch::Watch,
};
use anyhow::Result;
use eventloom::{postgres::Postgres, sqlite::Sqlite};
use std::{collections::HashSet, fs, time::Duration};
use tokio::time::Instant;

const LANES: u16 = 64;
const BATCH: u32 = 50;
/// Batches that one relay has at the broker at most.
const IN_FLIGHT: u32 = 4;
const GROUPS: [&str; 2] = ["ledger", "hot"];
const LAG_MAX: i64 = 600;
const LAG_MIN: i64 = 350;
const STILL_MAX: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(15);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, value_enum)]
    store: StoreKind,
    /// Processes to kill.
    #[arg(long, default_value_t = 60)]
    kills: u32,
    /// Repeats what is random in the parent; drawn anew when it is missing.
    #[arg(long)]
    seed: Option<u64>,
    /// Orders to place at least.
    #[arg(long, default_value_t = 2500)]
    messages: i64,
    /// Leaves the folder of the run also when it passed.
    #[arg(long)]
    keep: bool,
}

/// How often a campaign is run at most until one counts.
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
    println!(
        "seed {seed}; again: harness relay --store {:?} --kills {} --seed {seed}",
        options.store, options.kills
    );
    let folder = runs_folder()?;
    let mut tally = Tally::new();
    match options.store {
        StoreKind::Sqlite => {
            let source = Site::sqlite(&folder)?;
            let target = Site::new(format!("sqlite://{}", folder.join("target.db").display()), &folder)?;
            for site in [&source, &target] {
                business::migrate(site, LANES).await?;
            }
            let ground = Ground {
                source: &source,
                target: &target,
                through: &target,
            };
            ground.campaign::<Sqlite>(options, seed, None, &mut tally).await?;
        }
        StoreKind::Postgres => {
            let (here, there) = (folder.join("here"), folder.join("there"));
            let mut server = Server::start(&here, true).await?;
            let mut broker = Server::start(&there, true).await?;
            let proxy = Proxy::start(broker.port).await?;
            let source = Site::new(Server::url(server.port, "postgres"), &folder)?;
            let target = Site::new(Server::url(broker.port, "postgres"), &folder)?;
            let through = Site::new(Server::url(proxy.port, "postgres"), &folder)?;
            for site in [&source, &target] {
                business::migrate(site, LANES).await?;
            }
            let ground = Ground {
                source: &source,
                target: &target,
                through: &through,
            };
            let faults = Some((&mut broker, &proxy));
            ground.campaign::<Postgres>(options, seed, faults, &mut tally).await?;
            server.stop()?;
            broker.stop()?;
        }
    }
    if options.keep || !tally.is_clean() {
        println!("logs and data: {}", folder.display());
    } else if let Err(error) = fs::remove_dir_all(&folder) {
        eprintln!("{} was not removed: {error}", folder.display());
    }
    Ok(tally)
}

/// What was done to the processes.
#[derive(Debug, Default)]
struct Toll {
    kills: u32,
    relay_kills: u32,
    in_flight: u32,
    freezes: u32,
    server_kills: u32,
}

/// The two stores, and the target as the relays reach it.
struct Ground<'a> {
    source: &'a Site,
    target: &'a Site,
    through: &'a Site,
}

impl Ground<'_> {
    fn recipes(&self, seed: u64) -> Vec<Recipe> {
        let (seed, lease, batch) = (seed.to_string(), LEASE.as_millis().to_string(), BATCH.to_string());
        let mut recipes = Vec::new();
        for part in ["0", "1"] {
            let arguments = [
                "place", "--seed", &seed, "--keys", "200", "--parts", "2", "--part", part,
            ];
            recipes.push(Recipe::new(format!("placer-{part}"), &arguments));
        }
        for instance in ["a", "b"] {
            let to = self.through.url.as_str();
            let arguments = [
                "relay",
                "--target",
                to,
                "--lease-ms",
                &lease,
                "--batch-max",
                &batch,
                "--late-ms",
                "150",
            ];
            recipes.push(Recipe::new(format!("relay-{instance}"), &arguments));
        }
        let groups = GROUPS.join(",");
        let arguments = ["consume", "--groups", &groups, "--lease-ms", &lease, "--keep-log"];
        recipes.push(Recipe::new("consumers", &arguments).at(self.target));
        recipes
    }

    async fn campaign<S: Business>(
        &self,
        options: &Options,
        seed: u64,
        mut faults: Option<(&mut Server, &Proxy)>,
        tally: &mut Tally,
    ) -> Result<()> {
        let (source, target) = (Database::of(self.source)?, Database::of(self.target)?);
        let opening = Opening {
            connections: 2,
            pooled: false,
            schema: None,
        };
        let operator = Operator::new(S::open(self.target, opening).await?, self.target.clone());
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut fleet = Fleet::new(self.source.clone(), self.recipes(seed));
        let (mut toll, mut relays, begun) = (Toll::default(), Watch::default(), Instant::now());
        let (mut next_kill, mut next_freeze) = (begun + Duration::from_secs(2), begun + Duration::from_secs(4));
        let (mut next_cut, mut told) = (begun + Duration::from_secs(2), begun);
        let mut next_redrive = begun + Duration::from_secs(2);
        let mut server_kills: Vec<u32> = (1..=2).map(|part| options.kills * part / 3).collect();
        let mut placed = 0;
        while toll.kills < options.kills || placed < options.messages {
            fleet.tend(&mut rng, true).await?;
            relays.look(&source, &fleet.struck).await;
            placed = relays.placed;
            let lag = placed - target.number(HANDLED).await.unwrap_or(placed);
            let pause = self.source.pause();
            if lag > LAG_MAX && !pause.exists() {
                flag(&pause)?;
            } else if lag < LAG_MIN && pause.exists() {
                fs::remove_file(&pause)?;
            }
            let now = Instant::now();
            if now >= next_redrive {
                next_redrive = now + Duration::from_millis(1500);
                // The server may be down at the moment.
                let _ = operator.redrive_some(&mut rng).await;
            }
            if now >= next_freeze && toll.kills < options.kills {
                next_freeze = now + Duration::from_millis(rng.u64(2000..4000));
                let relays = (0..fleet.slots.len()).filter(|at| fleet.slots[*at].is_relay());
                let awake: Vec<usize> = relays
                    .filter(|at| fleet.slots[*at].actor.is_some() && fleet.slots[*at].thaw_at.is_none())
                    .collect();
                if let Some(at) = rng.choice(awake) {
                    fleet.freeze(at, now + LEASE + Duration::from_millis(rng.u64(150..900)));
                    toll.freezes += 1;
                }
            }
            let due = (placed + LAG_MAX) * i64::from(options.kills) / options.messages.max(1);
            if now >= next_kill && toll.kills < options.kills && i64::from(toll.kills) <= due {
                next_kill = now + Duration::from_millis(rng.u64(250..550));
                self.kill_one(&mut fleet, &mut toll, &mut rng, &source).await?;
            }
            if let Some((server, proxy)) = &mut faults {
                if now >= next_cut {
                    next_cut = now + Duration::from_millis(rng.u64(400..1200));
                    proxy.cuts.arm();
                }
                if server_kills.first().is_some_and(|kills| toll.kills >= *kills) {
                    server_kills.remove(0);
                    toll.server_kills += 1;
                    eprintln!("the target is killed");
                    server.kill()?;
                    server.launch().await?;
                }
            }
            if told.elapsed() > Duration::from_secs(5) {
                told = now;
                eprintln!(
                    "{} kills, {placed} placed, {lag} behind, {} takeovers",
                    toll.kills, relays.takeovers
                );
            }
            // pacing: of the faults
            tokio::time::sleep(TICK).await;
        }
        let open = self.settle(&mut fleet, &mut rng, &operator, &source, &target).await?;
        tally.note("everything was relayed and handled in the end", &open);
        tally.note("processes end in order", &fleet.end().await?);
        tally.note("no process ends by itself", &fleet.unexpected);
        let acknowledged = lock(&fleet.ledger).clone();
        let here = evidence::read(&source, self.source, acknowledged).await?;
        let mut judged = evidence::read(&target, self.target, here.acknowledged.clone()).await?;
        judged.orders = here.orders;
        judged.left.extend(here.left);
        judged.orphans.extend(here.orphans);
        let expected = Expected {
            groups: GROUPS.to_vec(),
            repeated_calls_max: 0,
        };
        for (what, wrong) in check(&judged, &expected) {
            tally.note(what, &wrong);
        }
        let (sent, arrived) = (source.rows(LOG).await?, target.rows(LOG_OF_ORIGIN).await?);
        tally.note(
            "every message arrived, in the order of its key",
            &compare(&sent, &arrived, &HashSet::new()),
        );
        let cuts = faults.as_ref().map_or((0, 0), |(_, proxy)| proxy.cuts.made());
        let again = arrived.len() - arrived.iter().map(|row| &row[0]).collect::<HashSet<_>>().len();
        let strikes = toll.relay_kills + toll.freezes + 2 * toll.server_kills + cuts.0 + cuts.1;
        let again_max = (strikes * IN_FLIGHT * BATCH) as usize;
        let too_many = (again > again_max).then(|| format!("{again}, and {again_max} were in flight at most"));
        tally.note(
            "no more came twice than was in flight",
            &too_many.into_iter().collect::<Vec<_>>(),
        );
        println!(
            "{} sent, {} arrived ({again} a second time, {again_max} allowed), {} effects in {:.0} s",
            sent.len(),
            arrived.len(),
            judged.effects.len(),
            begun.elapsed().as_secs_f64()
        );
        println!(
            "{} kills ({} of relays, {} in flight), {} freezes, {} of the target; {} takeovers, {} + {} indeterminate commits",
            toll.kills,
            toll.relay_kills,
            toll.in_flight,
            toll.freezes,
            toll.server_kills,
            relays.takeovers,
            cuts.0,
            cuts.1
        );
        let mut demand = |what: &str, is: u64, at_least: u64| {
            if is < at_least {
                tally.void(format!(
                    "{what}: {is}, and at least {at_least} are needed for the run to count"
                ));
            }
        };
        demand(
            "kills that hit work in flight",
            toll.in_flight.into(),
            u64::from(toll.kills).div_ceil(2),
        );
        demand("takeovers", relays.takeovers, 10);
        demand("messages that came a second time", again as u64, 10);
        if faults.is_some() {
            demand("indeterminate commits", (cuts.0 + cuts.1).into(), 10);
        }
        source.close().await;
        target.close().await;
        Ok(())
    }

    /// Mostly a relay, now and then a placer or the consumers.
    async fn kill_one(
        &self,
        fleet: &mut Fleet,
        toll: &mut Toll,
        rng: &mut fastrand::Rng,
        source: &Database,
    ) -> Result<()> {
        let wants_relay = rng.u32(..100) < 75;
        let able: Vec<usize> = (0..fleet.slots.len())
            .filter(|at| fleet.slots[*at].actor.is_some() && fleet.slots[*at].is_relay() == wants_relay)
            .collect();
        let Some(at) = rng.choice(able) else { return Ok(()) };
        let relay = fleet.slots[at].is_relay();
        // The relays have messages that are not confirmed.
        let unconfirmed = source.number(UNSENT).await.unwrap_or_default();
        let (_, told) = fleet.kill(at, rng).await?;
        toll.kills += 1;
        toll.relay_kills += u32::from(relay);
        let hit = unconfirmed > 0 || told.placing;
        toll.in_flight += u32::from(hit);
        Ok(())
    }

    /// No more faults: lets everything be relayed and handled. Returns what was not.
    async fn settle<S: Business>(
        &self,
        fleet: &mut Fleet,
        rng: &mut fastrand::Rng,
        operator: &Operator<S>,
        source: &Database,
        target: &Database,
    ) -> Result<Vec<String>> {
        flag(&self.source.stop())?;
        fleet.thaw_all();
        let mut progress = (Instant::now(), Vec::new());
        loop {
            fleet.tend(rng, false).await?;
            let placing = fleet.slots.iter().any(|slot| slot.is_placer() && slot.actor.is_some());
            let unsent = source.number(UNSENT).await?;
            let held = source.number(HELD).await? + target.number(HELD).await?;
            let behind = target.number(BEHIND).await?;
            let ends = [
                (unsent, "lanes of the relay behind"),
                (held, "held"),
                (behind, "lanes of consumers behind"),
            ];
            let open: Vec<String> = ends
                .iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            if open.is_empty() && !placing {
                return Ok(Vec::new());
            }
            operator.redrive_all().await?;
            if open != progress.1 {
                progress = (Instant::now(), open);
            } else if progress.0.elapsed() > STILL_MAX {
                return Ok(open);
            }
            // pacing: of the look
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

const HANDLED: &str = "SELECT CAST(coalesce(min(seen), 0) AS TEXT) FROM (
    SELECT (SELECT coalesce(sum(last_seq), 0) FROM progress WHERE consumer = 'ledger' AND key LIKE 'key-%') AS seen
    UNION ALL SELECT (SELECT coalesce(sum(last_seq), 0) FROM progress WHERE consumer = 'hot' AND key LIKE 'key-%')) AS s";
const LOG: &str =
    "SELECT CAST(id AS TEXT), coalesce(key, '') FROM eventloom.outbox WHERE origin IS NULL ORDER BY position";
const LOG_OF_ORIGIN: &str =
    "SELECT CAST(id AS TEXT), coalesce(key, '') FROM eventloom.outbox WHERE origin IS NOT NULL ORDER BY position";
const UNSENT: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors
    WHERE reader = 'relay' AND position < (SELECT coalesce(max(position), 0) FROM eventloom.outbox)";
const BEHIND: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors
    WHERE position < (SELECT coalesce(max(position), 0) FROM eventloom.outbox)";
const HELD: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.held";
