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
    // `None` until the instance owns lanes: the scan begins where most of them stand.
    let mut scan = None;
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

async fn step<S: Backend>(group: &Group<S>, begun: &mut Option<Position>) -> Result<(), ReadError> {
    // Registered before the lanes are looked at, so that a change in between is not slept through.
    let changed = group.changed.notified();
    let limits = ReadLimits::default()
        .rows_max(ROWS_MAX)
        .payload_each_max(group.settings.payload_each_max);
    let (reach, room, behind, lanes) = {
        let lanes = group.lanes();
        let reach = lanes.reach().filter(|_| !lanes.paused && !lanes.dropped);
        let behind = lanes.behind(begun.unwrap_or(reach.map_or(Position::START, |(_, median)| median)));
        (reach, lanes.has_room(), behind, lanes.len())
    };
    let Some((lowest, median)) = reach.filter(|_| room) else {
        changed.await;
        return Ok(());
    };
    let scan = begun.get_or_insert(median);
    if let Some(behind) = behind {
        if behind.count * 4 >= lanes {
            // Many lanes lag: one scan from the lowest is cheaper than a look-up for each. Rows that a lane has are passed over.
            *scan = behind.lowest;
        } else {
            let (cursor, fetched) = (behind.first, behind.fetched);
            let page = group.store().read_lane(cursor.lane, fetched, *scan, limits).await?;
            group.lanes().offer_lane(cursor, fetched, page, |row| group.wants(row));
            group.changed.notify_waiters();
            return Ok(());
        }
    } else if lowest > *scan {
        *scan = lowest;
    }
    let read = group.process.tail.read_after(*scan, limits).await?;
    let any = group
        .lanes()
        .offer(*scan, &read.page, &read.rows, |row| group.wants(row));
    let moved = read.page.scanned_to > *scan;
    *scan = read.page.scanned_to.max(*scan);
    if any {
        group.changed.notify_waiters();
    }
    if !moved {
        tokio::select! {
            idle = group.process.tail.idle(*scan) => idle?,
            // A lane was taken or fell behind: it need not wait for new rows.
            () = changed => {}
        }
    }
    Ok(())
}
