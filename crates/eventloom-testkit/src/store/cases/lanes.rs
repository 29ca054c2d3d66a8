//! A lane is the same number everywhere, and reading one lane is reading the log without the others.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{ORDERS, event, ids, positions, read_all},
};
use eventloom_core::{
    Lane, LaneCount, NewEvent, Payload, Position, Recorded,
    ports::{Log, ReadLimits, Store as _},
};

/// Random keys, with some that are awkward; every tenth event has none.
fn random_events(seed: u64, count: usize) -> Vec<NewEvent> {
    let mut random = fastrand::Rng::with_seed(seed);
    let awkward = ["", " ", "schlüssel", "\u{1F511}", "a'b\"c", "\\", "%", "order-17"];
    let mut make = |number: usize| {
        if number % 10 == 9 {
            return NewEvent::untyped(ORDERS, "order.placed").with_payload(Payload::Binary(vec![0; 50]));
        }
        let key: String = match awkward.get(number) {
            Some(key) => (*key).to_owned(),
            None => (0..random.usize(1..40)).map(|_| random.char('!'..'\u{2FFF}')).collect(),
        };
        event(&key)
    };
    (0..count).map(&mut make).collect()
}

fn seed() -> u64 {
    let given = std::env::var("EVENTLOOM_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

/// A log with random keys, all of it, and what to print when a case fails.
async fn random_log<F: Fixture>(fixture: &F) -> Result<(F::Store, Vec<Recorded>, String), Failed> {
    let seed = seed();
    let store = fixture.fresh().await;
    Instance::new(&store, "writer")?
        .append(&random_events(seed, 500))
        .await?;
    let rows = read_all(&store).await?;
    Ok((store, rows, format!("(EVENTLOOM_SEED={seed})")))
}

/// Reads one lane up to `up_to` in pages of these limits.
async fn in_pages<S: Log>(store: &S, lane: Lane, up_to: Position, limits: ReadLimits) -> Result<Vec<Recorded>, Failed> {
    let (mut rows, mut after) = (Vec::new(), Position::START);
    while after < up_to {
        let page = store.read_lane(lane, after, up_to, limits).await?;
        let looked = (lane, after, up_to, page.scanned_to, positions(&page.rows));
        holds(
            "a page of a lane goes on",
            page.scanned_to > after && page.scanned_to <= up_to,
            &looked,
        )?;
        holds(
            "at most rows_max rows",
            page.rows.len() <= limits.rows_max as usize,
            &looked,
        )?;
        let inside = page
            .rows
            .iter()
            .all(|row| after < row.position && row.position <= page.scanned_to);
        holds("rows lie between `after` and scanned_to", inside, &looked)?;
        after = page.scanned_to;
        rows.extend(page.rows);
    }
    Ok(rows)
}

pub(super) async fn a_lane_is_the_hash_of_its_key<F: Fixture>(fixture: &F) -> Outcome {
    let (store, rows, seed) = random_log(fixture).await?;
    same("lanes of the store", store.lanes(), LaneCount::default())?;
    same("rows", rows.len(), 500)?;
    for row in &rows {
        let spread_by = row.envelope.key.as_deref().unwrap_or(&row.envelope.id);
        same(
            &format!("lane of {spread_by:?} {seed}"),
            row.lane,
            store.lanes().lane_of(spread_by),
        )?;
    }
    Ok(())
}

pub(super) async fn a_lane_is_the_log_without_the_others<F: Fixture>(fixture: &F) -> Outcome {
    let (store, rows, seed) = random_log(fixture).await?;
    let horizon = store.horizon().await?.position;
    for lane in store.lanes().all() {
        let wanted: Vec<Recorded> = rows.iter().filter(|row| row.lane == lane).cloned().collect();
        for limits in [
            ReadLimits::default(),
            ReadLimits::default().rows_max(2).payload_bytes_max(30),
        ] {
            let found = in_pages(&store, lane, horizon, limits).await?;
            same(
                &format!("ids of lane {lane} in pages of {limits:?} {seed}"),
                ids(&found),
                ids(&wanted),
            )?;
            holds("rows of the lane, with every attribute", found == wanted, lane)?;
        }
    }
    Ok(())
}

pub(super) async fn a_lane_is_read_between_its_bounds<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let given: Vec<NewEvent> = ["a", "b", "a", "a", "b", "a"].map(event).into();
    Instance::new(&store, "writer")?.append(&given).await?;
    let rows = read_all(&store).await?;
    let (lane, others) = (rows[0].lane, rows[1].lane);
    holds(
        "the two keys of this case have different lanes",
        lane != others,
        (lane, others),
    )?;
    // (after, up to, what is between), all by the row's number.
    let cases: [(usize, usize, &[usize]); 4] = [(0, 5, &[2, 3, 5]), (2, 4, &[3]), (3, 4, &[]), (5, 5, &[])];
    for (after, up_to, wanted) in cases {
        let (after, up_to) = (rows[after].position, rows[up_to].position);
        let page = store.read_lane(lane, after, up_to, ReadLimits::default()).await?;
        let wanted: Vec<i64> = wanted.iter().map(|number| rows[*number].position.0).collect();
        same(
            &format!("rows of lane {lane} above {after} up to {up_to}"),
            positions(&page.rows),
            wanted,
        )?;
        same("scanned_to of a page that is not full", page.scanned_to, up_to)?;
    }
    let full = store.read_lane(
        lane,
        Position::START,
        rows[5].position,
        ReadLimits::default().rows_max(2),
    );
    let full = full.await?;
    same(
        "a full page",
        positions(&full.rows),
        [rows[0].position.0, rows[2].position.0],
    )?;
    let range = (rows[2].position, rows[3].position);
    holds(
        "a full page was scanned to its last row",
        range.0 <= full.scanned_to && full.scanned_to < range.1,
        full.scanned_to,
    )
}
