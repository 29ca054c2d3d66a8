//! A broker whose answers come late, so that a relay which dies does so between delivery and confirmation.

use eventloom::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use std::{future::Future, pin::Pin, time::Duration};

/// Another broker, with late answers.
pub(crate) struct Late<B> {
    pub(crate) broker: B,
    pub(crate) most: Duration,
}

impl<B: Broker> Broker for Late<B> {
    type Producer = LateProducer<B::Producer>;

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
        Ok(LateProducer {
            producer: self.broker.producer(source).await?,
            most: self.most,
        })
    }
}

/// Its sending side.
pub(crate) struct LateProducer<P> {
    producer: P,
    most: Duration,
}

impl<P: Producer> Producer for LateProducer<P> {
    type Ticket = Pin<Box<dyn Future<Output = Vec<Fate>> + Send>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        self.producer.marks().await
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let ticket = self.producer.submit(batch).await?;
        let late = self.most.mul_f64(fastrand::f64());
        Ok(Box::pin(async move {
            let fates = ticket.await;
            // pacing: the answer's way
            tokio::time::sleep(late).await;
            fates
        }))
    }
}
