//! Operators pause readers, drop them, and put them elsewhere.

use crate::store::{
    check::{Failed, Outcome, holds, refused, same},
    fixture::Fixture,
    instance::Instance,
    sample::{at, consumer, events, in_hours, message, positions, read_all, waiting},
};
use eventloom_core::{
    Lane, OffsetDateTime, Position,
    ports::{
        Backend, Claim, Cursor, DeadLetters as _, FenceError, Held as _, Leases as _, LetterFilter, Log as _, Move,
        Readers as _, RegisterError, Start, Transaction as _,
    },
};
use std::{collections::BTreeSet, time::Duration};

async fn places<S: Backend>(of: &Instance<S>) -> Result<BTreeSet<Position>, Failed> {
    Ok(of.stand().await?.into_values().collect())
}

async fn claim<S: Backend>(of: &Instance<S>, id: &str) -> Result<Vec<Claim>, Failed> {
    of.commit(async |connection| of.store.claim(connection, &of.reader, &[id], at(0)).await)
        .await
}

pub(super) async fn a_paused_reader_keeps_its_lanes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut billing = Instance::alone(&store, "billing").await?;
    same(
        "one that is not there",
        store.pause(&consumer("nobody")?, true).await?,
        false,
    )?;
    for paused in [true, true, false] {
        same("it is there", store.pause(&billing.reader, paused).await?, true)?;
        same("its status", billing.status(at(1)).await?.paused, paused)?;
        let tenure = billing.keep(at(1)).await?;
        same("its owner is told", tenure.paused, paused)?;
        same(
            "lanes owned, lanes taken",
            (tenure.owned.len(), tenure.taken.len()),
            (64, 0),
        )?;
    }
    store.pause(&billing.reader, true).await?;
    billing.advance_to(&billing.held, Position(5)).await?;
    same(
        "running work is finished",
        places(&billing).await?,
        BTreeSet::from([Position(5)]),
    )
}

pub(super) async fn a_dropped_reader_leaves_nothing<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let mut billing = Instance::alone(&store, "billing").await?;
    let mailer = Instance::alone(&store, "mailer").await?;
    let one = message(Some("a"), 1);
    for reader in [&billing, &mailer] {
        reader.hold(&[waiting(&one, 9)]).await?;
        same("its claim", claim(reader, "m-0").await?, [Claim::New])?;
        let counted = reader
            .commit(async |connection| store.count_attempt(connection, &reader.reader, "m-2").await)
            .await?;
        same("its attempts", counted, 1)?;
    }
    let lane = billing.cursor(Lane(1))?;
    same("it was there", store.drop_reader(&billing.reader).await?, true)?;
    same("it is gone", store.drop_reader(&billing.reader).await?, false)?;
    let mut open = billing.begin().await?;
    let fenced = store.fence(&mut open, &billing.reader, &[lane]).await;
    open.rollback().await?;
    refused("its instances are fenced", fenced, |error| {
        matches!(error, FenceError::Fenced)
    })?;
    let tenure = billing.keep(at(1)).await?;
    same(
        "its instances are told",
        (tenure.dropped, tenure.owned.len()),
        (true, 0),
    )?;
    let names: Vec<String> = store
        .readers(at(1))
        .await?
        .into_iter()
        .map(|status| status.name)
        .collect();
    same("readers", names, ["mailer"])?;
    let letters = store.letters(&LetterFilter::default()).await?;
    same(
        "held messages",
        letters.into_iter().map(|letter| letter.consumer).collect::<Vec<_>>(),
        ["mailer"],
    )?;
    same("its key", billing.holds_key("a").await?, false)?;
    same("another's key", mailer.holds_key("a").await?, true)?;
    same("another's lanes", mailer.stand().await?.len(), 64)?;
    same("another's claim", claim(&mailer, "m-0").await?, [Claim::Handled])?;
    let registered = store.register(&billing.reader, Start::Earliest, at(2)).await?;
    same("registered again", registered.created, true)?;
    same("what it had handled", claim(&billing, "m-0").await?, [Claim::New])?;
    let counted = billing
        .commit(async |connection| store.count_attempt(connection, &billing.reader, "m-2").await)
        .await?;
    same("what it had tried", counted, 1)
}

/// A drop deletes piece by piece, and can be cut short behind the first.
pub(super) async fn what_a_drop_has_left_is_not_the_next_ones<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    same("its claim", claim(&billing, "m-0").await?, [Claim::New])?;
    billing.hold(&[waiting(&message(Some("a"), 1), 9)]).await?;
    for table in ["readers WHERE name", "cursors WHERE reader", "members WHERE reader"] {
        let delete = format!("DELETE FROM {{{}", table.replacen(' ', "} ", 1)) + " = 'billing'";
        fixture.execute(&store, &delete).await;
    }
    let registered = store.register(&billing.reader, Start::Earliest, at(2)).await?;
    same("registered anew", registered.created, true)?;
    same(
        "what the former had handled",
        claim(&billing, "m-0").await?,
        [Claim::New],
    )?;
    same("what it had held", billing.holds_key("a").await?, false)?;
    let letters = store.letters(&LetterFilter::default()).await?;
    same("its messages", letters.len(), 0)
}

