//! Holds an instance's lease on a consumer: renews it, takes free lanes, hands over what is more than its share.

use crate::{
    clock::pace,
    consumer::Poison,
    group::{Group, count},
    time_limit::ports::*,
};
use eventloom_core::{Awake, StoreError, StoreErrorKind, ports::Backend};
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

/// How soon lanes that this instance gave up itself are asked for again.
const REJOIN_PACE: Duration = Duration::from_millis(20);

/// Runs until the process stops and its work is drained, then hands every lane over.
///
/// `drained` completes when no worker of this consumer runs any more.
pub(crate) async fn run<S: Backend>(group: Arc<Group<S>>, drained: impl Future<Output = ()>) {
    tokio::pin!(drained);
    let renew_every = group.settings.lease / 3;
    let clock = &group.process.clock;
    let mut renew_at = clock.now();
    // Kept until the lease is renewed and the next renewal asked for: on a clock that ran on meanwhile it would lapse.
    let mut _awake = Awake::default();
    loop {
        let next = clock.wake_at(renew_at);
        _awake = Awake::default();
        let woken = tokio::select! {
            biased;
            () = &mut drained => break,
            awake = next => Some(awake),
            () = group.rejoin.notified() => None,
            // Busy lanes that are to leave leave as soon as they are free.
            () = group.changed.notified(), if group.lanes().has_surplus() => {
                release_surplus(&group).await;
                continue;
            }
        };
        _awake = match woken {
            Some(awake) => awake,
            None => {
                pace(REJOIN_PACE).await;
                clock.wake_at(clock.now()).await
            }
        };
        // Renewed also while stopping: what still runs needs its lease.
        let begun = clock.now();
        let kept = keep(&group).await;
        match kept {
            Ok(counted_from) => {
                renew_at = counted_from + renew_every;
                group.renews_at(None);
            }
            Err(error) => {
                group.note_trouble("cannot renew the lease", &error);
                renew_at = begun + (renew_every / 4).max(Duration::from_millis(50));
                group.renews_at(Some(renew_at));
                if clock.now() >= *group.lease_until.borrow() {
                    group.lanes().clear();
                }
            }
        }
        release_surplus(&group).await;
    }
    leave(&group).await;
}

/// Returns since when the lease counts.
async fn keep<S: Backend>(group: &Group<S>) -> Result<Instant, StoreError> {
    let (held, forgotten) = {
        let lanes = group.lanes();
        (lanes.cursors(), lanes.forgotten)
    };
    let begun = group.process.clock.now();
    let (name, owner) = (group.name(), &group.process.owner);
    let keeping = group
        .store()
        .keep(name, owner, group.settings.lease, &held, group.now());
    // In real time, which the store answers in: a connection that went silent must not keep the instance from coming back.
    let Ok(tenure) = tokio::time::timeout(group.settings.lease, keeping).await else {
        let silent = "no answer within the lease";
        return Err(StoreError::new(
            StoreErrorKind::Unreachable,
            "renewing the lease",
            silent,
        ));
    };
    let tenure = tenure?;
    // From before the database's clock was read. Where one transaction writes at a time, the turn may come late in a lease:
    // counted from the asking, handlers would be dropped that have all the time they are allowed.
    let counted_from = begun + tenure.waited.min(group.process.clock.now() - begun);
    let was_paused = group.lanes().paused;
    // Before anything of them can be sent.
    if let Some(relay) = group.relay.as_ref().filter(|_| !tenure.taken.is_empty()) {
        relay.distrust();
    }
    let lost = {
        let mut lanes = group.lanes();
        lanes.rejoined = forgotten;
        lanes.apply(&tenure, group.settings.poison == Poison::Block)
    };
    // Somebody else has owned them since, and the log may have another identity.
    if let Some(relay) = group.relay.as_ref().filter(|_| !lost.is_empty()) {
        relay.distrust();
    }
    // After the lanes: whoever is woken by it looks whether its own are still there.
    group.lease_until.send_replace(counted_from + group.settings.lease);
    for lane in lost {
        tracing::warn!(consumer = %group.name(), %lane, "the lane is owned by somebody else now; its work is dropped");
    }
    for taken in &tenure.taken {
        count(&group.meter.counters.taken, 1);
        tracing::debug!(consumer = %group.name(), lane = %taken.cursor.lane, epoch = %taken.cursor.epoch,
            position = %taken.position, batch_end = %taken.batch_end, former = ?taken.former, "took a lane");
    }
    if tenure.dropped {
        group.note_trouble(
            "the consumer was dropped",
            &"register it again by starting the service anew",
        );
    }
    if !tenure.taken.is_empty() || tenure.paused != was_paused {
        group.changed.notify_waiters();
        group.held.notify_one();
    }
    Ok(counted_from)
}

/// Lanes above the share leave one at a time as they fall idle; nothing is taken from an instance that works on it.
async fn release_surplus<S: Backend>(group: &Group<S>) {
    let surplus = group.lanes().surplus();
    if surplus.is_empty() {
        return;
    }
    if let Err(error) = group
        .store()
        .release(group.name(), &group.process.owner, &surplus, false)
        .await
    {
        // They are owned in the tables and unknown here: the next keep takes them anew.
        group.note_trouble("cannot hand lanes over", &error);
    }
}

async fn leave<S: Backend>(group: &Group<S>) {
    let cursors = group.lanes().cursors();
    group.lanes().clear();
    let left = group
        .store()
        .release(group.name(), &group.process.owner, &cursors, true);
    match tokio::time::timeout(Duration::from_secs(5), left).await {
        Ok(Ok(())) => tracing::debug!(consumer = %group.name(), lanes = cursors.len(), "handed lanes over"),
        Ok(Err(error)) => group.note_trouble("cannot hand lanes over; they are free when the lease ends", &error),
        Err(_) => group.note_trouble("cannot hand lanes over in time", &"they are free when the lease ends"),
    }
}
