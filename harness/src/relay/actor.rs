//! The process that relays.

use super::{late::Late, receiver::Receiver, relayed};
use crate::{
    actor::{open, tell, told_to_end},
    business::Business,
    site::Site,
};
use anyhow::{Context, Result};
use eventloom::{Backoff, Database, Eventloom, Relay, Service};
use std::time::Duration;

pub(crate) const NAME: &str = "relay";

/// How a relay is set up.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Relaying {
    /// The store to relay to; the one beside the source unless said otherwise.
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// To the file that stands for a receiver.
    #[arg(long)]
    pub(crate) to_file: bool,
    #[arg(long, default_value_t = 1200)]
    pub(crate) lease_ms: u64,
    #[arg(long, default_value_t = 50)]
    pub(crate) batch_max: u32,
    /// The broker's answers come up to this much later.
    #[arg(long, default_value_t = 0)]
    pub(crate) late_ms: u64,
}

/// A relay with short times.
pub(crate) fn relay(options: &Relaying, broker: impl eventloom::ports::Broker) -> Relay {
    let backoff = Backoff::default()
        .first(Duration::from_millis(40))
        .most(Duration::from_millis(400));
    Relay::new(NAME, broker)
        .backoff(backoff)
        .attempts(6)
        .lease(Duration::from_millis(options.lease_ms))
        .batch_max(options.batch_max)
}

/// Relays until it is told to end, or until a relay raises an alarm.
pub(crate) async fn run<S: Business>(site: Site, options: Relaying) -> Result<()> {
    let store: S = open(&site, false).await?;
    let relay = match (&options.target, options.to_file) {
        (_, true) => relay(&options, Receiver::new(&site)),
        (Some(url), _) => {
            let target: S = open(&Site::new(url, &site.folder)?, false).await?;
            let most = Duration::from_millis(options.late_ms);
            let broker = Database::new(target);
            relay(&options, Late { broker, most })
        }
        (None, _) => relay(&options, Database::new(relayed::open::<S>(&site).await?)),
    };
    let service = Eventloom::new(store).keep_log(None).relay(relay).start().await;
    let service = service.context("starting the relay")?;
    tell("ready");
    let reports = async {
        loop {
            // pacing: of reports
            tokio::time::sleep(Duration::from_millis(100)).await;
            report(&service).await;
        }
    };
    tokio::select! {
        () = reports => {}
        (_, why) = service.alarmed() => tell(&format!("alarm {why}")),
        () = told_to_end() => {}
    }
    report(&service).await;
    service.shutdown(Duration::from_secs(10)).await?;
    tell("done");
    Ok(())
}

async fn report<S: Business>(service: &Service<S>) {
    let health = service.health().await;
    let relay = &health.consumers[0];
    tell(&format!(
        "health {} {} {} {} {} {}",
        relay.handled, relay.suspects, relay.duplicates, relay.conflicts, relay.fenced, relay.lanes
    ));
}
