//! Consuming with one message in a hundred that can never be handled, against the same messages without a failure.

use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    fill::fill,
    progress::Progress,
    rounds::alternate,
};
use anyhow::{Result, ensure};
use eventloom::{Event, NewEvent, Payload, Topic, postgres::prelude::*};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

pub(crate) const NAME: &str = "poison";
pub(crate) const ABOUT: &str = "consume with one permanent failure in a hundred (unkeyed), against none";

const COUNTED: Topic = Topic::new("counted");
/// One of so many fails.
const ONE_IN: u32 = 100;

const SET_UP: &[&str] = &[
    "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)",
    // One for each message: messages without a key have no order, and batches that share rows would wait for each other.
    "INSERT INTO counters SELECT id, 0 FROM generate_series(0, 19999) AS id",
];

#[derive(Serialize, Deserialize)]
struct Counted {
    counter: i64,
    bad: bool,
}

impl Event for Counted {
    const TYPE: &'static str = "counted";
}

#[derive(Debug, thiserror::Error)]
enum CountError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("no such counter")]
    Bad,
}

impl eventloom::Classify for CountError {
    fn retry_class(&self) -> RetryClass {
        match self {
            CountError::Database(_) => RetryClass::Transient,
            CountError::Bad => RetryClass::Permanent,
        }
    }
}

struct Count {
    fails: bool,
    progress: Progress,
}

impl Handle<Postgres> for Count {
    type Event = Counted;
    type Output = ();
    type Error = CountError;

    async fn handle(&self, event: Counted, cx: &mut Context<'_>) -> Result<(), CountError> {
        self.progress.one_more();
        if event.bad && self.fails {
            return Err(CountError::Bad);
        }
        sqlx::query("UPDATE counters SET n = n + 1 WHERE id = $1")
            .bind(event.counter)
            .execute(cx.connection())
            .await?;
        Ok(())
    }
}

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let messages = bench.amount(20_000, 500);
    for tasks in [1, 16] {
        let scratch = Scratch::new(bench.store, tasks + 2).await?;
        scratch.run(SET_UP).await?;
        fill(&scratch.pool, (0..messages).map(row)).await?;
        consume(&scratch, "warm", tasks, messages, false).await?;
        let [without, with] = alternate::<Sample, 2>(bench.rounds, async |lane, round| {
            scratch.settle().await?;
            let before = scratch.snapshot().await?;
            let name = format!("lane-{lane}-{round}");
            let mut sample = consume(&scratch, &name, tasks, messages, lane == 1).await?;
            sample.counters.extend(scratch.since(&before, messages).await?);
            Ok(sample)
        })
        .await?;
        scratch.drop().await?;
        let what = "consume with inbox, one message in 100 fails for good";
        figures.push(
            Figure::new(NAME, what, "none fails", &without, &with)
                .tasks(tasks)
                .aim(Aim::AtLeast(0.3)),
        );
    }
    Ok(figures)
}

fn row(n: u32) -> NewEvent {
    let bad = n % ONE_IN == ONE_IN / 2;
    NewEvent::untyped(COUNTED, Counted::TYPE).with_payload(Payload::Json(format!(r#"{{"counter":{n},"bad":{bad}}}"#)))
}

/// Messages a second: from the start of the service until the last one is committed or dead.
async fn consume(scratch: &Scratch, name: &str, tasks: u32, messages: u32, fails: bool) -> Result<Sample> {
    let progress = Progress::default();
    let consumer = Consumer::new(name)
        .topic(COUNTED)
        .handle(Count {
            fails,
            progress: progress.clone(),
        })
        .in_flight(tasks);
    let begun = Instant::now();
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .consumer(consumer)
        .start()
        .await?;
    let health = progress.done(&service, messages).await?;
    let (dead, runs) = (health.dead, health.commits);
    let mut sample = Sample::from(f64::from(messages) / begun.elapsed().as_secs_f64());
    service.shutdown(Duration::from_secs(30)).await?;
    let wanted = if fails { messages / ONE_IN } else { 0 };
    ensure!(dead == u64::from(wanted), "{dead} of {wanted} are dead");
    sample.counters.insert(
        "messages that shared a commit",
        f64::from(messages) / runs.max(1) as f64,
    );
    Ok(sample)
}
