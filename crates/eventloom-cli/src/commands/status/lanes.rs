//! Whose the lanes of a reader are, summed up by host.

use eventloom::ports::LaneStatus;
use std::collections::{BTreeMap, BTreeSet};

/// Lanes by owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// All of them.
    pub(crate) total: usize,
    /// Lanes of each owner, by its full id.
    pub(crate) owners: BTreeMap<String, usize>,
}

impl Lanes {
    pub(crate) fn of(lanes: &[LaneStatus]) -> Self {
        let mut owners = BTreeMap::new();
        for owner in lanes.iter().filter_map(|lane| lane.owner.as_ref()) {
            *owners.entry(owner.clone()).or_default() += 1;
        }
        Lanes {
            total: lanes.len(),
            owners,
        }
    }

    /// Lanes with an owner.
    pub(crate) fn owned(&self) -> usize {
        self.owners.values().sum()
    }

    pub(crate) fn hosts(&self) -> BTreeSet<&str> {
        self.owners.keys().map(|owner| host(owner)).collect()
    }

    /// `64/64 lanes`.
    pub(crate) fn count(&self) -> String {
        format!("{}/{} lanes", self.owned(), self.total)
    }

    /// `host-a 32 · host-b 32`, and how many processes where a host has several.
    pub(crate) fn by_host(&self) -> String {
        let mut hosts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (owner, lanes) in &self.owners {
            let (sum, processes) = hosts.entry(host(owner)).or_default();
            *sum += lanes;
            *processes += 1;
        }
        let texts = hosts.into_iter().map(|(host, (lanes, processes))| match processes {
            1 => format!("{host} {lanes}"),
            _ => format!("{host} {lanes} ({processes} processes)"),
        });
        texts.collect::<Vec<_>>().join(" · ")
    }
}

/// Owners are called `host-pid-suffix`.
fn host(owner: &str) -> &str {
    owner.rsplitn(3, '-').nth(2).unwrap_or(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eventloom::{Lane, Position};

    #[test]
    fn sums() {
        let owners = [
            Some("host-a-1-0f"),
            Some("host-a-2-1f"),
            Some("host-b-1-2f"),
            Some("odd"),
            None,
        ];
        let lanes: Vec<_> = owners
            .iter()
            .zip(0..)
            .map(|(owner, lane)| LaneStatus::new(Lane(lane), Position(0), owner.map(str::to_owned)))
            .collect();
        let lanes = Lanes::of(&lanes);
        assert_eq!(lanes.count(), "4/5 lanes");
        assert_eq!(lanes.by_host(), "host-a 2 (2 processes) · host-b 1 · odd 1");
    }
}
