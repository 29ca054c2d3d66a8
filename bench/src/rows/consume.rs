//! Consuming with inbox in batches, against one transaction a message by hand; and with against without the inbox.

use crate::{
    Bench,
    counters::Counters,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    fill::fill,
    progress::Progress,
    rounds::alternate,
};
use anyhow::{Result, ensure};
use eventloom::{Event, NewEvent, Payload, Topic, postgres::prelude::*};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};
use uuid::Uuid;

pub(crate) const NAME: &str = "consume";
pub(crate) const ABOUT: &str =
    "consume with inbox, against one transaction a message by hand, and against without inbox";

const COUNTED: Topic = Topic::new("counted");
const KEYS: i64 = 1000;

#[derive(Serialize, Deserialize)]
struct Counted {
    counter: i64,
}

impl Event for Counted {
    const TYPE: &'static str = "counted";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Owned(self.counter.to_string()))
    }
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct CountError(#[from] sqlx::Error);
impl eventloom::Classify for CountError {}

struct Count(Progress);

impl Handle<Postgres> for Count {
    type Event = Counted;
    type Output = ();
    type Error = CountError;

    async fn handle(&self, event: Counted, cx: &mut Context<'_>) -> Result<(), CountError> {
        sqlx::query("UPDATE counters SET n = n + 1 WHERE id = $1")
            .bind(event.counter)
            .execute(cx.connection())
            .await?;
        self.0.one_more();
        Ok(())
    }
}

const SET_UP: &[&str] = &[
    "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)",
    "INSERT INTO counters SELECT id, 0 FROM generate_series(0, 999) AS id",
    "CREATE TABLE inbox_by_hand (consumer text, id text, PRIMARY KEY (consumer, id))",
];

const WHAT: &str = "consume with inbox, the handler does one UPDATE";

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let messages = bench.amount(40_000, 1000);
    for (tasks, at_least) in [(1, 5.0), (16, 3.0)] {
        let scratch = Scratch::new(bench.store, tasks + 2).await?;
        scratch.run(SET_UP).await?;
        fill(&scratch.pool, (0..messages).map(counted_row)).await?;
        let by_hand_messages = bench.amount(if tasks == 1 { 4000 } else { 16_000 }, 100);
        consume(&scratch, "warm", tasks, messages, true).await?;
        by_hand(&scratch.pool, "warm", tasks, by_hand_messages / 4 + 1).await?;
        let lanes = alternate::<Sample, 3>(bench.rounds, async |lane, round| {
            scratch.settle().await?;
            let before = scratch.snapshot().await?;
            let name = format!("lane-{lane}-{round}");
            let (value, events) = match lane {
                0 => (
                    by_hand(&scratch.pool, &name, tasks, by_hand_messages).await?,
                    by_hand_messages,
                ),
                _ => (consume(&scratch, &name, tasks, messages, lane == 1).await?, messages),
            };
            let counters = scratch.since(&before, events).await?;
            Ok(Sample { value, counters })
        });
        let [floor, with, without] = lanes.await?;
        scratch.drop().await?;
        let [floor_counted, with_counted] = round_trips(bench, tasks).await?;
        figures.push(
            Figure::new(NAME, WHAT, "one transaction a message by hand", &floor, &with)
                .tasks(tasks)
                .counted(&floor_counted, &with_counted)
                .aim(Aim::AtLeast(at_least)),
        );
        figures.push(
            Figure::new(NAME, WHAT, "the same without inbox", &without, &with)
                .tasks(tasks)
                .aim(Aim::AtLeast(0.5)),
        );
    }
    Ok(figures)
}

/// By hand, and by Eventloom.
async fn round_trips(bench: &Bench<'_>, tasks: u32) -> Result<[Counters; 2]> {
    let scratch = Scratch::counted(bench.store, tasks + 2).await?;
    scratch.run(SET_UP).await?;
    let messages = bench.amount(10_000, 500);
    fill(&scratch.pool, (0..messages).map(counted_row)).await?;
    let before = scratch.snapshot().await?;
    by_hand(&scratch.pool, "by-hand", tasks, tasks * 20).await?;
    let floor = scratch.since(&before, tasks * 20).await?;
    let before = scratch.snapshot().await?;
    consume(&scratch, "eventloom", tasks, messages, true).await?;
    let ours = scratch.since(&before, messages).await?;
    scratch.drop().await?;
    Ok([floor, ours])
}

fn counted_row(n: u32) -> NewEvent {
    let counter = i64::from(n) % KEYS;
    NewEvent::untyped(COUNTED, "counted")
        .with_key(counter.to_string())
        .with_payload(Payload::Json(format!(r#"{{"counter":{counter}}}"#)))
}

/// Messages a second: from the start of the service until the last one is committed.
async fn consume(scratch: &Scratch, name: &str, tasks: u32, messages: u32, inbox: bool) -> Result<f64> {
    let before = counted(&scratch.pool).await?;
    let progress = Progress::default();
    let count = Count(progress.clone());
    let consumer = Consumer::new(name).topic(COUNTED).handle(count).in_flight(tasks);
    let consumer = if inbox { consumer } else { consumer.without_inbox() };
    let begun = Instant::now();
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .consumer(consumer)
        .start()
        .await?;
    progress.done(&service, messages).await?;
    let rate = f64::from(messages) / begun.elapsed().as_secs_f64();
    service.shutdown(Duration::from_secs(30)).await?;
    let after = counted(&scratch.pool).await?;
    ensure!(
        after - before == i64::from(messages),
        "{} effects of {messages} messages",
        after - before
    );
    Ok(rate)
}

async fn counted(pool: &PgPool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT sum(n)::bigint FROM counters")
        .fetch_one(pool)
        .await?)
}

/// One transaction a message: claim, effect, commit. Each task has its own keys, so that nobody waits for a row.
async fn by_hand(pool: &PgPool, consumer: &str, tasks: u32, messages: u32) -> Result<f64> {
    let each = messages / tasks;
    let begun = Instant::now();
    try_join_all((0..tasks).map(|task| async move {
        for n in 0..each {
            let counter = i64::from(n * tasks + task) % KEYS;
            let mut tx = pool.begin().await?;
            let claimed =
                sqlx::query("INSERT INTO inbox_by_hand (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                    .bind(consumer)
                    .bind(Uuid::now_v7().to_string())
                    .execute(&mut *tx)
                    .await?;
            if claimed.rows_affected() == 1 {
                sqlx::query("UPDATE counters SET n = n + 1 WHERE id = $1")
                    .bind(counter)
                    .execute(&mut *tx)
                    .await?;
            }
            tx.commit().await?;
        }
        anyhow::Ok(())
    }))
    .await?;
    Ok(f64::from(each * tasks) / begun.elapsed().as_secs_f64())
}
