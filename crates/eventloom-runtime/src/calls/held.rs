//! Held messages of a consumer of mode effect, called again one by one: claimed in a transaction, called without one, and
//! removed in another.

use super::{call, refused, succeeded};
use crate::{
    batch::{Item, Trouble},
    drain,
    group::{Group, count},
    results,
    time_limit::ports::*,
    worker::{Stopped, stopped},
};
use eventloom_core::{
    NewEvent, faults,
    ports::{Backend, Cursor, EffectClaim, EffectRequest, Transaction},
};

/// Held messages of one key, in order. `false`: one failed, and what follows it waits.
pub(crate) async fn drain<S: Backend>(group: &Group<S>, items: &[Item]) -> Result<bool, Stopped> {
    for item in items {
        let claim = claim_held(group, item).await.map_err(stopped)?;
        let (called, _place) = match claim {
            EffectClaim::Handled => (Ok(None), None),
            EffectClaim::InProgress => return Err(Stopped::Later),
            EffectClaim::Call { again } => {
                let place = group.calls.begin().await;
                (call(group, item, again).await.map(Some), Some(place))
            }
        };
        match called {
            Ok(result) => match settle_held(group, item, result).await {
                Err(Trouble::Somebody(error)) => {
                    count(&group.meter.counters.failures, 1);
                    return drain::failed_again(group, item, refused(&error)).await;
                }
                settled => settled.map_err(stopped)?,
            },
            Err(failed) => {
                count(&group.meter.counters.failures, 1);
                return drain::failed_again(group, item, failed).await;
            }
        }
    }
    Ok(true)
}

async fn claim_held<S: Backend>(group: &Group<S>, item: &Item) -> Result<EffectClaim, Trouble> {
    let store = group.store();
    faults::point("drain.before_mark");
    let mut tx = store.begin(group.scope()).await?;
    drain::mark(group, &mut tx, std::slice::from_ref(item), item.cursor.epoch).await?;
    let request = EffectRequest {
        id: item.id(),
        cursor: item.cursor,
    };
    let claims = store
        .claim_effects(&mut tx, group.name(), &[request], group.now())
        .await?;
    store.fence(&mut tx, group.name(), &[item.cursor]).await?;
    tx.commit().await?;
    faults::point("drain.after_mark");
    Ok(claims.first().copied().unwrap_or(EffectClaim::InProgress))
}

async fn settle_held<S: Backend>(
    group: &Group<S>,
    item: &Item,
    called: Option<Option<(String, Vec<NewEvent>)>>,
) -> Result<(), Trouble> {
    let store = group.store();
    let cursor: Cursor = item.cursor;
    let mut tx = store.begin(group.scope()).await?;
    if let Some(answer) = &called {
        let (result, outgoing) = answer
            .as_ref()
            .map_or(("null", &[][..]), |(result, outgoing)| (result, outgoing));
        store
            .finish_effects(&mut tx, group.name(), &[(item.id(), result)], group.now())
            .await?;
        if !outgoing.is_empty() {
            results::append(group, &mut tx, outgoing).await?;
        }
    }
    faults::point("drain.before_remove");
    drain::remove(group, &mut tx, std::slice::from_ref(item)).await?;
    store.fence(&mut tx, group.name(), &[cursor]).await?;
    faults::point("drain.before_commit");
    tx.commit().await?;
    faults::point("drain.after_commit");
    if let Some(answer) = called {
        succeeded(group, item, answer.is_some());
    }
    Ok(())
}
