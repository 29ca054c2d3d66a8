//! One scenario on a site of its own: what is placed, who runs, and what is to be waited for.

use crate::{
    business::{Business, Opening},
    check::{Expected, check},
    database::Database,
    evidence::{self, Evidence},
    operator::open_ends,
    process::{Actor, Ledger, Recipe, Told, lock},
    script::LANES,
    site::Site,
    wait::until,
    workload::{Kind, ORDERS, Placed},
};
use anyhow::{Context, Result, bail};
use eventloom::{LaneCount, NewEvent, Publish};
use std::{os::unix::process::ExitStatusExt, path::Path, time::Duration};

/// How long something may take that is bound to happen.
pub(super) const SURELY: Duration = Duration::from_secs(40);
/// How long something is waited for that a defect may prevent, since the last time that anything happened.
const STILL: Duration = Duration::from_secs(6);
/// How long something is waited for that must not happen without a defect. A defect shows it at once.
pub(super) const MUST_NOT: Duration = Duration::from_millis(1500);
/// Lives of a process that is killed again and again, before it is said that this goes on for ever.
const LIVES_MAX: usize = 9;
const SIGABRT: i32 = 6;

/// A stage on which a defect may show.
pub(super) struct Scene<S> {
    pub(super) site: Site,
    pub(super) database: Database,
    /// The parent's own store, without any defect.
    pub(super) store: S,
    pub(super) rng: fastrand::Rng,
    ledger: Ledger,
    defect: Option<&'static str>,
}

/// Calls to the outside, one instance with a short lease.
pub(super) const SHORT_LEASE: &str = "700";
/// Long enough that nothing lapses while a handler stands at a gate.
pub(super) const LONG_LEASE: &str = "30000";

impl<S: Business> Scene<S> {
    pub(super) async fn open(site: &Site, seed: u64, defect: Option<&'static str>) -> Result<Self> {
        Ok(Scene {
            site: site.clone(),
            database: Database::of(site)?,
            store: S::open(
                site,
                Opening {
                    connections: 3,
                    pooled: false,
                    schema: None,
                },
            )
            .await?,
            rng: fastrand::Rng::with_seed(seed),
            ledger: Ledger::default(),
            defect,
        })
    }

