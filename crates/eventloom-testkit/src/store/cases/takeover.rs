//! Lanes of an owner whose lease is over go to who lives, with a raised epoch and the news of what was being done.

use super::keep::{OVER, lanes, pair, sound};
use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, consumer, message, waiting},
};
use eventloom_core::{
    Lane, Position,
    ports::{Backend, Held as _, Leases as _, LetGo},
};

pub(super) async fn a_live_owner_keeps_its_lanes<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    for at_second in [0, 1, OVER - 1] {
        let tenure = second.keep(at(at_second)).await?;
        same(&format!("lanes of the other at {at_second} s"), tenure.owned.len(), 0)?;
    }
    let tenure = first.keep(at(OVER - 1)).await?;
    same(
        "lanes of the owner, lanes it took",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 0),
    )
}

pub(super) async fn lanes_of_the_expired_are_taken<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    let tenure = second.keep(at(OVER + 1)).await?;
    sound(&tenure)?;
    same("members, share", (tenure.members, tenure.share), (1, 64))?;
    same(
        "lanes owned, lanes taken",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 64),
    )?;
    let before = first.epochs();
    for taken in &tenure.taken {
        let lane = taken.cursor.lane;
        same(
            &format!("former owner of lane {lane}"),
            taken.former.as_deref(),
            Some(first.owner.as_str()),
        )?;
        holds(
            "its epoch was raised",
            taken.cursor.epoch > before[&lane],
            (lane, &taken.cursor, &before[&lane]),
        )?;
    }
    let lost = first.keep(at(OVER + 1)).await?;
    same(
        "lanes of the one that came back, members, share",
        (lost.owned.len(), lost.members, lost.share),
        (0, 2, 32),
    )
}

pub(super) async fn a_lapsed_lease_is_not_revived<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, _) = pair(fixture).await?;
    let before = first.epochs();
    let tenure = first.keep(at(OVER + 1)).await?;
    sound(&tenure)?;
    same("members", tenure.members, 1)?;
    same(
        "lanes owned, lanes taken anew",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 64),
    )?;
    for taken in &tenure.taken {
        let lane = taken.cursor.lane;
        holds(
            "its epoch was raised",
            taken.cursor.epoch > before[&lane],
            (lane, &taken.cursor, &before[&lane]),
        )?;
    }
    let renewed = first.keep(at(OVER + 2)).await?;
    same("lanes taken by the next renewal", renewed.taken.len(), 0)
}

/// The other one joined in time, so the one that slept comes back to a part.
pub(super) async fn who_lapsed_comes_back_to_its_share<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    second.keep(at(OVER - 2)).await?;
    let before = first.epochs();
    let back = first.keep(at(OVER + 1)).await?;
    sound(&back)?;
    same("members, share", (back.members, back.share), (2, 32))?;
    same("lanes taken anew are all it owns", back.taken.len(), back.owned.len())?;
    let raised = back.owned.iter().all(|cursor| cursor.epoch > before[&cursor.lane]);
    holds("each epoch was raised", raised, &back.owned)?;
    let other = second.keep(at(OVER + 1)).await?;
    sound(&other)?;
    holds(
        "no lane has two owners",
        lanes(&back.owned).is_disjoint(&lanes(&other.owned)),
        (&back.owned, &other.owned),
    )?;
    same("lanes with an owner", back.owned.len() + other.owned.len(), 64)
}

pub(super) async fn a_lane_it_does_not_know_of_is_taken_anew<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, _) = pair(fixture).await?;
    let before = first.epochs();
    let forgotten = [first.held.remove(40), first.held.remove(7)];
    let tenure = first.keep(at(1)).await?;
    sound(&tenure)?;
    same("lanes owned", tenure.owned.len(), 64)?;
    let taken: Vec<Lane> = tenure.taken.iter().map(|taken| taken.cursor.lane).collect();
    same("lanes taken", taken, [Lane(7), Lane(40)])?;
    for (lane, epoch) in first.epochs() {
        let raised = epoch > before[&lane];
        same(
            &format!("epoch of lane {lane} was raised"),
            raised,
            lanes(&forgotten).contains(&lane),
        )?;
    }
    Ok(())
}

/// The answer to its first call was lost.
pub(super) async fn all_are_taken_anew_by_who_knows_of_none<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, _) = pair(fixture).await?;
    let before = first.epochs();
    first.held.clear();
    let tenure = first.keep(at(1)).await?;
    same(
        "lanes owned, lanes taken",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 64),
    )?;
    let raised = tenure.owned.iter().all(|cursor| cursor.epoch > before[&cursor.lane]);
    holds("each epoch was raised", raised, &tenure.owned)?;
    holds(
        "nobody was cut off",
        tenure.taken.iter().all(|taken| taken.former.is_none()),
        &tenure.taken,
    )
}

pub(super) async fn what_was_being_done_is_told<F: Fixture>(fixture: &F) -> Outcome {
    let (first, mut second) = pair(fixture).await?;
    let marked = first.cursor(Lane(9))?;
    let mark = [(marked, Position(77))];
    first
        .commit(async |connection| first.store.mark(connection, &first.reader, &mark).await)
        .await?;
    let tenure = second.keep(at(OVER + 1)).await?;
    for taken in &tenure.taken {
        let wanted = if taken.cursor.lane == marked.lane {
            Position(77)
        } else {
            taken.position
        };
        same(
            &format!("batch end of lane {}", taken.cursor.lane),
            taken.batch_end.max(taken.position),
            wanted,
        )?;
    }
    Ok(())
}

async fn lanes_that_hold<S: Backend>(instance: &mut Instance<S>, second: i64) -> Result<Vec<Lane>, Failed> {
    let tenure = instance.keep(at(second)).await?;
    same("lanes taken", tenure.taken.len(), 64)?;
    Ok(tenure
        .taken
        .iter()
        .filter(|taken| taken.holds)
        .map(|taken| taken.cursor.lane)
        .collect())
}

pub(super) async fn what_is_held_is_told<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    let (keyed, alone) = (message(Some("a"), 1), message(None, 2));
    first.hold(&[waiting(&keyed, 5), waiting(&alone, 5)]).await?;
    let mailer = consumer("mailer")?;
    first
        .commit(async |connection| first.store.lock_key(connection, &mailer, "b", Lane(1)).await)
        .await?;
    let mut wanted = [keyed.lane, alone.lane];
    wanted.sort();
    same("lanes that hold", lanes_that_hold(&mut second, OVER + 1).await?, wanted)?;
    second.remove(&["m-1"]).await?;
    same(
        "a key without messages still holds",
        lanes_that_hold(&mut first, 3 * OVER).await?,
        wanted,
    )?;
    first.remove(&["m-2"]).await?;
    same("letting go", first.let_go("a", at(3 * OVER)).await?, LetGo::Free)?;
    same(
        "lanes that hold when all is done",
        lanes_that_hold(&mut second, 5 * OVER).await?,
        Vec::<Lane>::new(),
    )
}