/// A reader at the end of six rows that it took as one batch, with a message that it handled.
async fn at_the_end<F: Fixture>(fixture: &F) -> Result<(Instance<F::Store>, Vec<i64>), Failed> {
    let store = fixture.fresh().await;
    let billing = Instance::alone(&store, "billing").await?;
    billing.append(&events(&["a", "b", "c", "d", "e", "f"])).await?;
    let rows = positions(&read_all(&store).await?);
    let end = Position(rows[5]);
    let marks: Vec<(Cursor, Position)> = billing.held.iter().map(|cursor| (*cursor, end)).collect();
    billing
        .commit(async |connection| store.mark(connection, &billing.reader, &marks).await)
        .await?;
    billing.advance_to(&billing.held, end).await?;
    claim(&billing, "m-0").await?;
    Ok((billing, rows))
}

pub(super) async fn a_reset_puts_every_lane_there<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = at_the_end(fixture).await?;
    let store = &billing.store;
    let hour = time::Duration::hours(1);
    let now = OffsetDateTime::now_utc();
    let cases = [
        ("a position", Start::After(Position(rows[1])), Some(Position(rows[1]))),
        ("earliest", Start::Earliest, Some(Position::START)),
        ("latest", Start::Latest, Some(store.horizon().await?.handed_out)),
        ("an hour ago", Start::Since(now - hour), None),
        ("in an hour", Start::Since(now + hour), None),
    ];
    for (what, start, wanted) in cases {
        let told = store.reset(&billing.reader, start, false, None).await?;
        let Some(told) = told else {
            return Err(Failed::new(format!("{what}: the reader is not found")));
        };
        same(
            &format!("{what}: where every lane stands"),
            places(&billing).await?,
            BTreeSet::from([told]),
        )?;
        same(&format!("{what}: where that is"), told, wanted.unwrap_or(told))?;
        let to_come = positions(&crate::store::sample::read_from(store, told).await?);
        let all = match start {
            Start::After(_) => &rows[2..],
            Start::Earliest => &rows[..],
            Start::Since(time) if time < now => &rows[..],
            _ => &[],
        };
        same(&format!("{what}: rows to come"), &to_come[..], all)?;
    }
    let nobody = store.reset(&consumer("nobody")?, Start::Earliest, false, None).await?;
    same("one that is not registered", nobody, None)
}

/// No owner goes on from the old place: it is fenced, and learns the new one.
pub(super) async fn a_reset_raises_every_epoch<F: Fixture>(fixture: &F) -> Outcome {
    let (mut billing, rows) = at_the_end(fixture).await?;
    let store = billing.store.clone();
    let before = billing.held.clone();
    store
        .reset(&billing.reader, Start::After(Position(rows[1])), false, at(1))
        .await?;
    let end = Position(rows[5]);
    for from in [end, Position(rows[1])] {
        let step = Move {
            cursor: before[3],
            from,
            to: Position(rows[5] + 10),
            batch_end: None,
            confirmed: None,
        };
        let mut open = billing.begin().await?;
        let advanced = store.advance(&mut open, &billing.reader, &[step]).await;
        open.rollback().await?;
        refused("a step from the old place", advanced, |error| {
            matches!(error, FenceError::Fenced)
        })?;
    }
    let tenure = billing.keep(at(2)).await?;
    same(
        "lanes owned, lanes taken anew",
        (tenure.owned.len(), tenure.taken.len()),
        (64, 64),
    )?;
    for (taken, old) in tenure.taken.iter().zip(&before) {
        let lane = taken.cursor.lane;
        holds(
            "its epoch was raised",
            taken.cursor.epoch > old.epoch,
            (lane, &taken.cursor, &old.epoch),
        )?;
        same(&format!("place of lane {lane}"), taken.position, Position(rows[1]))?;
        // What comes again had been finished: it is no suspect.
        holds(
            "nothing is suspect",
            taken.batch_end <= taken.position,
            (lane, taken.batch_end, taken.position),
        )?;
    }
    Ok(())
}

pub(super) async fn a_reset_forgets_when_asked_to<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, _) = at_the_end(fixture).await?;
    let mailer = Instance::alone(&billing.store, "mailer").await?;
    claim(&mailer, "m-0").await?;
    billing
        .store
        .reset(&billing.reader, Start::Earliest, false, at(1))
        .await?;
    same(
        "what was handled is known",
        claim(&billing, "m-0").await?,
        [Claim::Handled],
    )?;
    billing
        .store
        .reset(&billing.reader, Start::Earliest, true, at(1))
        .await?;
    same(
        "what was handled is forgotten",
        claim(&billing, "m-0").await?,
        [Claim::New],
    )?;
    same("not by another", claim(&mailer, "m-0").await?, [Claim::Handled])
}

pub(super) async fn a_reset_below_the_pruned_is_refused<F: Fixture>(fixture: &F) -> Outcome {
    let (billing, rows) = at_the_end(fixture).await?;
    let pruned = billing.store.prune(Duration::ZERO, 4, in_hours(1)).await?;
    same("rows pruned", pruned.rows, 4)?;
    let before = billing.stand().await?;
    let asked = Position(rows[0]);
    let reset = billing
        .store
        .reset(&billing.reader, Start::After(asked), true, at(1))
        .await;
    refused(
        "a place below the pruned",
        reset,
        |error| matches!(error, RegisterError::Pruned { asked: told, pruned_to } if (*told, *pruned_to) == (asked, pruned.pruned_to)),
    )?;
    same("where its lanes stand", billing.stand().await?, before)?;
    same(
        "what was handled is known",
        claim(&billing, "m-0").await?,
        [Claim::Handled],
    )?;
    let told = billing
        .store
        .reset(&billing.reader, Start::Earliest, false, at(1))
        .await?;
    same("earliest is what is left", told, Some(pruned.pruned_to))
}
