//! Instances of the groups: what they are, and how they report.

use crate::{
    actor::{open, tell, told_to_end},
    business::Business,
    handlers::{Caller, Follower, Ledger, Stage},
    site::Site,
    workload::{ATTEMPTS_MAX, FOLLOWED, ORDERS},
};
use anyhow::{Context, Result, bail};
use eventloom::{
    Awake, Backoff, Clock, Consumer, ConsumerHealth, Eventloom, OffsetDateTime, Relay, Service, TokioClock,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Calls to the outside at once, for each instance.
pub(crate) const CALLS_MAX: u32 = 4;

/// How consumers are set up.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Consuming {
    /// Which groups this process is an instance of.
    #[arg(long, value_delimiter = ',')]
    pub(crate) groups: Vec<String>,
    #[arg(long, default_value_t = 1200)]
    pub(crate) lease_ms: u64,
    #[arg(long, default_value_t = 64)]
    pub(crate) batch_max: u32,
    /// How far this process's clock runs ahead.
    #[arg(long, default_value_t = 0)]
    pub(crate) ahead_s: i64,
    /// The cursor alone protects.
    #[arg(long)]
    pub(crate) without_inbox: bool,
    /// As behind a pooler: former owners' backends are not ended.
    #[arg(long)]
    pub(crate) pooled: bool,
    /// Handlers stand at gates.
    #[arg(long)]
    pub(crate) gated: bool,
    /// Attempts before a message is dead.
    #[arg(long, default_value_t = ATTEMPTS_MAX)]
    pub(crate) attempts: u32,
    /// One transaction, or call, at a time.
    #[arg(long)]
    pub(crate) single: bool,
    /// Nothing is pruned.
    #[arg(long)]
    pub(crate) keep_log: bool,
}

/// A clock that runs ahead of everybody else's, so that its process takes live owners for dead ones.
struct Ahead(i64);

impl Clock for Ahead {
    fn bind(&self) -> Option<OffsetDateTime> {
        Some(OffsetDateTime::now_utc() + Duration::from_secs(self.0.unsigned_abs()))
    }

    fn now(&self) -> Instant {
        TokioClock.now()
    }

    fn wake_at(&self, until: Instant) -> eventloom_core::BoxFuture<'static, Awake> {
        TokioClock.wake_at(until)
    }
}

/// A consumer of the runs by its name.
fn consumer<S: Business>(name: &str, stage: &Arc<Stage>, options: &Consuming) -> Result<Consumer<S>> {
    let stage = stage.clone();
    let consumer = Consumer::new(name)
        .lease(Duration::from_millis(options.lease_ms))
        .batch_max(options.batch_max)
        .attempts(options.attempts)
        .backoff(
            Backoff::default()
                .first(Duration::from_millis(40))
                .most(Duration::from_millis(400)),
        );
    let consumer = match name {
        "ledger" | "hot" => consumer.topic(ORDERS).handle(Ledger {
            stage,
            hot: name == "hot",
        }),
        "caller" => consumer.topic(ORDERS).in_flight(CALLS_MAX).effect(Caller { stage }),
        "follower" => consumer.topic(FOLLOWED).handle(Follower),
        _ => bail!("there is no group {name:?}"),
    };
    let consumer = if options.single {
        consumer.in_flight(1)
    } else {
        consumer
    };
    Ok(if options.without_inbox {
        consumer.without_inbox()
    } else {
        consumer
    })
}

/// Starts the groups of a process.
pub(crate) async fn start<S: Business>(
    site: &Site,
    store: S,
    options: &Consuming,
    relay: Option<Relay>,
) -> Result<Service<S>> {
    let stage = Arc::new(Stage {
        site: site.clone(),
        gated: options.gated,
    });
    let mut service = Eventloom::new(store);
    if options.keep_log {
        service = service.keep_log(None);
    }
    if options.ahead_s != 0 {
        service = service.clock(Ahead(options.ahead_s));
    }
    for name in &options.groups {
        service = service.consumer(consumer(name, &stage, options)?);
    }
    if let Some(relay) = relay {
        service = service.relay(relay);
    }
    service.start().await.context("starting the consumers")
}

/// Handles orders until it is told to end.
pub(crate) async fn run<S: Business>(site: Site, options: Consuming) -> Result<()> {
    let store: S = open(&site, options.pooled).await?;
    let service = start(&site, store, &options, None).await?;
    tell("ready");
    let reports = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            report(&service).await;
        }
    };
    tokio::select! {
        () = reports => {}
        () = told_to_end() => {}
    }
    report(&service).await;
    service.shutdown(Duration::from_secs(10)).await?;
    tell("done");
    Ok(())
}

/// Counts since the start of this process, summed over its groups.
async fn report<S: Business>(service: &Service<S>) {
    let health = service.health().await;
    let sum = |of: fn(&ConsumerHealth) -> u64| health.consumers.iter().map(of).sum::<u64>();
    tell(&format!(
        "health {} {} {} {} {} {}",
        sum(|consumer| consumer.handled),
        sum(|consumer| consumer.suspects),
        sum(|consumer| consumer.duplicates),
        sum(|consumer| consumer.conflicts),
        sum(|consumer| consumer.fenced),
        sum(|consumer| consumer.lanes as u64),
    ));
}
