//! Handlers that call the outside and wait, with 16 calls in flight and the order of each key kept, against the ideal
//! schedule of the waits that were measured.
//!
//! The ideal has 16 hands and no cost: whoever is free makes the first call of the log whose key is free.

use crate::{
    Bench,
    database::Scratch,
    figure::{Aim, Figure, Sample},
    fill::fill,
    progress::Progress,
};
use anyhow::{Result, ensure};
use eventloom::{Event, NewEvent, Payload, Topic, postgres::prelude::*};
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub(crate) const NAME: &str = "effects";
pub(crate) const ABOUT: &str = "effect handlers that wait 0 to 5 ms, 16 in flight, against the ideal schedule";

const CALLS: Topic = Topic::new("calls");
const IN_FLIGHT: u32 = 16;
const KEYS: u32 = 1000;
const WAIT_MAX_US: u64 = 5000;

#[derive(Serialize, Deserialize)]
struct Call {
    n: u32,
    wait_us: u64,
}

impl Event for Call {
    const TYPE: &'static str = "call";
}

/// When each call began and ended, in seconds since the lane began.
#[derive(Default)]
struct Calls(Mutex<Vec<(u32, f64, f64)>>);

struct Waits {
    begun: Instant,
    calls: Arc<Calls>,
    progress: Progress,
}

impl EffectHandle for Waits {
    type Event = Call;
    type Output = ();
    type Error = Infallible;

    async fn handle(&self, event: Call, _cx: &mut EffectContext<'_>) -> Result<(), Infallible> {
        let from = self.begun.elapsed().as_secs_f64();
        tokio::time::sleep(Duration::from_micros(event.wait_us)).await;
        let to = self.begun.elapsed().as_secs_f64();
        self.progress.one_more();
        let mut calls = self.calls.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push((event.n, from, to));
        Ok(())
    }
}

pub(crate) async fn figures(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let messages = bench.amount(10_000, 500);
    let scratch = Scratch::new(bench.store, 16).await?;
    fill(&scratch.pool, (0..messages).map(row)).await?;
    let (mut ideal, mut ours, mut ours_warm) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=bench.rounds {
        scratch.settle().await?;
        let before = scratch.snapshot().await?;
        let lane = run(&scratch, &format!("calls-{round}"), messages).await?;
        let counters = scratch.since(&before, messages).await?;
        // The first one warms up.
        if round == 0 {
            continue;
        }
        let rate = |seconds: f64| f64::from(messages) / seconds;
        ideal.push(Sample::from(rate(lane.ideal)));
        ours_warm.push(Sample::from(rate(lane.from_first_call)));
        ours.push(Sample {
            value: rate(lane.from_start),
            counters,
        });
    }
    scratch.drop().await?;
    let what = "effect handlers waiting 0 to 5 ms, 16 in flight, 1,000 keys in order";
    let ours = Figure::new(NAME, what, "the ideal schedule of the measured waits", &ideal, &ours);
    let against = "the same, from the first call on";
    Ok(vec![
        ours.tasks(IN_FLIGHT).aim(Aim::AtLeast(0.9)),
        Figure::new(NAME, what, against, &ideal, &ours_warm).tasks(IN_FLIGHT),
    ])
}

fn row(n: u32) -> NewEvent {
    // The same ones in each run.
    let wait_us = (u64::from(n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % (WAIT_MAX_US + 1);
    NewEvent::untyped(CALLS, Call::TYPE)
        .with_key(key_of(n))
        .with_payload(Payload::Json(format!(r#"{{"n":{n},"wait_us":{wait_us}}}"#)))
}

fn key_of(n: u32) -> String {
    format!("key-{}", n % KEYS)
}

/// Seconds.
struct Took {
    ideal: f64,
    from_start: f64,
    from_first_call: f64,
}

async fn run(scratch: &Scratch, name: &str, messages: u32) -> Result<Took> {
    let (begun, calls) = (Instant::now(), Arc::new(Calls::default()));
    let progress = Progress::default();
    let waits = Waits {
        begun,
        calls: calls.clone(),
        progress: progress.clone(),
    };
    let consumer = Consumer::new(name).topic(CALLS).effect(waits).in_flight(IN_FLIGHT);
    let service = Eventloom::new(scratch.store.clone())
        .keep_log(None)
        .consumer(consumer)
        .start()
        .await?;
    progress.done(&service, messages).await?;
    let from_start = begun.elapsed().as_secs_f64();
    service.shutdown(Duration::from_secs(30)).await?;
    let mut calls = std::mem::take(&mut *calls.0.lock().unwrap_or_else(PoisonError::into_inner));
    ensure!(
        calls.len() == messages as usize,
        "{} calls of {messages} messages",
        calls.len()
    );
    let first = calls.iter().map(|(_, from, _)| *from).fold(f64::INFINITY, f64::min);
    calls.sort_unstable_by_key(|(n, _, _)| *n);
    ensure!(
        calls.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "a message was called twice"
    );
    let mut last_of_key: HashMap<u32, f64> = HashMap::new();
    for (n, from, to) in &calls {
        let last = last_of_key.insert(n % KEYS, *to);
        ensure!(
            last.is_none_or(|last| last <= *from),
            "call {n} overtook one of its key"
        );
    }
    let waits: Vec<f64> = calls.iter().map(|(_, from, to)| to - from).collect();
    Ok(Took {
        ideal: ideal(&waits),
        from_start,
        from_first_call: from_start - first,
    })
}

/// How long the waits take with [`IN_FLIGHT`] hands.
fn ideal(waits: &[f64]) -> f64 {
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let mut of_key: HashMap<usize, VecDeque<usize>> = HashMap::new();
    for n in 0..waits.len() {
        of_key.entry(n % KEYS as usize).or_default().push_back(n);
    }
    let mut ready: BTreeSet<usize> = of_key.values_mut().filter_map(VecDeque::pop_front).collect();
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut now = 0;
    loop {
        while running.len() < IN_FLIGHT as usize
            && let Some(n) = ready.pop_first()
        {
            running.push(Reverse((now + nanos(waits[n]), n)));
        }
        let Some(Reverse((ended, n))) = running.pop() else {
            return now as f64 / 1e9;
        };
        now = ended;
        ready.extend(of_key.get_mut(&(n % KEYS as usize)).and_then(VecDeque::pop_front));
    }
}
