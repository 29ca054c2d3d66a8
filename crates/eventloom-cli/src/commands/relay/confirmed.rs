//! Counts what a broker confirms, for the report: the engine's own counts end with the service that they are asked of.

use eventloom::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Messages that were confirmed so far. One that was sent twice counts twice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Confirmed(Arc<AtomicU64>);

impl Confirmed {
    pub(crate) fn messages(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, fates: &[Fate]) {
        let confirmed = fates.iter().filter(|fate| **fate == Fate::Confirmed).count();
        self.0.fetch_add(confirmed as u64, Ordering::Relaxed);
    }
}

/// A broker whose confirmations are counted.
pub(crate) struct Counted<B> {
    pub(crate) broker: B,
    pub(crate) confirmed: Confirmed,
}

impl<B: Broker> Broker for Counted<B> {
    type Producer = CountedProducer<B::Producer>;

    fn place(&self) -> String {
        self.broker.place()
    }

    fn capabilities(&self) -> Capabilities {
        self.broker.capabilities()
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        self.broker.check(message)
    }

    async fn producer(&self, source: &Source) -> Result<Self::Producer, BrokerError> {
        Ok(CountedProducer {
            producer: self.broker.producer(source).await?,
            confirmed: self.confirmed.clone(),
        })
    }
}

/// Its sending side.
pub(crate) struct CountedProducer<P> {
    producer: P,
    confirmed: Confirmed,
}

impl<P: Producer> Producer for CountedProducer<P> {
    type Ticket = Pin<Box<dyn Future<Output = Vec<Fate>> + Send>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        self.producer.marks().await
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let ticket = self.producer.submit(batch).await?;
        let confirmed = self.confirmed.clone();
        Ok(Box::pin(async move {
            let fates = ticket.await;
            confirmed.add(&fates);
            fates
        }))
    }
}
