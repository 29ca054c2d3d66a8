//! From the commit to the handler at 100 commits a second, against LISTEN, NOTIFY and one SELECT of the row by hand.
//!
//! Time begins when COMMIT is sent, which is the same moment for both, and ends when the handler is called. The counters
//! tell the same from the answer to COMMIT on, where the flush of the disk is not in it.

use crate::{
    Bench,
    counters::Counters,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    progress::Progress,
    rounds::alternate,
};
use anyhow::{Result, ensure};
use eventloom::{Event, NewEvent, Payload, Topic, postgres::prelude::*, publish_rows};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgListener;
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::{MissedTickBehavior, interval, sleep};

pub(crate) const NAME: &str = "latency";
pub(crate) const ABOUT: &str = "commit to handler at 100 commits a second, against LISTEN, NOTIFY and a SELECT";

const TICKS: Topic = Topic::new("ticks");
const EVERY: Duration = Duration::from_millis(10);
/// The first ones are not counted.
const WARM_UP: u32 = 50;
/// Where some are rolled back: one of so many.
const ROLLED_BACK: u32 = 100;

const SET_UP: &[&str] = &[
    "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL)",
    "CREATE TABLE ticks (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text, data json NOT NULL)",
];

#[derive(Serialize, Deserialize)]
struct Tick {
    n: u32,
}

impl Event for Tick {
    const TYPE: &'static str = "tick";
}

/// When each was committed and handled, in nanoseconds since a common beginning.
struct Times {
    begun: Instant,
    sent: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    handled: Vec<AtomicU64>,
}

impl Times {
    fn new(ticks: u32) -> Self {
        let none = || (0..ticks).map(|_| AtomicU64::new(0)).collect();
        Times {
            begun: Instant::now(),
            sent: none(),
            answered: none(),
            handled: none(),
        }
    }

