//! A campaign while it runs: what is done to the processes, and when.

use crate::{
    business::{Business, Opening},
    check::{Expected, check},
    consume::CALLS_MAX,
    database::Database,
    evidence,
    fleet::Fleet,
    operator::{self, Operator},
    process::{Actor, Recipe, lock},
    proxy::Proxy,
    script::GROUPS,
    server::Server,
    site::{Site, flag},
    tally::Tally,
    watch::Watch,
};
use anyhow::Result;
use std::{
    collections::{HashMap, HashSet},
    fs,
    time::Duration,
};
use tokio::time::Instant;

/// Lease of every consumer.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);
/// Unsettled calls of one instance of the caller: as many slices as calls, each of as many messages as a batch.
pub(crate) const CALLER_BATCH: u32 = 4;
/// Messages that may wait before placing pauses, and how many are left when it goes on.
const LAG_MAX: i64 = 500;
const LAG_MIN: i64 = 300;
/// How long everything may stand still before the run is given up.
const STILL_MAX: Duration = Duration::from_secs(45);
const TICK: Duration = Duration::from_millis(15);

/// How much is to be done.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Processes to kill.
    pub(crate) kills: u32,
    /// Orders to place at least.
    pub(crate) messages: i64,
    pub(crate) seed: u64,
}

/// Where: as the oracle reaches it, and as the processes do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) direct: &'a Site,
    pub(crate) through: &'a Site,
}

/// What was done to the processes.
#[derive(Debug, Default)]
struct Toll {
    kills: u32,
    in_flight: u32,
    at_start: u32,
    caller_kills: u32,
    freezes: u32,
    server_kills: u32,
}

struct Campaign<'a> {
    plan: &'a Plan,
    rng: fastrand::Rng,
    fleet: Fleet,
    toll: Toll,
    watch: Watch,
    next_kill: Instant,
    next_freeze: Instant,
    next_cut: Instant,
    next_server_kill: Vec<u32>,
}

/// Runs a campaign and lets the checkers speak.
pub(crate) async fn run<S: Business>(
    plan: &Plan,
    recipes: Vec<Recipe>,
    ground: Ground<'_>,
    mut faults: Option<(&mut Server, &Proxy)>,
    tally: &mut Tally,
) -> Result<()> {
    let Ground { direct, through } = ground;
    let database = Database::of(direct)?;
    let opening = Opening {
        connections: 2,
        pooled: false,
        schema: None,
    };
    let operator = Operator::new(S::open(direct, opening).await?, direct.clone());
    let begun = Instant::now();
    let mut campaign = Campaign {
        plan,
        rng: fastrand::Rng::with_seed(plan.seed),
        fleet: Fleet::new(through.clone(), recipes),
        toll: Toll::default(),
        watch: Watch::default(),
        next_kill: begun + Duration::from_secs(2),
        next_freeze: begun + Duration::from_secs(4),
        next_cut: begun + Duration::from_secs(2),
        next_server_kill: (1..=3).map(|part| plan.kills * part / 4).collect(),
    };
    campaign.strike(&database, &operator, &mut faults).await?;
    let done = campaign.settle(&database, &operator).await?;
    let ended = campaign.fleet.end().await?;
    tally.note("everything was handled in the end", &done);
    tally.note("processes end in order", &ended);
    tally.note("no process ends by itself", &campaign.fleet.unexpected);
    tally.note(
        "no queued message was ever without its held key",
        &campaign.watch.orphans,
    );
    let acknowledged = lock(&campaign.fleet.ledger).clone();
    let evidence = evidence::read(&database, direct, acknowledged).await?;
    let cuts = faults.as_ref().map_or((0, 0), |(_, proxy)| proxy.cuts.made());
    let expected = Expected {
        groups: GROUPS.to_vec(),
        repeated_calls_max: campaign.repeated_calls_max(cuts) as usize,
    };
    for (what, wrong) in check(&evidence, &expected) {
        tally.note(what, &wrong);
    }
    campaign.figures(&evidence, cuts, begun, faults.is_some(), tally);
    database.close().await;
    Ok(())
}

