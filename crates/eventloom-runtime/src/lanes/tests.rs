//! What an instance knows of its lanes, without a store.
#![allow(clippy::unwrap_used)]

use super::*;
use eventloom_core::ports::Taken;
use eventloom_core::{Envelope, LaneCount, OffsetDateTime};

fn cursor(lane: i16) -> Cursor {
    Cursor {
        lane: Lane(lane),
        epoch: Epoch(1),
    }
}

/// Lanes that were just taken at the beginning of the log; those named have suspects up to position 10.
fn owning(count: i16, suspects: &[i16]) -> Lanes {
    let taken = |lane| Taken {
        cursor: cursor(lane),
        position: Position(0),
        batch_end: Position(if suspects.contains(&lane) { 10 } else { 0 }),
        holds: false,
        former: None,
    };
    let mut lanes = Lanes::default();
    lanes.apply(
        &Tenure {
            owned: (0..count).map(cursor).collect(),
            taken: (0..count).map(taken).collect(),
            share: count as usize,
            members: 1,
            ..Tenure::default()
        },
        false,
    );
    lanes
}

/// Hands rows at these positions of one lane over, and everything up to `scanned_to` of the others.
fn scan(lanes: &mut Lanes, lane: i16, positions: std::ops::RangeInclusive<i64>, scanned_to: i64) {
    let row = |position| {
        Arc::new(Recorded {
            position: Position(position),
            lane: Lane(lane),
            omitted: None,
            envelope: Envelope::new(position.to_string(), "steps", "step", OffsetDateTime::UNIX_EPOCH),
        })
    };
    let page = Page {
        rows: Vec::new(),
        scanned_to: Position(scanned_to),
        horizon: Position(scanned_to),
    };
    let after = Position(positions.start() - 1);
    let rows: Vec<_> = positions.map(row).collect();
    lanes.offer(after, &page, &rows, |_| true);
}

#[test]
fn a_full_lane_holds_no_scan_back() {
    let mut lanes = owning(4, &[]);
    scan(&mut lanes, 0, 1..=2000, 5000);
    assert_eq!(lanes.reach(), Some((Position(5000), Position(5000))));
    assert_eq!(lanes.behind(Position(5000)), None, "it is full");
}

#[test]
fn many_lanes_behind_are_read_from_the_lowest_of_them() {
    let mut lanes = owning(4, &[]);
    // Lane 0 is full at 1024, and lane 1 is behind for another reason.
    scan(&mut lanes, 0, 1..=2000, 5000);
    lanes.get_mut(cursor(1)).unwrap().fetched = Position(3000);
    let behind = lanes.behind(Position(5000)).unwrap();
    assert_eq!(
        (behind.first, behind.count, behind.lowest),
        (cursor(1), 1, Position(3000))
    );
}

#[test]
fn lanes_that_stand_still_leave_room() {
    let mut lanes = owning(64, &[]);
    for lane in 0..8 {
        for owned in lanes.lanes.values_mut() {
            owned.fetched = Position(0);
        }
        scan(&mut lanes, lane, 1..=2000, 2000);
    }
    assert!(lanes.lanes.values().filter(|owned| owned.full()).count() == 8);
    assert!(lanes.has_room(), "the other 56 can take rows");
    for lane in 8..64 {
        for owned in lanes.lanes.values_mut() {
            owned.fetched = Position(0);
        }
        scan(&mut lanes, lane, 1..=100, 2000);
    }
    assert!(!lanes.has_room(), "every lane has its part");
}

#[test]
fn no_suspect_starves_beside_lanes_that_are_always_ready() {
    for workers in [1, 4, 64] {
        let suspects = [5, 6, 40];
        let mut lanes = owning(64, &suspects);
        for lane in 0..64 {
            for owned in lanes.lanes.values_mut() {
                owned.fetched = Position(0);
            }
            scan(&mut lanes, lane, 1..=3, 3);
        }
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2 * 64 {
            match lanes.pick(8, workers, true).unwrap() {
                // Nothing is moved: every lane stays ready.
                Work::Batch(slices) => lanes.done(slices.iter().map(Slice::cursor)),
                Work::Suspects(slice) => {
                    seen.insert(slice.lane.0);
                    lanes.done([slice.cursor()]);
                }
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), suspects, "{workers} workers");
    }
}

#[test]
fn workers_share_lanes_evenly() {
    let mut lanes = owning(64, &[]);
    for lane in 0..64 {
        for owned in lanes.lanes.values_mut() {
            owned.fetched = Position(0);
        }
        scan(&mut lanes, lane, 1..=1, 1);
    }
    // Each finds fewer that are ready than the one before.
    for worker in 0..4 {
        let Some(Work::Batch(slices)) = lanes.pick(256, 4, true) else {
            panic!("worker {worker} finds work");
        };
        assert_eq!(slices.len(), 16, "worker {worker}");
    }
    assert!(lanes.pick(256, 4, true).is_none(), "nothing is left");
}

#[test]
fn any_number_of_lanes_is_read() {
    let count = LaneCount::MAX as i16;
    let mut lanes = owning(count, &[]);
    assert!(lanes.has_room(), "nothing waits yet");
    let row_of = |lane| {
        Arc::new(Recorded {
            position: Position(1),
            lane: Lane(lane),
            omitted: None,
            envelope: Envelope::new("1", "steps", "step", OffsetDateTime::UNIX_EPOCH),
        })
    };
    for lane in 1..count {
        lanes.get_mut(cursor(lane)).unwrap().push(row_of(lane));
    }
    assert!(lanes.has_room(), "one lane has no row");
    lanes.get_mut(cursor(0)).unwrap().push(row_of(0));
    assert!(!lanes.has_room(), "each has a row");
}
