//! A broker that takes everything and keeps nothing: for measurements, and to see what a relay would do.

use eventloom_core::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use futures::{FutureExt, future::BoxFuture};
use std::time::Duration;

/// Confirms whatever it is given, and throws it away.
#[derive(Debug, Clone, Copy)]
pub struct Null {
    confirms_after: Duration,
    payload_bytes_max: u64,
}

impl Default for Null {
    fn default() -> Self {
        Null {
            confirms_after: Duration::ZERO,
            payload_bytes_max: u64::MAX,
        }
    }
}

impl Null {
    /// Confirms at once.
    pub fn new() -> Self {
        Null::default()
    }

    /// Refuses payloads of more bytes. There is no limit by default.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: u64) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// Confirms each batch this much later.
    #[must_use]
    pub fn confirms_after(mut self, delay: Duration) -> Self {
        self.confirms_after = delay;
        self
    }
}

impl Broker for Null {
    type Producer = NullProducer;

    fn place(&self) -> String {
        "nowhere".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(self.payload_bytes_max).pipelines(true)
    }

    fn check(&self, _message: &Envelope) -> Result<(), String> {
        Ok(())
    }

    async fn producer(&self, _source: &Source) -> Result<NullProducer, BrokerError> {
        Ok(NullProducer(*self))
    }
}

/// The sending side of [`Null`].
#[derive(Debug)]
pub struct NullProducer(Null);

impl Producer for NullProducer {
    type Ticket = BoxFuture<'static, Vec<Fate>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        Ok(None)
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let fates = vec![Fate::Confirmed; batch.len()];
        let delay = self.0.confirms_after;
        Ok(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            fates
        }
        .boxed())
    }
}