    fn note(&self, which: &[AtomicU64], n: u32) {
        which[n as usize].store(self.begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn handled(&self) -> usize {
        self.handled
            .iter()
            .filter(|time| time.load(Ordering::Relaxed) > 0)
            .count()
    }

    /// Milliseconds of those that were handled, in order.
    fn since(&self, which: &[AtomicU64]) -> Vec<f64> {
        let pairs = which.iter().zip(&self.handled).skip(WARM_UP as usize);
        let times = pairs.map(|(from, to)| (from.load(Ordering::Relaxed), to.load(Ordering::Relaxed)));
        let mut waits: Vec<f64> = times
            .filter(|(_, to)| *to > 0)
            .map(|(from, to)| to.saturating_sub(from) as f64 / 1e6)
            .collect();
        waits.sort_by(f64::total_cmp);
        waits
    }
}

struct Handler(Arc<Times>);

impl Handle<Postgres> for Handler {
    type Event = Tick;
    type Output = ();
    type Error = Infallible;

    async fn handle(&self, event: Tick, _cx: &mut Context<'_>) -> Result<(), Infallible> {
        self.0.note(&self.0.handled, event.n);
        Ok(())
    }
}

#[derive(Clone)]
struct Waits {
    p50: Sample,
    p99: Sample,
}

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let ticks = bench.amount(800, 150);
    let scratch = Scratch::new(bench.store, 8).await?;
    scratch.run(SET_UP).await?;
    for (what, rolls_back) in [("", false), (", 1 in 100 rolled back", true)] {
        let [by_hand, ours] = alternate::<Waits, 2>(bench.rounds, async |lane, round| {
            scratch.settle().await?;
            let before = scratch.snapshot().await?;
            let times = Arc::new(Times::new(ticks));
            match lane {
                0 => by_hand(&scratch, &times, rolls_back).await?,
                _ => by_eventloom(&scratch, &times, rolls_back, round).await?,
            }
            let counters = scratch.since(&before, ticks).await?;
            Ok(waits(&times, counters))
        })
        .await?;
        let of = |lane: &[Waits], which: fn(&Waits) -> &Sample| -> Vec<Sample> {
            lane.iter().map(|waits| which(waits).clone()).collect()
        };
        let against = "LISTEN, NOTIFY and one SELECT of the row by hand";
        for (name, which, at_most) in [
            ("p50", (|waits| &waits.p50) as fn(&Waits) -> &Sample, 1.5),
            ("p99", |waits| &waits.p99, 3.0),
        ] {
            let what = format!("commit to handler at 100 commits a second{what}, {name}");
            let figure = Figure::new(NAME, what, against, &of(&by_hand, which), &of(&ours, which));
            figures.push(figure.milliseconds().aim(Aim::AtMost(at_most)));
        }
    }
    scratch.drop().await?;
    Ok(figures)
}

fn waits(times: &Times, counters: Counters) -> Waits {
    let (sent, answered) = (times.since(&times.sent), times.since(&times.answered));
    let at = |sorted: &[f64], share: f64| {
        let nth = (sorted.len() as f64 * share) as usize;
        sorted
            .get(nth.min(sorted.len().saturating_sub(1)))
            .copied()
            .unwrap_or(f64::NAN)
    };
    let mut p50 = Sample {
        value: at(&sent, 0.5),
        counters,
    };
    p50.counters.insert("ms from the answer to COMMIT", at(&answered, 0.5));
    let mut p99 = Sample::from(at(&sent, 0.99));
    p99.counters.insert("ms from the answer to COMMIT", at(&answered, 0.99));
    p99.counters.insert("ms at most", at(&sent, 1.0));
    Waits { p50, p99 }
}

/// Commits at an even pace, whatever the answers take. `insert` writes the event.
async fn commit_all(
    scratch: &Scratch,
    times: &Times,
    rolls_back: bool,
    insert: impl AsyncFn(&mut sqlx::PgConnection, u32) -> Result<()>,
) -> Result<u32> {
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut committed = 0;
    for n in 0..times.sent.len() as u32 {
        pace.tick().await;
        let mut tx = scratch.pool.begin().await?;
        sqlx::query("INSERT INTO business (n) VALUES ($1)")
            .bind(i64::from(n))
            .execute(&mut *tx)
            .await?;
        insert(&mut tx, n).await?;
        times.note(&times.sent, n);
        if rolls_back && n % ROLLED_BACK == ROLLED_BACK / 2 {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            times.note(&times.answered, n);
            committed += 1;
        }
    }
    Ok(committed)
}

async fn by_eventloom(scratch: &Scratch, times: &Arc<Times>, rolls_back: bool, round: u32) -> Result<()> {
    let name = format!("latency-{rolls_back}-{round}");
    let consumer = Consumer::new(name)
        .topic(TICKS)
        .start_at(Start::Latest)
        .handle(Handler(times.clone()));
    let service = Eventloom::new(scratch.store.clone()).consumer(consumer).start().await?;
    Progress::ready(&service).await?;
    let committed = commit_all(scratch, times, rolls_back, async |connection, n| {
        let row = NewEvent::untyped(TICKS, Tick::TYPE)
            .with_key(format!("key-{}", n % 97))
            .with_payload(Payload::Json(format!(r#"{{"n":{n}}}"#)));
        publish_rows(connection, &[row]).await?;
        Ok(())
    })
    .await?;
    all_handled(times, committed).await?;
    service.shutdown(Duration::from_secs(30)).await?;
    Ok(())
}

async fn by_hand(scratch: &Scratch, times: &Arc<Times>, rolls_back: bool) -> Result<()> {
    let mut listener = PgListener::connect_with(&scratch.pool).await?;
    listener.listen("ticks").await?;
    let (pool, noted) = (scratch.pool.clone(), times.clone());
    let mut session = pool.acquire().await?;
    let listening = tokio::spawn(async move {
        loop {
            let heard = listener.recv().await?;
            let id: i64 = heard.payload().parse()?;
            let data: String = sqlx::query_scalar("SELECT data::text FROM ticks WHERE id = $1")
                .bind(id)
                .fetch_one(&mut *session)
                .await?;
            let tick: Tick = serde_json::from_str(&data)?;
            noted.note(&noted.handled, tick.n);
        }
        #[expect(unreachable_code, reason = "names the type of the errors")]
        anyhow::Ok(())
    });
    let done = async {
        let committed = commit_all(scratch, times, rolls_back, async |connection, n| {
            let id: i64 = sqlx::query_scalar("INSERT INTO ticks (key, data) VALUES ($1, $2::json) RETURNING id")
                .bind(format!("key-{}", n % 97))
                .bind(format!(r#"{{"n":{n}}}"#))
                .fetch_one(&mut *connection)
                .await?;
            sqlx::query("SELECT pg_notify('ticks', $1)")
                .bind(id.to_string())
                .execute(connection)
                .await?;
            Ok(())
        })
        .await?;
        all_handled(times, committed).await
    };
    let done = done.await;
    listening.abort();
    done
}

async fn all_handled(times: &Times, committed: u32) -> Result<()> {
    let begun = Instant::now();
    while times.handled() < committed as usize {
        ensure!(
            begun.elapsed() < Duration::from_secs(30),
            "{} of {committed} were handled",
            times.handled()
        );
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
