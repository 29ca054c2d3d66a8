//! Consuming with inbox in batches, against one transaction a message by hand; and with against without the inbox.

use crate::{
    Size,
    database::Scratch,
    table::{Round, Row},
};
use anyhow::{Result, ensure};
use eventloom::{Event, NewEvent, Payload, Topic, postgres::prelude::*, publish_rows};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};
use uuid::Uuid;

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

async fn count(event: Counted, cx: &mut Context<'_>) -> Result<(), CountError> {
    sqlx::query("UPDATE counters SET n = n + 1 WHERE id = $1")
        .bind(event.counter)
        .execute(cx.connection())
        .await?;
    Ok(())
}

const SET_UP: &[&str] = &[
    "CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)",
    "INSERT INTO counters SELECT id, 0 FROM generate_series(0, 999) AS id",
    "CREATE TABLE inbox_by_hand (consumer text, id text, PRIMARY KEY (consumer, id))",
];

pub(crate) async fn rows(url: &str, size: Size) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let messages = (40_000 / size.divide).max(200);
    for (tasks, at_least) in [(1, 5.0), (16, 3.0)] {
        let scratch = Scratch::new(url, tasks + 2).await?;
        scratch.run(SET_UP).await?;
        fill(&scratch.pool, messages).await?;
        let by_hand_messages = (if tasks == 1 { 2000 } else { 12_000 } / size.divide).max(100);
        consume(&scratch, "warm", tasks, messages, true).await?;
        by_hand(&scratch.pool, "warm", tasks, by_hand_messages / 4 + 1).await?;
        let (mut against_hand, mut against_bare) = (Vec::new(), Vec::new());
        for round in 0..size.rounds {
            scratch.settle().await?;
            let floor = by_hand(&scratch.pool, &format!("hand-{round}"), tasks, by_hand_messages).await?;
            let with = consume(&scratch, &format!("with-{round}"), tasks, messages, true).await?;
            let without = consume(&scratch, &format!("without-{round}"), tasks, messages, false).await?;
            against_hand.push(Round {
                floor_per_second: floor,
                eventloom_per_second: with,
            });
            against_bare.push(Round {
                floor_per_second: without,
                eventloom_per_second: with,
            });
        }
        rows.push(Row {
            what: "consume with inbox, the handler does one UPDATE".to_owned(),
            against: "one transaction a message by hand".to_owned(),
            tasks,
            at_least: Some(at_least),
            rounds: against_hand,
        });
        rows.push(Row {
            what: "consume with inbox, the handler does one UPDATE".to_owned(),
            against: "the same without inbox".to_owned(),
            tasks,
            at_least: Some(0.5),
            rounds: against_bare,
        });
        scratch.drop().await?;
    }
    Ok(rows)
}

async fn fill(pool: &PgPool, messages: u32) -> Result<()> {
    let mut left = messages;
    while left > 0 {
        let now = left.min(2000);
        let rows: Vec<NewEvent> = (0..now)
            .map(|n| {
                let counter = i64::from(left - n) % KEYS;
                NewEvent::untyped(COUNTED, "counted")
                    .with_key(counter.to_string())
                    .with_payload(Payload::Json(format!(r#"{{"counter":{counter}}}"#)))
            })
            .collect();
        let mut tx = pool.begin().await?;
        publish_rows(&mut *tx, &rows).await?;
        tx.commit().await?;
        left -= now;
    }
    Ok(())
}

/// Messages a second: from the start of the service until the last one is committed.
async fn consume(scratch: &Scratch, name: &str, tasks: u32, messages: u32, inbox: bool) -> Result<f64> {
    let before = counted(&scratch.pool).await?;
    let consumer = Consumer::new(name).topic(COUNTED).handle(count).in_flight(tasks);
    let consumer = if inbox { consumer } else { consumer.without_inbox() };
    let begun = Instant::now();
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .consumer(consumer)
        .start()
        .await?;
    loop {
        if service.health().await.consumers[0].handled >= u64::from(messages) {
            break;
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(300),
            "{name} hangs: {:?}",
            service.health().await
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
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
