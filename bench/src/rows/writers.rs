//! Commits a second of 16 writers while a consumer keeps up with an empty handler, against no reader at all; and, to
//! compare, against a NOTIFY in every commit.

use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    progress::Progress,
    rounds::alternate,
};
use anyhow::Result;
use eventloom::{Event, Topic, ports::Log, postgres::prelude::*};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgListener;
use std::{
    borrow::Cow,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) const NAME: &str = "writers";
pub(crate) const ABOUT: &str = "commits a second of 16 writers beside a consumer that keeps up, against no reader";

const ORDERS: Topic = Topic::new("orders");
const WRITERS: u32 = 16;
/// How far behind the consumer may be.
const LAG_MAX: Duration = Duration::from_secs(1);
const CONSUMER: &str = "keeping-up";

const SET_UP: &[&str] = &[
    "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)",
];

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    cents: i64,
    /// Since the lane began.
    at_us: u64,
}

impl Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.customer))
    }
}

/// Does nothing but note how old the event is.
struct Empty {
    begun: Instant,
    oldest_us: Arc<AtomicU64>,
    progress: Progress,
}

impl Handle<Postgres> for Empty {
    type Event = OrderPlaced;
    type Output = ();
    type Error = Infallible;

    async fn handle(&self, event: OrderPlaced, _cx: &mut Context<'_>) -> Result<(), Infallible> {
        let now = self.begun.elapsed().as_micros() as u64;
        self.progress.one_more();
        self.oldest_us
            .fetch_max(now.saturating_sub(event.at_us), Ordering::Relaxed);
        Ok(())
    }
}

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let each = bench.amount(1500, 20);
    // Each lane in a database of its own: what a lane leaves behind must not be pruned in the next.
    let [alone, beside, notifying] = alternate::<Sample, 3>(bench.rounds, async |lane, _| {
        let scratch = Scratch::new(bench.store, WRITERS + 8).await?;
        scratch.run(SET_UP).await?;
        write(&scratch, Instant::now(), each / 10 + 1, false).await?;
        scratch.settle().await?;
        let before = scratch.snapshot().await?;
        let mut sample = match lane {
            0 => Sample::from(write(&scratch, Instant::now(), each, false).await?),
            1 => beside_a_consumer(&scratch, each).await?,
            _ => notifying_each(&scratch, each).await?,
        };
        sample.counters.extend(scratch.since(&before, WRITERS * each).await?);
        scratch.drop().await?;
        Ok(sample)
    })
    .await?;
    let what = "commits a second of 16 writers beside a consumer that keeps up";
    let keeps_up = beside.iter().all(|sample| {
        sample
            .counters
            .get(OLDEST)
            .is_some_and(|ms| *ms <= LAG_MAX.as_secs_f64() * 1e3)
    });
    let against = if keeps_up {
        "no reader"
    } else {
        "no reader (but its lag was over 1 s)"
    };
    Ok(vec![
        Figure::new(NAME, what, against, &alone, &beside)
            .tasks(WRITERS)
            .aim(Aim::AtLeast(0.8)),
        Figure::new(
            NAME,
            what,
            "NOTIFY in every commit, and somebody who listens",
            &notifying,
            &beside,
        )
        .tasks(WRITERS),
    ])
}

const OLDEST: &str = "ms that an event waited at most";

async fn beside_a_consumer(scratch: &Scratch, each: u32) -> Result<Sample> {
    let begun = Instant::now();
    let oldest_us = Arc::new(AtomicU64::new(0));
    let progress = Progress::default();
    let empty = Empty {
        begun,
        oldest_us: oldest_us.clone(),
        progress: progress.clone(),
    };
    let consumer = Consumer::new(CONSUMER)
        .topic(ORDERS)
        .start_at(Start::Latest)
        .handle(empty);
    let service = Eventloom::new(scratch.store.clone()).consumer(consumer).start().await?;
    Progress::ready(&service).await?;
    let rate = write(scratch, begun, each, false).await?;
    let wanted = WRITERS * each;
    let commits = progress.done(&service, wanted).await?.commits;
    let pruned_to = scratch.store.log_status().await?.pruned_to;
    service.shutdown(Duration::from_secs(30)).await?;
    let mut sample = Sample::from(rate);
    let oldest_ms = oldest_us.load(Ordering::Relaxed) as f64 / 1e3;
    sample.counters.insert(OLDEST, oldest_ms);
    sample.counters.insert(
        "messages that shared a commit",
        f64::from(wanted) / commits.max(1) as f64,
    );
    sample.counters.insert("rows pruned meanwhile", pruned_to.0 as f64);
    Ok(sample)
}

async fn notifying_each(scratch: &Scratch, each: u32) -> Result<Sample> {
    let mut listener = PgListener::connect_with(&scratch.pool).await?;
    listener.listen("orders").await?;
    let listening = tokio::spawn(async move { while listener.recv().await.is_ok() {} });
    let rate = write(scratch, Instant::now(), each, true).await;
    listening.abort();
    Ok(Sample::from(rate?))
}

/// Commits a second.
async fn write(scratch: &Scratch, begun: Instant, each: u32, notify: bool) -> Result<f64> {
    let writing = Instant::now();
    try_join_all((0..WRITERS).map(|writer| async move {
        for n in 0..each {
            let mut tx = scratch.pool.begin().await?;
            let event = OrderPlaced {
                customer: format!("customer-{writer}-{}", n % 50),
                cents: i64::from(n),
                at_us: begun.elapsed().as_micros() as u64,
            };
            sqlx::query("INSERT INTO business (customer, cents) VALUES ($1, $2)")
                .bind(&event.customer)
                .bind(event.cents)
                .execute(&mut *tx)
                .await?;
            publish(&mut *tx, ORDERS, &event).await?;
            if notify {
                sqlx::query("NOTIFY orders").execute(&mut *tx).await?;
            }
            tx.commit().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(f64::from(WRITERS * each) / writing.elapsed().as_secs_f64())
}
