//! A placer: business rows and events in one transaction, again and again; it says what was acknowledged.

use crate::{
    actor::{open, tell, told_to_end},
    business::Business,
    site::Site,
    workload::{ORDERS, Placed, kind_of},
};
use anyhow::{Result, bail};
use eventloom::{NewEvent, Publish};
use std::{collections::HashMap, time::Duration};

/// What a placer places.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Placing {
    #[arg(long)]
    seed: u64,
    /// Which of the placers this is, and how many there are: the keys are split among them.
    #[arg(long)]
    part: u64,
    #[arg(long)]
    parts: u64,
    #[arg(long)]
    keys: u64,
    /// Milliseconds between transactions.
    #[arg(long, default_value_t = 10)]
    pace_ms: u64,
}

/// Places orders until it is told to stop.
pub(crate) async fn run<S: Business>(site: &Site, placing: &Placing) -> Result<()> {
    let store: S = open(site, false).await?;
    let mut rng = fastrand::Rng::new();
    let mine: Vec<String> = (0..placing.keys)
        .filter(|key| key % placing.parts == placing.part)
        .map(|key| format!("key-{key}"))
        .collect();
    let mut last: HashMap<String, i64> = HashMap::new();
    tell("ready");
    let placed = async {
        while !site.stop().exists() {
            if site.pause().exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            if rng.u32(..100) < 5 {
                solo(&store, placing, &mut rng).await?;
            } else {
                several(&store, placing, &mine, &mut last, &mut rng).await?;
            }
            tokio::time::sleep(Duration::from_millis(rng.u64(0..=placing.pace_ms * 2))).await;
        }
        Ok(())
    };
    tokio::select! {
        placed = placed => placed,
        () = told_to_end() => Ok(()),
    }
}

/// One to four orders in a transaction. What was acknowledged is told; after an error it is looked up what happened.
async fn several<S: Business>(
    store: &S,
    placing: &Placing,
    keys: &[String],
    last: &mut HashMap<String, i64>,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let mut orders = Vec::new();
    for _ in 0..rng.usize(1..=4) {
        let key = keys[rng.usize(..keys.len())].clone();
        let before = match last.get(&key) {
            Some(before) => *before,
            None => last_placed(store, &key).await?,
        };
        let seq = before + 1;
        last.insert(key.clone(), seq);
        orders.push(Placed {
            kind: kind_of(placing.seed, &key, seq),
            key,
            seq,
        });
    }
    tell("begin");
    match store.place_orders(&orders).await {
        Ok(()) => {
            let told: Vec<String> = orders
                .iter()
                .map(|order| format!("{}:{}", order.key, order.seq))
                .collect();
            tell(&format!("ack {}", told.join(" ")));
        }
        Err(error) => {
            eprintln!("not placed, or not known: {error:#}");
            tell("lost");
            for order in &orders {
                last.remove(&order.key);
            }
        }
    }
    Ok(())
}

async fn last_placed<S: Business>(store: &S, key: &str) -> Result<i64> {
    let mut tries = 0;
    loop {
        match store.last_placed(key).await {
            Ok(last) => return Ok(last),
            Err(error) if tries < 200 => {
                tries += 1;
                eprintln!("cannot look up {key}: {error:#}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// One event published alone, under the same id until it is known to be in the log.
async fn solo<S: Business>(store: &S, placing: &Placing, rng: &mut fastrand::Rng) -> Result<()> {
    let key = format!("solo-{:x}", rng.u64(..));
    let order = Placed {
        kind: kind_of(placing.seed, &key, 1),
        key,
        seq: 1,
    };
    let row = NewEvent::of(ORDERS, &order)?;
    tell(&format!("begin {}", order.key));
    for _ in 0..200 {
        match store.publish_row(row.clone()).await {
            Ok(_) => {
                tell(&format!("ack {}:1", order.key));
                return Ok(());
            }
            Err(error) => {
                eprintln!("published again: {error:#}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    bail!("a single event could not be published")
}
