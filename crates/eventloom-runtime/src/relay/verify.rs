//! Before anything is sent: whether source and broker remember the same. One that was restored from a backup does not, and
//! going on would skip messages silently.
//!
//! Other instances go on while this one looks, so marks only grow between the statements: the source is read before and
//! after the broker, and each comparison takes the reading that makes a false alarm impossible.

use super::outlet::AnyProducer;
use crate::{group::Group, time_limit::ports::*};
use eventloom_core::{
    Position, StoreError, Uuid, chain,
    ports::{Backend, BrokerError, LaneSent, Mark, ReadError, ReadLimits, Relays as _, Source},
};
use std::collections::HashMap;

/// Why nothing may be sent.
#[derive(Debug)]
pub(super) enum Unverified {
    /// Somebody has to look.
    Alarm(String),
    Store(StoreError),
    Broker(BrokerError),
}

impl From<StoreError> for Unverified {
    fn from(error: StoreError) -> Self {
        Unverified::Store(error)
    }
}

/// Compares what the source and the broker remember of each other. Returns how far the broker has confirmed each lane: a
/// broker that keeps no marks is not asked again for that.
pub(super) async fn verify<S: Backend>(
    group: &Group<S>,
    source: &Source,
    place: &str,
    producer: &mut dyn AnyProducer,
) -> Result<Vec<LaneSent>, Unverified> {
    let store = group.store();
    let before = store.relay_standing(group.name()).await?;
    let Some(marks) = producer.marks().await.map_err(Unverified::Broker)? else {
        return Ok(Vec::new());
    };
    if eventloom_core::faults::defect("relay_marks_ignored") {
        return Ok(Vec::new());
    }
    if marks.broker == source.log {
        return Err(Unverified::Alarm(format!(
            "{place} is the database that is relayed from; its consumers follow it without a relay"
        )));
    }
    let known = match before.broker {
        Some(known) => known,
        None => store.remember_broker(group.name(), marks.broker).await?,
    };
    if known != marks.broker {
        return Err(Unverified::Alarm(another(
            group.name().as_str(),
            place,
            known,
            marks.broker,
        )));
    }
    let marked: HashMap<_, &Mark> = marks.lanes.iter().map(|mark| (mark.lane, mark)).collect();
    for sent in &before.lanes {
        let arrived = marked.get(&sent.lane).map(|mark| mark.position);
        if sent.confirmed > arrived {
            return Err(Unverified::Alarm(lost(group.name().as_str(), place, sent, arrived)));
        }
    }
    let after = store.relay_standing(group.name()).await?;
    let now: HashMap<_, &LaneSent> = after.lanes.iter().map(|sent| (sent.lane, sent)).collect();
    for mark in &marks.lanes {
        let Some(sent) = now.get(&mark.lane) else { continue };
        if mark.epoch > sent.epoch {
            let why = format!(
                "it has seen epoch {} of lane {}, which stands at {} here",
                mark.epoch, mark.lane, sent.epoch
            );
            return Err(Unverified::Alarm(went_back(group.name().as_str(), place, &why)));
        }
        if sent.confirmed < Some(mark.position)
            && let Some(why) = other_message(group, mark).await?
        {
            return Err(Unverified::Alarm(went_back(group.name().as_str(), place, &why)));
        }
    }
    Ok(before.lanes)
}

/// What is wrong when the message at a mark is not the one that the broker has. One that was pruned cannot be compared, and
/// then every reader has passed it.
async fn other_message<S: Backend>(group: &Group<S>, mark: &Mark) -> Result<Option<String>, Unverified> {
    let before = Position(mark.position.0 - 1);
    let limits = ReadLimits::default().rows_max(1).payload_each_max(Some(0));
    let page = match group.store().read_lane(mark.lane, before, mark.position, limits).await {
        Ok(page) => page,
        Err(ReadError::Pruned { .. }) => return Ok(None),
        Err(ReadError::Store(error)) => return Err(error.into()),
        Err(error) => return Err(Unverified::Alarm(chain(&error).to_string())),
    };
    let here = page.rows.first().map(|row| row.envelope.id.as_str());
    Ok((here != Some(mark.id.as_str())).then(|| {
        let here = here.unwrap_or("nothing");
        format!(
            "it has message {} of position {}, where {here} stands here",
            mark.id, mark.position
        )
    }))
}

fn another(relay: &str, place: &str, known: Uuid, found: Uuid) -> String {
    format!(
        "{place} is another broker than the one that relay {relay:?} has sent to ({found} instead of {known}): it was \
         replaced, or restored under a new identity. Decide from where it is to be sent again, then: eventloom consumer \
         reset {relay} --to <earliest|latest|position|time>"
    )
}

fn lost(relay: &str, place: &str, sent: &LaneSent, arrived: Option<Position>) -> String {
    let confirmed = sent.confirmed.unwrap_or_default();
    let arrived = arrived.map_or("nothing".to_owned(), |arrived| format!("position {arrived} at most"));
    format!(
        "{place} has lost messages that it had confirmed: lane {} was confirmed up to position {confirmed}, and it has \
         {arrived}. It was restored from a backup. Send them again with: eventloom consumer reset {relay} --to earliest",
        sent.lane
    )
}

fn went_back(relay: &str, place: &str, why: &str) -> String {
    format!(
        "this database has gone back behind {place}: {why}. It was restored from a backup, or another copy of it is \
         relayed. Give it a new identity with: eventloom migrate --promoted; then relay {relay:?} goes on with what is new"
    )
}