impl Campaign<'_> {
    /// Kills until the kills are used up and enough was placed.
    async fn strike<S: Business>(
        &mut self,
        database: &Database,
        operator: &Operator<S>,
        faults: &mut Option<(&mut Server, &Proxy)>,
    ) -> Result<()> {
        let mut placed = 0;
        let mut told = Instant::now();
        while self.toll.kills < self.plan.kills || placed < self.plan.messages {
            self.fleet.tend(&mut self.rng, true).await?;
            self.watch.look(database, &self.fleet.struck).await;
            placed = self.watch.placed;
            let pause = self.fleet.site.pause();
            if self.watch.lag() > LAG_MAX && !pause.exists() {
                flag(&pause)?;
            } else if self.watch.lag() < LAG_MIN && pause.exists() {
                fs::remove_file(&pause)?;
            }
            if self.watch.redrive_is_due() {
                // The server may be down at the moment.
                let _ = operator.redrive_some(&mut self.rng).await;
            }
            self.freeze_if_due();
            self.kill_if_due(database).await?;
            if let Some((server, proxy)) = faults {
                self.cut_if_due(server, proxy).await?;
            }
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!(
                    "{} kills, {placed} placed, {} behind, {} takeovers",
                    self.toll.kills,
                    self.watch.lag(),
                    self.watch.takeovers
                );
            }
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }

    fn freeze_if_due(&mut self) {
        if Instant::now() < self.next_freeze || self.toll.kills >= self.plan.kills {
            return;
        }
        self.next_freeze = Instant::now() + Duration::from_millis(self.rng.u64(3000..6000));
        let able = |slot: &crate::fleet::Slot| slot.actor.is_some() && !slot.is_placer() && slot.thaw_at.is_none();
        let able: Vec<usize> = (0..self.fleet.slots.len())
            .filter(|at| able(&self.fleet.slots[*at]))
            .collect();
        if let Some(at) = self.rng.choice(able) {
            let beyond = Duration::from_millis(self.rng.u64(150..900));
            self.fleet.freeze(at, Instant::now() + LEASE + beyond);
            self.toll.freezes += 1;
        }
    }

    async fn kill_if_due(&mut self, database: &Database) -> Result<()> {
        let now = Instant::now();
        let starting = self
            .fleet
            .slots
            .iter()
            .position(|slot| slot.kill_at.is_some_and(|kill_at| kill_at <= now));
        if let Some(at) = starting {
            self.fleet.slots[at].kill_at = None;
            if self.fleet.slots[at].actor.is_some() {
                self.toll.at_start += 1;
                self.kill(at, database).await?;
            }
            return Ok(());
        }
        if now < self.next_kill || self.toll.kills >= self.plan.kills {
            return Ok(());
        }
        // Kills are spread over what is to be placed, and do not run ahead of it.
        let due = (self.watch.placed + LAG_MAX) * i64::from(self.plan.kills) / self.plan.messages.max(1);
        if i64::from(self.toll.kills) > due {
            return Ok(());
        }
        self.next_kill = now + Duration::from_millis(self.rng.u64(250..550));
        let Some(at) = self.victim() else { return Ok(()) };
        self.kill(at, database).await?;
        if self.rng.u32(..100) < 10 {
            self.fleet.slots[at].doomed = true;
        }
        Ok(())
    }

    /// Mostly one that has something to lose: a consumer that owns lanes, or a placer while it places.
    fn victim(&mut self) -> Option<usize> {
        let placing = !self.fleet.site.pause().exists();
        let able = |at: &usize, any: bool| {
            let slot = &self.fleet.slots[*at];
            let has_much = |actor: &Actor| {
                if slot.is_placer() {
                    placing
                } else {
                    actor.told().lanes > 0
                }
            };
            slot.actor.as_ref().is_some_and(|actor| any || has_much(actor))
        };
        let which = |any: bool| {
            (0..self.fleet.slots.len())
                .filter(|at| able(at, any))
                .collect::<Vec<_>>()
        };
        let (all, busy) = (which(true), which(false));
        let among = if busy.is_empty() || self.rng.u32(..100) < 10 {
            all
        } else {
            busy
        };
        self.rng.choice(among)
    }

    async fn kill(&mut self, at: usize, database: &Database) -> Result<()> {
        let (caller, placer) = (self.fleet.slots[at].is_caller(), self.fleet.slots[at].is_placer());
        let (pid, told) = self.fleet.kill(at, &mut self.rng).await?;
        self.toll.kills += 1;
        self.toll.caller_kills += u32::from(caller);
        let hit = if placer {
            told.placing
        } else {
            self.watch.was_at_work(database, pid).await
        };
        self.toll.in_flight += u32::from(hit);
        Ok(())
    }

    async fn cut_if_due(&mut self, server: &mut Server, proxy: &Proxy) -> Result<()> {
        if Instant::now() >= self.next_cut && self.toll.kills < self.plan.kills {
            self.next_cut = Instant::now() + Duration::from_millis(self.rng.u64(500..1500));
            proxy.cuts.arm();
        }
        if self
            .next_server_kill
            .first()
            .is_some_and(|kills| self.toll.kills >= *kills)
        {
            self.next_server_kill.remove(0);
            self.toll.server_kills += 1;
            eprintln!("the server is killed");
            server.kill()?;
            server.launch().await?;
        }
        Ok(())
    }

    /// No more faults: lets everything be handled. Returns what was not.
    async fn settle<S: Business>(&mut self, database: &Database, operator: &Operator<S>) -> Result<Vec<String>> {
        flag(&self.fleet.site.stop())?;
        self.fleet.thaw_all();
        let mut progress = (Instant::now(), String::new());
        loop {
            self.fleet.tend(&mut self.rng, false).await?;
            self.watch.look(database, &self.fleet.struck).await;
            let open = operator::open_ends(database, &self.fleet.site, &GROUPS, true).await?;
            let placing = self
                .fleet
                .slots
                .iter()
                .any(|slot| slot.is_placer() && slot.actor.is_some());
            if open.is_empty() && !placing {
                return Ok(Vec::new());
            }
            operator.redrive_all().await?;
            let now = open.join("; ");
            if progress.1 != now {
                progress = (Instant::now(), now);
            } else if progress.0.elapsed() > STILL_MAX {
                return Ok(open);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Calls that may have been made without their results being stored: all that an instance works on when it ends, is
    /// frozen or loses its server, and a slice each time that it drops work.
    fn repeated_calls_max(&self, cuts: (u32, u32)) -> u64 {
        let all = u64::from(CALLS_MAX * CALLER_BATCH);
        let ends = self.toll.caller_kills + self.fleet.caller_aborts + self.toll.freezes + 2 * self.toll.server_kills;
        let dropped = self.fleet.caller_fenced + u64::from(cuts.0 + cuts.1);
        u64::from(ends) * all + dropped * u64::from(CALLER_BATCH)
    }

    fn figures(
        &self,
        evidence: &evidence::Evidence,
        cuts: (u32, u32),
        begun: Instant,
        postgres: bool,
        tally: &mut Tally,
    ) {
        let (toll, counts) = (&self.toll, self.fleet.counted());
        let redeliveries = counts[1] + counts[2];
        let distinct = evidence
            .calls
            .iter()
            .map(|call| &call.idempotency_key)
            .collect::<HashSet<_>>();
        println!(
            "{} orders, {} effects, {} calls ({} repeated, {} allowed) in {:.0} s",
            evidence.orders.len(),
            evidence.effects.len(),
            evidence.calls.len(),
            evidence.calls.len() - distinct.len(),
            self.repeated_calls_max(cuts),
            begun.elapsed().as_secs_f64()
        );
        println!(
            "{} kills ({} in flight, {} while starting), {} by killers, {} freezes, {} of the server; {} takeovers, \
             {redeliveries} redeliveries ({} suspects, {} duplicates), {} conflicts, {} fenced, {} + {} indeterminate commits",
            toll.kills,
            toll.in_flight,
            toll.at_start,
            self.fleet.aborts,
            toll.freezes,
            toll.server_kills,
            self.watch.takeovers,
            counts[1],
            counts[2],
            counts[3],
            counts[4],
            cuts.0,
            cuts.1
        );
        let mut lengths = HashMap::new();
        for order in &evidence.orders {
            *lengths.entry(order.key.as_str()).or_insert(0) += 1;
        }
        let long = lengths.values().filter(|length| **length >= 3).count();
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
        demand("takeovers", self.watch.takeovers, 10);
        demand("redeliveries", redeliveries, 10);
        demand("keys with 3 events and more", long as u64, 10);
        if postgres {
            demand("indeterminate commits", (cuts.0 + cuts.1).into(), 10);
        }
    }
}
