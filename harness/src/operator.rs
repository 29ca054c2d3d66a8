//! The operator of a run: cures poison, redrives dead letters through the library, and says what is still open.

use crate::{
    business::Business,
    database::Database,
    evidence,
    site::{Site, flag},
    workload::Followed,
};
use anyhow::Result;
use eventloom::{ConsumerName, DeadLetter, LetterFilter, Redrive, ports::HeldState};
use std::collections::{BTreeSet, HashSet};

/// Whoever looks after dead letters.
#[derive(Debug, Clone)]
pub(crate) struct Operator<S> {
    store: S,
    site: Site,
}

impl<S: Business> Operator<S> {
    pub(crate) fn new(store: S, site: Site) -> Self {
        Operator { store, site }
    }

    /// Dead letters of all consumers.
    pub(crate) async fn dead(&self) -> Result<Vec<DeadLetter>> {
        let filter = LetterFilter::default().state(HeldState::Dead).limit(1000);
        Ok(self.store.letters(&filter).await?)
    }

    fn cure(&self, letter: &DeadLetter) -> Result<()> {
        flag(&self.site.cure(&letter.consumer, &letter.message.envelope.id))
    }

    /// Redrives about half of what is dead, one by one or a key at once.
    pub(crate) async fn redrive_some(&self, rng: &mut fastrand::Rng) -> Result<()> {
        for letter in self.dead().await? {
            if rng.bool() {
                continue;
            }
            self.cure(&letter)?;
            let which = match letter.message.envelope.key.clone() {
                Some(key) if rng.bool() => Redrive::Key(key),
                _ => Redrive::One(letter.message.envelope.id.clone()),
            };
            self.store
                .redrive(&ConsumerName::parse(&letter.consumer)?, &which, None)
                .await?;
        }
        Ok(())
    }

    /// Redrives everything that is dead.
    pub(crate) async fn redrive_all(&self) -> Result<()> {
        let dead = self.dead().await?;
        dead.iter().try_for_each(|letter| self.cure(letter))?;
        let consumers: BTreeSet<&str> = dead.iter().map(|letter| letter.consumer.as_str()).collect();
        for consumer in consumers {
            self.store
                .redrive(&ConsumerName::parse(consumer)?, &Redrive::All, None)
                .await?;
        }
        Ok(())
    }
}

const UNHANDLED: &str = "SELECT CAST(count(*) AS TEXT) FROM placed p
    WHERE NOT EXISTS (SELECT 1 FROM effects e WHERE e.consumer = '{group}' AND e.id = p.id)";
const PUBLISHING: &str = "SELECT key, CAST(seq AS TEXT) FROM placed WHERE kind = '\"Publishes\"'";
const FOLLOWED: &str = "SELECT key, CAST(seq AS TEXT) FROM effects WHERE consumer = 'follower'";
const HELD: &str = "SELECT consumer || ' holds ' || CAST(count(*) AS TEXT) || ' ' || state FROM eventloom.held GROUP BY consumer, state";
const HELD_KEYS: &str =
    "SELECT consumer || ' holds ' || CAST(count(*) AS TEXT) || ' keys' FROM eventloom.held_keys GROUP BY consumer";
const ALONE: &str = "SELECT consumer || ' ' || key FROM effects WHERE key LIKE 'solo-%'";
const TAKEN: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors WHERE batch_end > position";
/// Idle lanes follow the head, too.
const BEHIND: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors
    WHERE position < (SELECT max(position) FROM eventloom.outbox)";

/// What is not handled yet, in words; nothing when a run is over. `idle`: idle lanes are to have followed the head, too.
pub(crate) async fn open_ends(database: &Database, site: &Site, groups: &[&str], idle: bool) -> Result<Vec<String>> {
    let mut open = Vec::new();
    let mut note = |what: &str, count: i64| {
        if count != 0 {
            open.push(format!("{count} {what}"));
        }
    };
    for group in ["ledger", "hot"].into_iter().filter(|group| groups.contains(group)) {
        let unhandled = database.number(&UNHANDLED.replace("{group}", group)).await?;
        note(&format!("unhandled by {group}"), unhandled);
    }
    let calls = evidence::calls(site)?;
    if groups.contains(&"caller") {
        let called: HashSet<&str> = calls.iter().map(|call| call.idempotency_key.as_str()).collect();
        let ids = database.rows("SELECT id FROM placed").await?.concat();
        let uncalled = ids
            .iter()
            .filter(|id| !called.contains(format!("caller/{id}").as_str()))
            .count();
        note("not called for", uncalled as i64);
    }
    if groups.contains(&"follower") {
        let followed: HashSet<Vec<String>> = database.rows(FOLLOWED).await?.into_iter().collect();
        let by = ["ledger", "caller"].into_iter().filter(|by| groups.contains(by));
        let publishing = database.rows(PUBLISHING).await?;
        let wanted = publishing.iter().filter_map(|row| Some((row.first()?, row.get(1)?)));
        let wanted = wanted.flat_map(|(key, seq)| by.clone().map(|by| vec![Followed::key_of(by, key), seq.clone()]));
        note(
            "not followed up",
            wanted.filter(|row| !followed.contains(row)).count() as i64,
        );
    }
    note("lanes with unanswered batches", database.number(TAKEN).await?);
    if idle {
        note("lanes behind the head", database.number(BEHIND).await?);
    }
    let mut alone: HashSet<String> = database.rows(ALONE).await?.concat().into_iter().collect();
    alone.extend(
        calls
            .iter()
            .filter(|call| call.key.starts_with("solo-"))
            .map(|call| format!("caller {}", call.key)),
    );
    let keys: HashSet<&str> = alone.iter().filter_map(|seen| Some(seen.split_once(' ')?.1)).collect();
    let wanted = groups.iter().filter(|group| **group != "follower");
    let lacking = wanted.flat_map(|group| keys.iter().map(move |key| format!("{group} {key}")));
    note(
        "published alone and not everywhere",
        lacking.filter(|seen| !alone.contains(seen)).count() as i64,
    );
    open.extend(database.rows(HELD).await?.concat());
    open.extend(database.rows(HELD_KEYS).await?.concat());
    Ok(open)
}
