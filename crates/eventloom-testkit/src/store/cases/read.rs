//! Reading a log brings every committed row once, in order, and says honestly how far it has looked.

use crate::store::{
    check::{Failed, Outcome, holds, same},
    fixture::Fixture,
    instance::Instance,
    sample::{event, events, ids, ids_of, positions, read_all, read_from},
};
use eventloom_core::{
    NewEvent, OffsetDateTime, Payload, Position,
    ports::{Log, Outbox as _, Page, ReadLimits, Store as _, Transaction as _},
};

const NO_BYTE_LIMIT: u64 = u64::MAX >> 1;

/// What holds for every page.
pub(super) fn honest(page: &Page, after: Position, limits: ReadLimits) -> Outcome {
    let positions = positions(&page.rows);
    let sizes: Vec<u64> = page
        .rows
        .iter()
        .map(|row| row.envelope.payload.as_ref().map_or(0, |p| p.bytes().len() as u64))
        .collect();
    let looked = (after, &positions, page.scanned_to, page.horizon);
    holds("rows are in order", positions.is_sorted_by(|a, b| a < b), looked)?;
    holds(
        "rows lie above `after`",
        positions.iter().all(|position| *position > after.0),
        looked,
    )?;
    holds(
        "rows lie at or below scanned_to",
        positions.iter().all(|position| *position <= page.scanned_to.0),
        looked,
    )?;
    holds(
        "scanned_to is not above the horizon",
        page.scanned_to <= page.horizon.max(after),
        looked,
    )?;
    holds(
        "at most rows_max rows",
        sizes.len() <= limits.rows_max as usize,
        sizes.len(),
    )?;
    let before_the_last: u64 = sizes.iter().rev().skip(1).sum();
    holds(
        "the page ends with the row that reaches the byte limit",
        before_the_last < limits.payload_bytes_max,
        &sizes,
    )?;
    let full = sizes.len() == limits.rows_max as usize || sizes.iter().sum::<u64>() >= limits.payload_bytes_max;
    if full {
        let last = positions.last().copied().unwrap_or_default();
        holds(
            "a full page was scanned to its last row",
            page.scanned_to.0 >= last,
            looked,
        )
    } else {
        same(
            "a page that is not full was scanned to the horizon",
            page.scanned_to,
            page.horizon.max(after),
        )
    }
}

/// Reads all in pages of these limits.
async fn in_pages<S: Log>(store: &S, limits: ReadLimits) -> Result<Vec<Page>, Failed> {
    let (mut pages, mut after) = (Vec::new(), Position::START);
    loop {
        let page = store.read_after(after, limits).await?;
        honest(&page, after, limits)?;
        let caught_up = page.scanned_to >= page.horizon;
        holds(
            "a page goes on",
            caught_up || page.scanned_to > after,
            (after, page.scanned_to, page.horizon),
        )?;
        after = page.scanned_to;
        pages.push(page);
        if caught_up {
            return Ok(pages);
        }
    }
}

fn rows_of(pages: Vec<Page>) -> Vec<String> {
    pages.into_iter().flat_map(|page| ids(&page.rows)).collect()
}

pub(super) async fn an_empty_log_is_read_to_its_horizon<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let page = store.read_after(Position::START, ReadLimits::default()).await?;
    same("rows", ids(&page.rows), ids_of(&[]))?;
    honest(&page, Position::START, ReadLimits::default())?;
    let horizon = store.horizon().await?;
    same(
        "nobody writes: horizon and what was handed out",
        horizon.position,
        horizon.handed_out,
    )?;
    same("the page's horizon", page.horizon, horizon.position)?;
    let above = store
        .read_after(Position(horizon.position.0 + 1_000), ReadLimits::default())
        .await?;
    same("rows above the horizon", ids(&above.rows), ids_of(&[]))
}

pub(super) async fn pages_are_bounded_by_rows<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let given: Vec<NewEvent> = (0..12).map(|number| event(&format!("key-{number}"))).collect();
    Instance::new(&store, "writer")?.append(&given).await?;
    for rows_max in [1, 5, 6, 12, 13] {
        let pages = in_pages(
            &store,
            ReadLimits::default()
                .rows_max(rows_max)
                .payload_bytes_max(NO_BYTE_LIMIT),
        )
        .await?;
        let sizes: Vec<usize> = pages
            .iter()
            .map(|page| page.rows.len())
            .filter(|rows| *rows > 0)
            .collect();
        let wanted: Vec<usize> = given.chunks(rows_max as usize).map(<[_]>::len).collect();
        same(&format!("rows of pages of {rows_max}"), sizes, wanted)?;
        same(&format!("all pages of {rows_max}"), rows_of(pages), ids_of(&given))?;
    }
    Ok(())
}

