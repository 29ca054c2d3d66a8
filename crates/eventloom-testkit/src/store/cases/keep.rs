//! Lanes are shared evenly among live instances, and handed over at once.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::{Instance, LEASE},
    sample::{at, events, read_all},
};
use eventloom_core::{
    Lane,
    ports::{Cursor, Leases as _, Start, Store as _, Tenure},
};
use futures::future::join_all;
use std::collections::BTreeSet;

/// The second at which a lease of second 0 is over.
pub(super) const OVER: i64 = LEASE.as_secs() as i64;

/// Two instances of one reader, in two processes; the first owns all lanes, the second has not joined.
pub(super) async fn pair<F: Fixture>(fixture: &F) -> Result<(Instance<F::Store>, Instance<F::Store>), Failed> {
    let store = fixture.fresh().await;
    let first = Instance::alone(&store, "billing").await?;
    let second = Instance::new(&fixture.again(&store).await, "billing")?;
    Ok((first, second))
}

pub(super) fn lanes(cursors: &[Cursor]) -> BTreeSet<Lane> {
    cursors.iter().map(|cursor| cursor.lane).collect()
}

/// What holds for every answer: lanes once, taken ones among the owned.
pub(super) fn sound(tenure: &Tenure) -> Outcome {
    same("lanes owned, each once", lanes(&tenure.owned).len(), tenure.owned.len())?;
    let taken = tenure.taken.iter().all(|taken| tenure.owned.contains(&taken.cursor));
    holds("what is taken is owned", taken, (&tenure.owned, &tenure.taken))?;
    holds(
        "share is the even part, rounded up",
        tenure.share == 64_usize.div_ceil(tenure.members),
        tenure,
    )
}

pub(super) async fn the_first_takes_all<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut first = Instance::new(&store, "billing")?;
    first.append(&events(&["a", "b"])).await?;
    let place = read_all(&store).await?[0].position;
    store.register(&first.reader, Start::After(place), at(0)).await?;
    let tenure = first.keep(at(0)).await?;
    sound(&tenure)?;
    same("members, share", (tenure.members, tenure.share), (1, 64))?;
    same(
        "owned lanes",
        lanes(&tenure.owned),
        store.lanes().all().collect::<BTreeSet<_>>(),
    )?;
    same("lanes taken", tenure.taken.len(), 64)?;
    same("paused, dropped", (tenure.paused, tenure.dropped), (false, false))?;
    for taken in &tenure.taken {
        let facts = (taken.position, taken.batch_end <= place, taken.holds, &taken.former);
        same(
            &format!("lane {} that nobody had", taken.cursor.lane),
            facts,
            (place, true, false, &None),
        )?;
    }
    Ok(())
}

pub(super) async fn a_renewal_takes_nothing_anew<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, _) = pair(fixture).await?;
    let epochs = first.epochs();
    for second in [1, 5, OVER + 4, OVER + 13] {
        let tenure = first.keep(at(second)).await?;
        sound(&tenure)?;
        same(&format!("lanes taken at {second} s"), tenure.taken.len(), 0)?;
        same(&format!("epochs at {second} s"), first.epochs(), epochs.clone())?;
    }
    Ok(())
}

pub(super) async fn two_share<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    let joined = second.keep(at(1)).await?;
    sound(&joined)?;
    same(
        "members, share, lanes of the newcomer",
        (joined.members, joined.share, joined.owned.len()),
        (2, 32, 0),
    )?;
    let told = first.keep(at(2)).await?;
    same(
        "members, share, lanes of the first",
        (told.members, told.share, told.owned.len()),
        (2, 32, 64),
    )?;
    let given = first.held[32..].to_vec();
    first.release(&given, false).await?;
    let tenure = second.keep(at(2)).await?;
    sound(&tenure)?;
    same("lanes that were handed over", lanes(&tenure.owned), lanes(&given))?;
    let former: Vec<&String> = tenure.taken.iter().filter_map(|taken| taken.former.as_ref()).collect();
    same("former owners that did not hand over", former, Vec::<&String>::new())?;
    let raised = given.iter().all(|old| {
        tenure
            .owned
            .iter()
            .any(|new| new.lane == old.lane && new.epoch > old.epoch)
    });
    holds("each epoch was raised", raised, (&given, &tenure.owned))?;
    let kept = first.keep(at(3)).await?;
    same(
        "lanes of the first, lanes it took",
        (kept.owned.len(), kept.taken.len()),
        (32, 0),
    )
}

