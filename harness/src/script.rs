//! A whole life in one process: migrate, place, handle, fail, hold, redrive, prune, stop. It can end at any step and be
//! started again; what is done already is not done again.

use crate::{
    actor::{open, tell},
    business::{self, Business},
    consume::{Consuming, start},
    database::Database,
    operator::{Operator, open_ends},
    relay::{self, Relaying, relayed},
    site::Site,
    wait::until,
    workload::{Kind, ORDERS, Placed},
};
use anyhow::{Context, Result};
use eventloom::{NewEvent, Publish, Uuid};
use std::time::Duration;

/// Few, so that each has much to do.
pub(crate) const LANES: u16 = 4;
pub(crate) const GROUPS: [&str; 4] = ["ledger", "hot", "caller", "follower"];
const STEP_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 800)]
    lease_ms: u64,
    /// Waits until idle lanes have followed the head, and prunes.
    #[arg(long)]
    prune: bool,
}

/// What is placed at first, and what follows once the poison is dead.
fn orders() -> (Vec<Placed>, Vec<Placed>) {
    let order = |key: &str, seq, kind| Placed {
        key: key.to_owned(),
        seq,
        kind,
    };
    let first = [
        ("a", [Kind::Ok, Kind::Publishes, Kind::Slow]),
        ("b", [Kind::Transient, Kind::Ok, Kind::Ok]),
        ("c", [Kind::Poison, Kind::Ok, Kind::Publishes]),
        ("d", [Kind::Ok, Kind::Transient, Kind::Ok]),
        ("e", [Kind::Slow, Kind::Ok, Kind::Ok]),
    ];
    let first = first.into_iter().flat_map(|(key, kinds)| {
        let kinds = kinds.into_iter().zip(1..);
        kinds.map(move |(kind, seq)| order(key, seq, kind))
    });
    let later = [
        order("c", 4, Kind::Ok),
        order("c", 5, Kind::Transient),
        order("a", 4, Kind::Ok),
    ];
    (first.collect(), later.to_vec())
}

pub(crate) async fn run<S: Business>(site: Site, options: Options) -> Result<()> {
    business::migrate(&site, LANES).await?;
    relayed::migrate(&site).await?;
    let store: S = open(&site, false).await?;
    let database = Database::of(&site)?;
    let target = relayed::database(&site)?;
    let operator = Operator::new(store.clone(), site.clone());
    let (first, later) = orders();
    place_missing(&store, &first).await?;
    publish_alone(&store).await?;
    let consuming = Consuming {
        groups: GROUPS.map(str::to_owned).to_vec(),
        lease_ms: options.lease_ms,
        batch_max: 8,
        ahead_s: 0,
        without_inbox: false,
        pooled: false,
        gated: false,
        attempts: crate::workload::ATTEMPTS_MAX,
        single: false,
        keep_log: true,
    };
    let relaying = Relaying {
        target: None,
        to_file: false,
        lease_ms: options.lease_ms,
        batch_max: 4,
        late_ms: 0,
    };
    let relay = relay::actor::relay(&relaying, eventloom::Database::new(relayed::open::<S>(&site).await?));
    let service = start(&site, store.clone(), &consuming, Some(relay)).await?;
    // The poison of each group is dead, or was cured in an earlier life.
    let dead = until(STEP_WITHIN, || async {
        let dead = operator.dead().await.ok()?.len();
        (dead + std::fs::read_dir(site.folder.join("cured")).ok()?.count() >= 3).then_some(())
    });
    dead.await.context("the poison did not die")?;
    place_missing(&store, &later).await?;
    let queued = until(STEP_WITHIN, || async {
        let cured = std::fs::read_dir(site.folder.join("cured")).ok()?.count() > 0;
        let queued = "SELECT CAST(count(*) AS TEXT) FROM eventloom.held WHERE key = 'c'";
        (cured || database.number(queued).await.ok()? >= 15).then_some(())
    });
    queued.await.context("what follows the poison did not queue")?;
    let handled = until(STEP_WITHIN, || async {
        operator.redrive_all().await.ok()?;
        let open = open_ends(&database, &site, &GROUPS, options.prune).await.ok()?;
        // What an earlier life has pruned cannot be compared; that the relay's cursors have followed is among `open` then.
        let arrived = options.prune || relayed::wrong(&database, &target).await.ok()?.is_empty();
        (open.is_empty() && arrived).then_some(())
    });
    if handled.await.is_none() {
        let mut open = open_ends(&database, &site, &GROUPS, options.prune).await?;
        open.extend(relayed::wrong(&database, &target).await?);
        anyhow::bail!("not everything was handled: {}", open.join("; "));
    }
    if options.prune {
        while store.prune(Duration::ZERO, 10, None).await?.more {}
    }
    service.shutdown(Duration::from_secs(10)).await?;
    tell("done");
    Ok(())
}

/// In pairs, so that transactions hold more than one event.
async fn place_missing<S: Business>(store: &S, orders: &[Placed]) -> Result<()> {
    let mut missing = Vec::new();
    for order in orders {
        if store.last_placed(&order.key).await? < order.seq {
            missing.push(order.clone());
        }
    }
    for pair in missing.chunks(2) {
        tell("begin");
        store.place_orders(pair).await?;
        let told: Vec<String> = pair
            .iter()
            .map(|order| format!("{}:{}", order.key, order.seq))
            .collect();
        tell(&format!("ack {}", told.join(" ")));
    }
    Ok(())
}

/// As a client does that does not know whether it has published: again, under the same id.
async fn publish_alone<S: Business>(store: &S) -> Result<()> {
    let order = Placed {
        key: "solo-script".to_owned(),
        seq: 1,
        kind: Kind::Ok,
    };
    let row = NewEvent::of(ORDERS, &order)?.with_id(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001));
    tell("begin solo-script");
    store.publish_row(row).await?;
    tell("ack solo-script:1");
    Ok(())
}
