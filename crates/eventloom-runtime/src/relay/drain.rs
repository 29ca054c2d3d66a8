//! Held messages of a relay, sent again when their time has come.

use super::{batch::outgoing, sender::send};
use crate::{
    batch::{Item, Trouble},
    drain,
    failure::Failed,
    group::{Group, count},
    relay::State,
    time_limit::ports::*,
    worker::{Stopped, stopped},
};
use eventloom_core::{
    faults,
    ports::{Backend, Fate, Outgoing, Transaction},
};
use std::time::Duration;

/// How long a message waits at least whose topic or broker takes nothing.
const LATER: Duration = Duration::from_millis(200);

/// Sends messages of one key, in order. `false`: one was not accepted, and what follows it waits.
pub(crate) async fn drain<S: Backend>(group: &Group<S>, relay: &State, items: &[Item]) -> Result<bool, Stopped> {
    let messages: Vec<Outgoing> = items.iter().map(outgoing).collect();
    let (fates, blamed) = match send(group, relay, &messages).await {
        Ok(sent) => (sent.fates, sent.blamed),
        Err(Stopped::Broker) => {
            let wait = relay.probe_in().unwrap_or_default();
            put_off(group, &items[0], wait).await.map_err(stopped)?;
            return Err(Stopped::Outage);
        }
        Err(stopped) => return Err(stopped),
    };
    let confirmed = fates.iter().take_while(|fate| **fate == Fate::Confirmed).count();
    if confirmed > 0 {
        remove(group, &items[..confirmed]).await.map_err(stopped)?;
    }
    let Some((item, fate)) = items.iter().zip(fates).nth(confirmed) else {
        return Ok(true);
    };
    match fate {
        Fate::Fenced => return Err(Stopped::InDoubt),
        Fate::Refused(why) => {
            drain::fail(group, item, &Failed::permanent(why))
                .await
                .map_err(stopped)?;
        }
        Fate::Unknown(why) if blamed.contains(&confirmed) => {
            drain::fail(group, item, &Failed::transient(why))
                .await
                .map_err(stopped)?;
        }
        // The broker is to blame, and its outage burns no attempt.
        Fate::Unknown(_) | Fate::Lost => {
            let wait = relay.probe_in().unwrap_or_default();
            put_off(group, item, wait).await.map_err(stopped)?;
        }
        // Nothing is said of the one ahead of it, so it is not to blame.
        Fate::Blocked(_) | Fate::Behind | Fate::Confirmed => {
            let topic = relay
                .topics()
                .get(&item.row.envelope.topic)
                .and_then(|topic| topic.probe_in(relay.now()));
            put_off(group, item, topic.unwrap_or_default()).await.map_err(stopped)?;
        }
    }
    Ok(false)
}

async fn remove<S: Backend>(group: &Group<S>, items: &[Item]) -> Result<(), Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    faults::point("drain.before_remove");
    drain::remove(group, &mut tx, items).await?;
    store.fence(&mut tx, group.name(), &[items[0].cursor]).await?;
    faults::point("drain.before_commit");
    tx.commit().await?;
    faults::point("drain.after_commit");
    count(&group.meter.counters.handled, items.len());
    Ok(())
}

async fn put_off<S: Backend>(group: &Group<S>, item: &Item, wait: Duration) -> Result<(), Trouble> {
    let store = group.store();
    let mut tx = store.begin(group.scope()).await?;
    let due_in = wait.max(LATER);
    store
        .put_off(&mut tx, group.name(), &[item.id()], due_in, group.now())
        .await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    Ok(())
}