    /// Runs a statement on the source, as another program would.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        self.database.execute(sql).await
    }

    pub(super) async fn close(self) {
        self.database.close().await;
    }

    /// A key that no other call returns.
    pub(super) fn key(&mut self, name: &str) -> String {
        format!("{name}-{:08x}", self.rng.u32(..))
    }

    /// A key in the lane of another one, or in another lane.
    pub(super) fn key_beside(&mut self, name: &str, key: &str, same_lane: bool) -> Result<String> {
        let lanes = LaneCount::new(LANES).context("lanes")?;
        for _ in 0..1000 {
            let beside = self.key(name);
            if (lanes.lane_of(&beside) == lanes.lane_of(key)) == same_lane {
                return Ok(beside);
            }
        }
        bail!("no such key")
    }

    /// Places orders in one transaction.
    pub(super) async fn place(&mut self, orders: &[Placed]) -> Result<()> {
        self.store.place_orders(orders).await?;
        lock(&self.ledger)
            .orders
            .extend(orders.iter().map(|order| (order.key.clone(), order.seq)));
        Ok(())
    }

    /// Harmless orders of other keys: their number and kinds vary with the seed.
    pub(super) async fn place_fillers(&mut self) -> Result<()> {
        for _ in 0..self.rng.usize(2..5) {
            let key = self.key("filler");
            let kinds = [Kind::Ok, Kind::Slow, Kind::Ok];
            let orders: Vec<Placed> = (1..=3)
                .map(|seq| order(&key, seq, kinds[self.rng.usize(..3)].clone()))
                .collect();
            self.place(&orders).await?;
        }
        Ok(())
    }

    /// Publishes the same event, under the same id, as often as this is called.
    pub(super) async fn publish_alone(&mut self, key: &str) -> Result<()> {
        let key = format!("solo-{key}");
        let digest = key
            .bytes()
            .fold(0u128, |digest, byte| digest.wrapping_mul(31).wrapping_add(byte.into()));
        let row = NewEvent::of(ORDERS, &order(&key, 1, Kind::Ok))?.with_id(eventloom::Uuid::from_u128(digest));
        self.store.publish_row(row).await?;
        let mut ledger = lock(&self.ledger);
        ledger.begun_alone.insert(key.clone());
        ledger.orders.insert((key, 1));
        Ok(())
    }

    /// A process with the defect, if one is planted.
    pub(super) fn start(&self, name: &str, arguments: &[&str]) -> Result<Actor> {
        let mut recipe = Recipe::new(name, arguments);
        if let Some(defect) = self.defect {
            recipe = recipe.with("EVENTLOOM_DEFECT", defect);
        }
        Actor::start(&self.site, &recipe, &self.ledger)
    }

    /// An instance of a group.
    pub(super) fn consume(&self, name: &str, group: &str, lease_ms: &str, more: &[&str]) -> Result<Actor> {
        let mut arguments = vec!["consume", "--groups", group, "--lease-ms", lease_ms, "--keep-log"];
        arguments.extend(more);
        self.start(name, &arguments)
    }

    /// Waits for what is bound to happen.
    pub(super) async fn surely<F: Future<Output = Option<()>>>(
        &self,
        what: &str,
        ask: impl FnMut() -> F,
    ) -> Result<()> {
        until(SURELY, ask)
            .await
            .with_context(|| format!("{what}: not within {SURELY:?}"))
    }

    /// Waits until a file is there.
    pub(super) async fn file(&self, path: &Path) -> Result<()> {
        self.surely(&path.display().to_string(), || async { path.exists().then_some(()) })
            .await
    }

    /// Waits until a query counts at least so many.
    pub(super) async fn count(&self, sql: &str, at_least: i64) -> Result<()> {
        let database = &self.database;
        self.surely(sql, || async {
            (database.number(sql).await.ok()? >= at_least).then_some(())
        })
        .await
    }

    /// Waits until everything of these groups is handled, or nothing happens any more. Returns what is open.
    pub(super) async fn settled(&self, groups: &[&'static str]) -> Result<Vec<String>> {
        let mut before = (tokio::time::Instant::now(), Vec::new());
        loop {
            let open = open_ends(&self.database, &self.site, groups, true).await?;
            if open.is_empty() {
                return Ok(open);
            }
            if open != before.1 {
                before = (tokio::time::Instant::now(), open);
            } else if before.0.elapsed() > STILL {
                return Ok(open);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits, ends the processes, and lets the checkers speak. `forgive` takes out of the evidence what is as it should be.
    pub(super) async fn judge(
        &self,
        groups: &[&'static str],
        actors: Vec<Actor>,
        forgive: impl FnOnce(&mut Evidence),
    ) -> Result<Vec<String>> {
        self.settled(groups).await?;
        for actor in actors {
            actor.end(Duration::from_secs(15)).await?;
        }
        let acknowledged = lock(&self.ledger).clone();
        let mut evidence = evidence::read(&self.database, &self.site, acknowledged).await?;
        forgive(&mut evidence);
        let expected = Expected {
            groups: groups.to_vec(),
            repeated_calls_max: 0,
        };
        let verdicts = check(&evidence, &expected);
        Ok(verdicts
            .into_iter()
            .flat_map(|(what, wrong)| wrong.into_iter().map(move |wrong| format!("{what}: {wrong}")))
            .collect())
    }

    /// Starts a process again each time that a killer has ended it, until `done` holds. `false`: it goes on for ever.
    pub(super) async fn lives(&self, arguments: &[&str], group: &str, done: &str) -> Result<(bool, Option<Actor>)> {
        for _ in 0..LIVES_MAX {
            let mut actor = self.consume("mortal", group, SHORT_LEASE, arguments)?;
            let deadline = tokio::time::Instant::now() + SURELY;
            loop {
                if let Some(status) = actor.ended()? {
                    if status.signal() != Some(SIGABRT) {
                        bail!("a process ended by itself: {status}");
                    }
                    break;
                }
                if self.database.number(done).await? > 0 {
                    return Ok((true, Some(actor)));
                }
                if tokio::time::Instant::now() > deadline {
                    return Ok((false, Some(actor)));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok((false, None))
    }

    /// Waits until a process reports something of itself.
    pub(super) async fn told(&self, actor: &Actor, what: &str, test: impl Fn(&Told) -> bool) -> Result<()> {
        self.surely(what, || async { test(&actor.told()).then_some(()) }).await
    }
}

/// An order.
pub(super) fn order(key: &str, seq: i64, kind: Kind) -> Placed {
    Placed {
        key: key.to_owned(),
        seq,
        kind,
    }
}
