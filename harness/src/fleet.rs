//! The processes of a campaign: each ends again and again, and is started again each time.

use crate::{
    evidence::Acknowledged,
    process::{Actor, Counts, Ledger, Recipe, Told},
    site::Site,
};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::{
    collections::HashSet,
    os::unix::process::ExitStatusExt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::Instant;

const SIGABRT: i32 = 6;

/// One place of a process.
#[derive(Debug)]
pub(crate) struct Slot {
    recipe: Recipe,
    pub(crate) actor: Option<Actor>,
    restart_at: Instant,
    /// It is frozen until then.
    pub(crate) thaw_at: Option<Instant>,
    /// The next one dies while it starts.
    pub(crate) doomed: bool,
    /// It is killed then: while it starts.
    pub(crate) kill_at: Option<Instant>,
}

impl Slot {
    pub(crate) fn is_caller(&self) -> bool {
        self.recipe.name.starts_with("caller")
    }

    pub(crate) fn is_relay(&self) -> bool {
        self.recipe.name.starts_with("relay")
    }

    pub(crate) fn is_placer(&self) -> bool {
        self.recipe.name.starts_with("placer")
    }
}

/// All processes of a campaign, and what became of former ones.
pub(crate) struct Fleet {
    pub(crate) site: Site,
    pub(crate) slots: Vec<Slot>,
    pub(crate) ledger: Ledger,
    /// Ids of processes that were killed, ended themselves, or were frozen: what they owned is taken over.
    pub(crate) struck: HashSet<i32>,
    /// Sums over the last reports of processes that are gone.
    pub(crate) counts: Counts,
    /// Lanes that former instances of the caller had to drop.
    pub(crate) caller_fenced: u64,
    /// Processes that a killer ended, and how many of them were callers.
    pub(crate) aborts: u32,
    pub(crate) caller_aborts: u32,
    /// Processes that ended by themselves and should not have.
    pub(crate) unexpected: Vec<String>,
}

impl Fleet {
    pub(crate) fn new(site: Site, recipes: Vec<Recipe>) -> Self {
        let now = Instant::now();
        let slot = |recipe| Slot {
            recipe,
            actor: None,
            restart_at: now,
            thaw_at: None,
            doomed: false,
            kill_at: None,
        };
        Fleet {
            site,
            slots: recipes.into_iter().map(slot).collect(),
            ledger: Arc::new(Mutex::new(Acknowledged::default())),
            struck: HashSet::new(),
            counts: Counts::default(),
            caller_fenced: 0,
            aborts: 0,
            caller_aborts: 0,
            unexpected: Vec::new(),
        }
    }

    /// Takes in those that have ended, thaws those whose time has come, and starts what is missing.
    pub(crate) async fn tend(&mut self, rng: &mut fastrand::Rng, placing: bool) -> Result<()> {
        let now = Instant::now();
        for at in 0..self.slots.len() {
            self.bury_if_ended(at, rng, placing).await?;
            let slot = &mut self.slots[at];
            if slot.thaw_at.is_some_and(|thaw_at| thaw_at <= now) {
                slot.thaw_at = None;
                if let Some(actor) = &slot.actor {
                    actor.signal(Signal::CONT);
                }
            }
            let wanted = placing || !slot.is_placer();
            if slot.actor.is_none() && wanted && slot.restart_at <= now {
                slot.actor = Some(Actor::start(&self.site, &slot.recipe, &self.ledger)?);
                let soon = Duration::from_millis(rng.u64(0..250));
                slot.kill_at = std::mem::take(&mut slot.doomed).then(|| Instant::now() + soon);
            }
        }
        Ok(())
    }

    async fn bury_if_ended(&mut self, at: usize, rng: &mut fastrand::Rng, placing: bool) -> Result<()> {
        let slot = &mut self.slots[at];
        let Some(actor) = &mut slot.actor else { return Ok(()) };
        let Some(status) = actor.ended()? else { return Ok(()) };
        let Some(actor) = slot.actor.take() else { return Ok(()) };
        let (name, pid, caller, placer) = (actor.name.clone(), actor.pid, slot.is_caller(), slot.is_placer());
        slot.restart_at = Instant::now() + Duration::from_millis(rng.u64(0..300));
        slot.thaw_at = None;
        slot.kill_at = None;
        let (_, told) = actor.wait(Duration::from_secs(1)).await?;
        self.take_in(&told, caller);
        self.struck.insert(pid);
        if status.signal() == Some(SIGABRT) {
            self.aborts += 1;
            self.caller_aborts += u32::from(caller);
        } else if !(placer && status.success() && !placing) {
            self.unexpected
                .push(format!("{name} (process {pid}) ended by itself: {status}"));
        }
        Ok(())
    }

    fn take_in(&mut self, told: &Told, caller: bool) {
        for (sum, count) in self.counts.iter_mut().zip(told.counts) {
            *sum += count;
        }
        if caller {
            self.caller_fenced += told.counts[4];
        }
    }

    /// Kills one. Returns its id and its last words.
    pub(crate) async fn kill(&mut self, at: usize, rng: &mut fastrand::Rng) -> Result<(i32, Told)> {
        let slot = &mut self.slots[at];
        let actor = slot.actor.take().context("nobody there to be killed")?;
        let (pid, caller) = (actor.pid, slot.is_caller());
        slot.restart_at = Instant::now() + Duration::from_millis(rng.u64(0..400));
        slot.thaw_at = None;
        slot.kill_at = None;
        let told = actor.kill().await?;
        self.struck.insert(pid);
        self.take_in(&told, caller);
        Ok((pid, told))
    }

    /// Stops one in its tracks until a time.
    pub(crate) fn freeze(&mut self, at: usize, until: Instant) {
        let slot = &mut self.slots[at];
        if let Some(actor) = &slot.actor {
            actor.signal(Signal::STOP);
            self.struck.insert(actor.pid);
            slot.thaw_at = Some(until);
        }
    }

    /// Lets everything go on that is frozen.
    pub(crate) fn thaw_all(&mut self) {
        for slot in &mut self.slots {
            if slot.thaw_at.take().is_some()
                && let Some(actor) = &slot.actor
            {
                actor.signal(Signal::CONT);
            }
            slot.doomed = false;
            slot.kill_at = None;
        }
    }

    /// Sums over all processes, former and present.
    pub(crate) fn counted(&self) -> Counts {
        let mut sums = self.counts;
        for actor in self.slots.iter().filter_map(|slot| slot.actor.as_ref()) {
            for (sum, count) in sums.iter_mut().zip(actor.told().counts) {
                *sum += count;
            }
        }
        sums
    }

    /// Ends all in order; what did not is told.
    pub(crate) async fn end(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        let mut ends = Vec::new();
        for slot in &mut self.slots {
            if let Some(actor) = slot.actor.take() {
                let (name, caller) = (actor.name.clone(), slot.is_caller());
                ends.push((name, caller, tokio::spawn(actor.end(Duration::from_secs(20)))));
            }
        }
        for (name, caller, end) in ends {
            let (status, told) = end.await??;
            self.take_in(&told, caller);
            match status {
                Some(status) if status.success() => {}
                Some(status) => wrong.push(format!("{name} did not end well: {status}")),
                None => wrong.push(format!("{name} did not end within 20 s")),
            }
        }
        Ok(wrong)
    }
}