pub(super) async fn pages_are_bounded_by_bytes<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let given: Vec<NewEvent> = [100, 100, 100, 1_000, 0, 0, 100]
        .map(|bytes| event("a").with_payload(Payload::Binary(vec![1; bytes])))
        .into();
    Instance::new(&store, "writer")?.append(&given).await?;
    for payload_bytes_max in [1, 99, 100, 101, 250, 1_000, 5_000] {
        let pages = in_pages(
            &store,
            ReadLimits::default()
                .rows_max(1_000)
                .payload_bytes_max(payload_bytes_max),
        )
        .await?;
        same(
            &format!("all pages of {payload_bytes_max} bytes"),
            rows_of(pages),
            ids_of(&given),
        )?;
    }
    let first = store
        .read_after(
            Position::START,
            ReadLimits::default().rows_max(1_000).payload_bytes_max(1),
        )
        .await?;
    same(
        "a limit smaller than a row brings one row",
        ids(&first.rows),
        ids_of(&given[..1]),
    )
}

pub(super) async fn holes_are_passed<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let writer = Instance::new(&store, "writer")?;
    let kept = events(&["a", "b", "c"]);
    let roll_back = async || {
        let mut undone = writer.begin().await?;
        F::Store::append(store.tables(), &mut undone, &events(&["x", "y", "z"])).await?;
        undone.rollback().await
    };
    writer.append(&kept[..1]).await?;
    roll_back().await?;
    writer.append(&kept[1..2]).await?;
    roll_back().await?;
    let limits = ReadLimits::default();
    let page = store.read_after(Position::START, limits).await?;
    honest(&page, Position::START, limits)?;
    same("rows around holes", ids(&page.rows), ids_of(&kept[..2]))?;
    let rest = store.read_after(page.scanned_to, limits).await?;
    honest(&rest, page.scanned_to, limits)?;
    same("rows behind the horizon", ids(&rest.rows), ids_of(&[]))?;
    writer.append(&kept[2..]).await?;
    same(
        "rows after the holes",
        ids(&read_from(&store, page.scanned_to).await?),
        ids_of(&kept[2..]),
    )
}

pub(super) async fn another_process_reads_the_same<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    let other = fixture.again(&store).await;
    Instance::new(&store, "writer")?.append(&events(&["a", "b"])).await?;
    other.publish_alone(event("c")).await?;
    let (here, there) = (read_all(&store).await?, read_all(&other).await?);
    same("rows", here.len(), 3)?;
    same("the same rows", here, there)
}

pub(super) async fn a_time_is_found<F: Fixture>(fixture: &F) -> Outcome {
    let store = fixture.fresh().await;
    store.publish_alone(event("first")).await?;
    store.publish_alone(event("second")).await?;
    // The first row's insert time is not above the time of the second; a later time than that one lies between rows.
    let second = read_all(&store).await?[1].envelope.time;
    let later = loop {
        store.publish_alone(event("later")).await?;
        let rows = read_all(&store).await?;
        if let Some(row) = rows.into_iter().find(|row| row.envelope.time > second) {
            break row;
        }
    };
    let all = read_all(&store).await?;
    let found = store.position_at(later.envelope.time).await?;
    let begins = read_from(&store, found).await?.first().map(|row| row.position);
    let range = (Some(all[1].position), Some(later.position));
    holds(
        "the first row at or after the time of a row",
        range.0 <= begins && begins <= range.1,
        (range, begins),
    )?;
    let now = OffsetDateTime::now_utc();
    let found = store.position_at(now - time::Duration::hours(1)).await?;
    same(
        "rows after an hour ago",
        positions(&read_from(&store, found).await?),
        positions(&all),
    )?;
    let found = store.position_at(now + time::Duration::hours(1)).await?;
    same(
        "rows after the next hour",
        positions(&read_from(&store, found).await?),
        Vec::<i64>::new(),
    )
}
