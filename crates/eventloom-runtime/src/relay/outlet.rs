//! A broker without its type: an engine has one for each relay, and they differ.

use eventloom_core::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use futures::{FutureExt, future::BoxFuture};

/// Fates to come.
pub(crate) type Ticket = BoxFuture<'static, Vec<Fate>>;

/// A broker.
pub(crate) trait Outlet: Send + Sync {
    fn place(&self) -> String;
    fn capabilities(&self) -> Capabilities;
    fn check(&self, message: &Envelope) -> Result<(), String>;
    fn producer<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Box<dyn AnyProducer>, BrokerError>>;
}

/// Its sending side.
pub(crate) trait AnyProducer: Send {
    fn marks(&mut self) -> BoxFuture<'_, Result<Option<Marks>, BrokerError>>;
    fn submit(&mut self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Ticket, BrokerError>>;
}

pub(crate) struct AnyBroker<B>(pub(crate) B);

impl<B: Broker> Outlet for AnyBroker<B> {
    fn place(&self) -> String {
        self.0.place()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        self.0.check(message)
    }

    fn producer<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Box<dyn AnyProducer>, BrokerError>> {
        async move { Ok(Box::new(Sending(self.0.producer(source).await?)) as Box<dyn AnyProducer>) }.boxed()
    }
}

struct Sending<P>(P);

impl<P: Producer> AnyProducer for Sending<P> {
    fn marks(&mut self) -> BoxFuture<'_, Result<Option<Marks>, BrokerError>> {
        self.0.marks().boxed()
    }

    fn submit(&mut self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Ticket, BrokerError>> {
        self.0.submit(batch).map(|ticket| ticket.map(FutureExt::boxed)).boxed()
    }
}
