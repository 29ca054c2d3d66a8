//! What a service has left to do, for those who wait until it has nothing.

use crate::{
    group::{Group, Process},
    lanes::LanesLeft,
    time_limit::ports::*,
};
use eventloom_core::{
    Position,
    ports::{Backend, ReadError},
};
use std::{sync::PoisonError, time::Duration};

/// What a consumer or a relay has left to do, at a moment.
///
/// ```
/// use eventloom_core::ports::{Backend, ReadError};
/// use eventloom_runtime::Service;
///
/// async fn is_idle<S: Backend>(service: &Service<S>) -> Result<bool, ReadError> {
///     Ok(service.outstanding().await?.iter().all(|left| left.working.is_empty()))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outstanding {
    /// The consumer's or relay's name.
    pub consumer: String,
    /// What it does now, for people. Nothing: it is idle until somebody commits something or its clock moves on.
    pub working: Vec<String>,
    /// What it waits for, and how long until then on its clock: a message that is due, a probe, a renewal that failed.
    pub waiting: Option<(Duration, String)>,
}

/// Of all consumers. What they do is looked at twice, around the log and what is due: work that ran in between has begun
/// anew, and may have left more to do.
pub(crate) async fn of<S: Backend>(
    process: &Process<S>,
    groups: &[impl AsRef<Group<S>>],
) -> Result<Vec<Outstanding>, ReadError> {
    let groups: Vec<&Group<S>> = groups.iter().map(AsRef::as_ref).collect();
    let before: Vec<LanesLeft> = groups.iter().map(|group| group.lanes().left()).collect();
    let horizon = process.store.horizon().await?;
    let mut dues = Vec::new();
    for group in &groups {
        dues.push(due(group).await?);
    }
    let after: Vec<LanesLeft> = groups.iter().map(|group| group.lanes().left()).collect();
    // One consumer's work is another one's message.
    let moved = before != after;
    let all = groups.iter().zip(after).zip(dues);
    Ok(all
        .map(|((group, left), due)| {
            let mut outstanding = look(group, &left, due, horizon.handed_out);
            if moved && outstanding.working.is_empty() {
                outstanding
                    .working
                    .push("work went on while it was looked at".to_owned());
            }
            if !outstanding.working.is_empty() {
                // Whoever looks again only later looks now: on a virtual clock nobody else would wake them.
                group.changed.notify_waiters();
                group.held.notify_one();
            }
            outstanding
        })
        .collect())
}

/// Whether a held message is due, and how long until the next one is.
#[derive(Debug, Clone, Copy)]
struct Due {
    now: bool,
    next: Option<Duration>,
}

async fn due<S: Backend>(group: &Group<S>) -> Result<Due, ReadError> {
    let (lanes, stopped) = {
        let lanes = group.lanes();
        (lanes.holding(), lanes.paused || lanes.dropped)
    };
    if lanes.is_empty() || stopped {
        return Ok(Due { now: false, next: None });
    }
    let (due, next) = group.store().due(group.name(), &lanes, 1, group.now()).await?;
    Ok(Due {
        now: !due.is_empty(),
        next,
    })
}

fn look<S: Backend>(group: &Group<S>, left: &LanesLeft, due: Due, head: Position) -> Outstanding {
    let now = group.process.clock.now();
    let mut working = Vec::new();
    let mut waits: Vec<(Duration, String)> = Vec::new();
    let renews_at = *group.renews_at.lock().unwrap_or_else(PoisonError::into_inner);
    match renews_at {
        Some(at) => waits.push((at.saturating_duration_since(now), "the lease to be renewed".to_owned())),
        None if *group.lease_until.borrow() <= now => working.push("takes its lease".to_owned()),
        None if left.rejoins => working.push("takes lanes anew".to_owned()),
        None => {}
    }
    // An alarm and a probe that is not due keep everything from being begun.
    let probe_in = group.probe_in().filter(|wait| !wait.is_zero());
    let alarmed = group.relay.as_ref().is_some_and(|relay| relay.alarm().is_some());
    let ready = left.queued - left.resting;
    let blocked_by_probe = (ready > 0 || due.now) && probe_in.is_some();
    if left.busy > 0 {
        working.push(format!("works on {} lanes", left.busy));
    }
    if probe_in.is_none() && ready > 0 {
        working.push(format!("{ready} messages are to be handled"));
    }
    if probe_in.is_none() && due.now {
        working.push("a held message is due".to_owned());
    }
    if left.unswept > 0 && probe_in.is_none() {
        working.push(format!("held keys of {} lanes are to be looked at", left.unswept));
    }
    if let Some(fetched) = left.fetched
        && fetched < head
        && left.queued == 0
    {
        working.push(format!("has read the log up to {fetched} of {head}"));
    }
    if let Some(wait) = probe_in
        && blocked_by_probe
        && !alarmed
    {
        waits.push((wait, "a probe whether its outage is over".to_owned()));
    }
    if let Some(next) = due.next.filter(|next| !next.is_zero()) {
        waits.push((next, "a held message to be due".to_owned()));
    }
    if let Some(until) = left.rests_until {
        let wait = until.saturating_duration_since(now);
        match wait.is_zero() {
            true => working.push("a lane's rest is over".to_owned()),
            false => waits.push((wait, "room for held messages".to_owned())),
        }
    }
    Outstanding {
        consumer: group.name().to_string(),
        working,
        waiting: waits.into_iter().min(),
    }
}
