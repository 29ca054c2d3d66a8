//! The three groups that follow the log, written once for both stores.

use crate::{
    event::{ORDERS, OrderPlaced},
    mail::{MailError, Mailbox},
    store::{Shop, ShopError},
};
use eventloom::{Consumer, Context, Database, EffectContext, EffectHandle, Eventloom, Relay, Service};
use std::{path::Path, time::Duration};

/// Orders that one transaction adds to the revenue at most.
const REVENUE_BATCH: u32 = 64;
/// Lanes in which one instance of the mailer is at work at once, and messages of a lane that it takes together.
const MAIL_LANES: u32 = 8;
const MAIL_BATCH: u32 = 16;
/// Calls of one instance whose results may not be stored yet: so many a kill can leave in the dark, to be made again.
pub(crate) const MAILS_IN_FLIGHT: u32 = MAIL_LANES * MAIL_BATCH;

/// A consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Group {
    Totals,
    Revenue,
    Mailer,
}

impl Group {
    pub(crate) const ALL: [Group; 3] = [Group::Totals, Group::Revenue, Group::Mailer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Totals => "totals",
            Group::Revenue => "revenue",
            Group::Mailer => "mailer",
        }
    }
}

/// Customer totals, by `+=`: a lost, doubled or misplaced order would show.
async fn add_to_total<S: Shop>(order: OrderPlaced, cx: &mut Context<'_, S>) -> Result<(), ShopError> {
    S::add_to_total(cx.connection(), &order).await
}

/// Monthly revenue, by `+=`, in the few rows that all customers share.
async fn add_to_revenue<S: Shop>(order: OrderPlaced, cx: &mut Context<'_, S>) -> Result<(), ShopError> {
    S::add_to_revenue(cx.connection(), &order).await
}

/// Confirms an order to its customer. The mailbox is outside of every transaction, so the call carries a key on which it
/// dedups: after a crash the same call is made again.
struct Mailer(Mailbox);

impl EffectHandle for Mailer {
    type Event = OrderPlaced;
    type Output = ();
    type Error = MailError;

    async fn handle(&self, order: OrderPlaced, cx: &mut EffectContext<'_>) -> Result<(), MailError> {
        self.0.send(cx.idempotency_key(), order.order, &order.customer)
    }
}

/// What a service has done, for whoever reads the log with `ORDERS_LOG=orders=info`.
pub(crate) async fn note_health<S: Shop>(service: &Service<S>) {
    for consumer in service.health().await.consumers {
        tracing::info!(?consumer, "before shutting down");
    }
}

/// The relay's name, among the readers of the shop's log.
pub(crate) const RELAY: &str = "orders-relay";

/// A service that hands the shop's events to another database.
pub(crate) fn relay<S: Shop, B: Shop>(shop: S, market: B, lease: Option<Duration>) -> Eventloom<S> {
    let relay = Relay::new(RELAY, Database::new(market)).topic(ORDERS);
    Eventloom::new(shop).relay(match lease {
        Some(lease) => relay.lease(lease),
        None => relay,
    })
}

/// A service with these groups.
pub(crate) fn service<S: Shop>(
    shop: S,
    groups: &[Group],
    mailbox: &Path,
    lease: Option<Duration>,
) -> Result<Eventloom<S>, MailError> {
    let mut service = Eventloom::new(shop);
    for group in groups {
        let consumer = Consumer::new(group.name()).topic(ORDERS);
        let consumer = match group {
            Group::Totals => consumer.handle(add_to_total::<S>),
            // Every transaction needs the rows of the months: more than one at a time would wait for each other, and a
            // short one lets another instance have its turn soon.
            Group::Revenue => consumer
                .handle(add_to_revenue::<S>)
                .in_flight(1)
                .batch_max(REVENUE_BATCH),
            Group::Mailer => {
                let mailer = Mailer(Mailbox::open(mailbox)?);
                consumer.effect(mailer).in_flight(MAIL_LANES).batch_max(MAIL_BATCH)
            }
        };
        service = service.consumer(match lease {
            Some(lease) => consumer.lease(lease),
            None => consumer,
        });
    }
    Ok(service)
}