pub(super) async fn three_share<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    let mut third = Instance::new(&first.store, "billing")?;
    second.keep(at(1)).await?;
    third.keep(at(1)).await?;
    for _ in 0..3 {
        for instance in [&mut first, &mut second, &mut third] {
            let tenure = instance.keep(at(2)).await?;
            sound(&tenure)?;
            same("members, share", (tenure.members, tenure.share), (3, 22))?;
            let surplus = tenure.owned[tenure.share.min(tenure.owned.len())..].to_vec();
            instance.release(&surplus, false).await?;
        }
    }
    let mut owned: Vec<usize> = [&first, &second, &third].map(|instance| instance.held.len()).into();
    owned.sort_unstable();
    same("lanes of each", owned, [20, 22, 22])?;
    let all: BTreeSet<Lane> = [&first, &second, &third]
        .into_iter()
        .flat_map(|instance| lanes(&instance.held))
        .collect();
    same("lanes with an owner", all.len(), 64)
}

/// All start at the same moment, in two processes.
pub(super) async fn many_at_once_share<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    let mut all = Vec::new();
    for number in 0..6 {
        all.push(Instance::new(if number % 2 == 0 { &store } else { &other }, "billing")?);
    }
    store.register(&all[0].reader, Start::Earliest, at(0)).await?;
    for second in 1..4 {
        for tenure in join_all(all.iter_mut().map(|instance| instance.keep(at(second)))).await {
            let tenure = tenure?;
            same("lanes owned, each once", lanes(&tenure.owned).len(), tenure.owned.len())?;
        }
        let owned: Vec<Lane> = all.iter().flat_map(|instance| lanes(&instance.held)).collect();
        same(
            "no lane has two owners",
            owned.iter().collect::<BTreeSet<_>>().len(),
            owned.len(),
        )?;
        for instance in &mut all {
            let surplus = instance.held[instance.held.len().min(11)..].to_vec();
            instance.release(&surplus, false).await?;
        }
    }
    for instance in &mut all {
        instance.keep(at(4)).await?;
    }
    let mut owned: Vec<usize> = all.iter().map(|instance| instance.held.len()).collect();
    owned.sort_unstable();
    same("lanes of each", owned, [9, 11, 11, 11, 11, 11])
}

pub(super) async fn readers_do_not_share<F: Fixture>(fixture: &F) -> Outcome {
    let (first, _) = pair(fixture).await?;
    let mailer = Instance::alone(&first.store, "mailer").await?;
    same(
        "lanes of one reader, and of another",
        (first.held.len(), mailer.held.len()),
        (64, 64),
    )
}

pub(super) async fn leaving_hands_over_at_once<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    second.keep(at(1)).await?;
    let all = first.held.clone();
    first.release(&all, true).await?;
    let tenure = second.keep(at(1)).await?;
    sound(&tenure)?;
    same("members, lanes", (tenure.members, tenure.owned.len()), (1, 64))?;
    holds(
        "nobody was cut off",
        tenure.taken.iter().all(|taken| taken.former.is_none()),
        &tenure.taken,
    )
}

pub(super) async fn leaving_ends_the_lease_of_all_lanes<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    second.keep(at(1)).await?;
    first.release(&[], true).await?;
    let tenure = second.keep(at(1)).await?;
    same("members, lanes", (tenure.members, tenure.owned.len()), (1, 64))
}

pub(super) async fn releasing_what_is_lost_does_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    second.keep(at(OVER + 1)).await?;
    let lost = first.held.clone();
    first.release(&lost, false).await?;
    let tenure = second.keep(at(OVER + 1)).await?;
    same(
        "lanes of the new owner, lanes it took again",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 0),
    )
}

/// A release that comes late, after its lane was taken anew: it speaks of another tenure.
pub(super) async fn a_late_release_does_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let (mut first, mut second) = pair(fixture).await?;
    let old = first.held.clone();
    first.keep(at(OVER + 1)).await?;
    first.store.release(&first.reader, &first.owner, &old, false).await?;
    same("lanes of the other", second.keep(at(OVER + 1)).await?.owned.len(), 0)?;
    let tenure = first.keep(at(OVER + 1)).await?;
    same(
        "lanes owned, lanes taken anew",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 0),
    )
}

pub(super) async fn a_reader_that_is_not_there_is_dropped<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let tenure = Instance::new(&store, "nobody")?.keep(at(0)).await?;
    same("dropped, lanes", (tenure.dropped, tenure.owned.len()), (true, 0))
}
