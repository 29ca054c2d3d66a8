//! What the oracle sees while a campaign runs: takeovers, orphans, and how far the consumers lag.

use crate::{database::Database, evidence::ORPHANS};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};
use tokio::time::Instant;

const LOOK_EVERY: Duration = Duration::from_millis(120);
const ORPHANS_EVERY: Duration = Duration::from_millis(700);
const REDRIVE_EVERY: Duration = Duration::from_millis(1500);

const CURSORS: &str = "SELECT reader || ' ' || CAST(lane AS TEXT), owner, CAST(epoch AS TEXT) FROM eventloom.cursors";
const PLACED: &str = "SELECT CAST(count(*) AS TEXT) FROM placed";
/// Keys of single events count for nobody's lag.
const BEHIND: &str = "SELECT CAST((SELECT count(*) FROM placed) - coalesce(min(seen), 0) AS TEXT) FROM
    (SELECT sum(last_seq) AS seen FROM progress WHERE consumer IN ('ledger', 'hot') AND key LIKE 'key-%' GROUP BY consumer) AS s";
const AT_WORK: &str = "SELECT owner FROM eventloom.cursors WHERE owner IS NOT NULL AND batch_end > position
    UNION SELECT c.owner FROM eventloom.cursors c JOIN eventloom.held h
        ON h.consumer = c.reader AND h.lane = c.lane AND h.taken_epoch = c.epoch WHERE c.owner IS NOT NULL";

/// The oracle's eyes.
#[derive(Debug)]
pub(crate) struct Watch {
    cursors: HashMap<String, (Option<i32>, i64)>,
    /// Lanes that were taken from somebody who had not handed them over.
    pub(crate) takeovers: u64,
    /// Orphans that were there at two looks in a row, or once.
    pub(crate) orphans: Vec<String>,
    pub(crate) placed: i64,
    lag: i64,
    next_look: Instant,
    next_orphans: Instant,
    next_redrive: Instant,
}

impl Default for Watch {
    fn default() -> Self {
        let now = Instant::now();
        Watch {
            cursors: HashMap::new(),
            takeovers: 0,
            orphans: Vec::new(),
            placed: 0,
            lag: 0,
            next_look: now,
            next_orphans: now,
            next_redrive: now + REDRIVE_EVERY,
        }
    }
}

impl Watch {
    /// Looks when it is time. A server that is down is looked at later.
    pub(crate) async fn look(&mut self, database: &Database, struck: &HashSet<i32>) {
        if Instant::now() < self.next_look {
            return;
        }
        if let Ok(cursors) = database.rows(CURSORS).await {
            self.count_takeovers(cursors, struck);
        }
        if let (Ok(placed), Ok(lag)) = (database.number(PLACED).await, database.number(BEHIND).await) {
            (self.placed, self.lag) = (placed, lag);
        }
        if Instant::now() >= self.next_orphans {
            self.next_orphans = Instant::now() + ORPHANS_EVERY;
            if let Ok(orphans) = database.rows(ORPHANS).await {
                let seen: BTreeSet<String> = self.orphans.drain(..).chain(orphans.concat()).collect();
                self.orphans.extend(seen);
            }
        }
        self.next_look = Instant::now() + LOOK_EVERY;
    }

    fn count_takeovers(&mut self, cursors: Vec<Vec<String>>, struck: &HashSet<i32>) {
        for row in cursors {
            let [lane, owner, epoch] = &row[..] else { continue };
            let now = (process_of(owner), epoch.parse().unwrap_or_default());
            let before = self.cursors.insert(lane.clone(), now);
            if let Some((Some(former), epoch)) = before
                && now.1 > epoch
                && now.0.is_some_and(|owner| owner != former)
                && struck.contains(&former)
            {
                self.takeovers += 1;
            }
        }
    }

    pub(crate) fn lag(&self) -> i64 {
        self.lag
    }

    pub(crate) fn redrive_is_due(&mut self) -> bool {
        let due = Instant::now() >= self.next_redrive;
        if due {
            self.next_redrive = Instant::now() + REDRIVE_EVERY;
        }
        due
    }

    /// Whether a process that has just been killed had taken messages that it had not answered for.
    pub(crate) async fn was_at_work(&self, database: &Database, pid: i32) -> bool {
        let owners = database.rows(AT_WORK).await.unwrap_or_default();
        owners.concat().iter().any(|owner| process_of(owner) == Some(pid))
    }
}

/// The process id in `host-pid-suffix`.
fn process_of(owner: &str) -> Option<i32> {
    owner.rsplit('-').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_name_their_process() {
        let cases = [("host-42-0123abcd", Some(42)), ("a-b-7-x", Some(7)), ("", None)];
        for (owner, pid) in cases {
            assert_eq!(process_of(owner), pid, "{owner}");
        }
    }
}
