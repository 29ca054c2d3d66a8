//! Brings rows of the log to the lanes of one consumer, no faster than they are handled.

use crate::{clock::pace, group::Group, time_limit::ports::*};
use eventloom_core::{
    Position,
    ports::{Backend, ReadError, ReadLimits},
};
use std::{sync::Arc, time::Duration};

/// Rows of one read: far behind the head, what a read costs beside its rows is shared by as many.
const ROWS_MAX: u32 = 4000;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(5);

/// Runs until the process stops.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>) {
    let mut scan = Scan::default();
    let mut retry = RETRY_FIRST;
    while !group.is_stopping() {
        let step = tokio::select! {
            biased;
            () = group.process.stopping.cancelled() => return,
            step = step(&group, &mut scan) => step,
        };
        match step {
            Ok(()) => retry = RETRY_FIRST,
            Err(error) => {
                group.note_trouble("cannot read the log", &error);
                tokio::select! {
                    () = pace(retry) => {}
                    () = group.process.stopping.cancelled() => return,
                }
                retry = (retry * 2).min(RETRY_MOST);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Scan {
    /// `None` until the instance owns lanes: the scan begins where most of them stand.
    at: Option<Position>,
    /// The last read has come to the horizon, and another one would find nothing.
    at_the_head: bool,
}

async fn step<S: Backend>(group: &Group<S>, scan: &mut Scan) -> Result<(), ReadError> {
    // Registered before the lanes are looked at, so that a change in between is not slept through.
    let changed = group.changed.notified();
    let limits = ReadLimits::default()
        .rows_max(ROWS_MAX)
        .payload_each_max(group.settings.payload_each_max);
    let (reach, room, behind, lanes) = {
        let lanes = group.lanes();
        let reach = lanes.reach().filter(|_| !lanes.paused && !lanes.dropped);
        let behind = lanes.behind(scan.at.unwrap_or(reach.map_or(Position::START, |(_, median)| median)));
        (reach, lanes.has_room(), behind, lanes.len())
    };
    let Some((lowest, median)) = reach.filter(|_| room) else {
        changed.await;
        return Ok(());
    };
    let at = scan.at.get_or_insert(median);
    if let Some(behind) = behind {
        if behind.count * 4 >= lanes {
            // Many lanes lag: one scan from the lowest is cheaper than a look-up for each. Rows that a lane has are passed over.
            *at = behind.lowest;
        } else {
            let (cursor, fetched) = (behind.first, behind.fetched);
            let page = group.store().read_lane(cursor.lane, fetched, *at, limits).await?;
            group.lanes().offer_lane(cursor, fetched, page, |row| group.wants(row));
            group.changed.notify_waiters();
            return Ok(());
        }
    } else if lowest > *at {
        *at = lowest;
    } else if scan.at_the_head {
        tokio::select! {
            idle = group.process.tail.idle(*at) => {
                scan.at_the_head = false;
                idle?;
            }
            // A lane was taken or fell behind: it need not wait for new rows.
            () = changed => {}
        }
        return Ok(());
    }
    let read = group.process.tail.read_after(*at, limits).await?;
    let any = group.lanes().offer(*at, &read.page, &read.rows, |row| group.wants(row));
    let moved = read.page.scanned_to > *at;
    *at = read.page.scanned_to.max(*at);
    scan.at_the_head = !moved || (*at >= read.page.horizon && group.process.tail.is_sparse());
    if any {
        group.changed.notify_waiters();
    }
    Ok(())
}
