//! Any broker, with batches that get lost, answers that get lost, and deliveries that come twice.

use super::deliveries::reordered_by;
use eventloom_core::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What happens to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokerFault {
    /// It is not handed over.
    Fail,
    /// It gets lost on the way, and nobody tells.
    Vanish,
    /// It arrives, and the answer is lost.
    DropReply,
    /// It arrives twice, under the same delivery ids.
    Duplicate,
    /// It arrives in another order, random by this seed, that keeps the order of each key.
    Reorder(u64),
    /// It arrives, and there is no answer, ever: the relay gives up, in real time, after
    /// [`Relay::confirm_within`](eventloom_runtime::Relay::confirm_within).
    Silence,
}

#[derive(Debug, Default)]
struct State {
    ahead: VecDeque<Option<BrokerFault>>,
    every: Option<BrokerFault>,
    met: u64,
}

/// A broker with faults around it. Clones of it are the same, as long as those of the broker within are.
///
/// ```
/// use eventloom_runtime::Relay;
/// use eventloom_testkit::{broker::Memory, faults::{BrokerFault, FaultyBroker}};
///
/// let broker = FaultyBroker::new(Memory::new());
/// broker.nth(1, BrokerFault::DropReply);
/// let relay = Relay::new("relay", broker.clone());
/// ```
#[derive(Debug, Clone)]
pub struct FaultyBroker<B> {
    broker: B,
    state: Arc<Mutex<State>>,
}

impl<B> FaultyBroker<B> {
    /// This broker, as it is until a fault is announced.
    pub fn new(broker: B) -> Self {
        FaultyBroker {
            broker,
            state: Arc::default(),
        }
    }

    /// The broker itself.
    pub fn inner(&self) -> &B {
        &self.broker
    }

    /// Lets this happen to the next `batches` batches.
    pub fn next(&self, fault: BrokerFault, batches: u32) {
        self.state().ahead = (0..batches).map(|_| Some(fault)).collect();
    }

    /// Lets this happen to the `nth` batch from now on, counted from 1, and to no other.
    pub fn nth(&self, nth: u32, fault: BrokerFault) {
        let through = (1..nth).map(|_| None);
        self.state().ahead = through.chain([Some(fault)]).collect();
    }

    /// Lets this happen to every batch from now on.
    pub fn every(&self, fault: BrokerFault) {
        self.state().every = Some(fault);
    }

    /// Forgets everything that was announced.
    pub fn mend(&self) {
        let mut state = self.state();
        state.ahead.clear();
        state.every = None;
    }

    /// How many batches have met a fault. A test without any has shown nothing.
    pub fn met(&self) -> u64 {
        self.state().met
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self) -> Option<BrokerFault> {
        let mut state = self.state();
        let fault = state.ahead.pop_front().flatten().or(state.every);
        state.met += u64::from(fault.is_some());
        fault
    }
}

impl<B: Broker + Clone> Broker for FaultyBroker<B> {
    type Producer = FaultyProducer<B>;

    fn place(&self) -> String {
        self.broker.place()
    }

    fn capabilities(&self) -> Capabilities {
        self.broker.capabilities()
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        self.broker.check(message)
    }

    async fn producer(&self, source: &Source) -> Result<FaultyProducer<B>, BrokerError> {
        Ok(FaultyProducer {
            producer: self.broker.producer(source).await?,
            broker: self.clone(),
        })
    }
}

/// The sending side of [`FaultyBroker`].
#[derive(Debug)]
pub struct FaultyProducer<B: Broker> {
    producer: B::Producer,
    broker: FaultyBroker<B>,
}

impl<B: Broker + Clone> Producer for FaultyProducer<B> {
    type Ticket = BoxFuture<'static, Vec<Fate>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        self.producer.marks().await
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let lost = vec![Fate::Unknown("the connection was lost".to_owned()); batch.len()];
        match self.broker.fault() {
            None => Ok(self.producer.submit(batch).await?.boxed()),
            Some(BrokerFault::Fail) => Err(BrokerError::Unreachable("nobody listens".to_owned())),
            Some(BrokerFault::Vanish) => Ok(async move { lost }.boxed()),
            Some(BrokerFault::DropReply) => {
                self.producer.submit(batch).await?.await;
                Ok(async move { lost }.boxed())
            }
            Some(BrokerFault::Silence) => {
                self.producer.submit(batch).await?.await;
                Ok(std::future::pending().boxed())
            }
            Some(BrokerFault::Duplicate) => {
                self.producer.submit(batch.clone()).await?.await;
                Ok(self.producer.submit(batch).await?.boxed())
            }
            Some(BrokerFault::Reorder(seed)) => {
                let numbered: Vec<(usize, Outgoing)> = batch.into_iter().enumerate().collect();
                let shuffled = reordered_by(numbered, seed, |(_, message)| message.key().map(str::to_owned));
                let (places, batch): (Vec<usize>, Vec<Outgoing>) = shuffled.into_iter().unzip();
                let ticket = self.producer.submit(batch).await?;
                Ok(async move {
                    let mut fates = lost;
                    for (place, fate) in places.into_iter().zip(ticket.await) {
                        fates[place] = fate;
                    }
                    fates
                }
                .boxed())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::broker::Memory;
    use eventloom_core::{ConsumerName, Epoch, Lane, OffsetDateTime, Position, Recorded, Uuid};

    fn outgoing(position: i64) -> Outgoing {
        let id = Uuid::new_v4().to_string();
        let mut envelope = Envelope::new(id, "orders", "order.placed", OffsetDateTime::UNIX_EPOCH);
        envelope.key = Some(if position % 2 == 0 { "even" } else { "odd" }.to_owned());
        Outgoing {
            message: Arc::new(Recorded {
                position: Position(position),
                lane: Lane(0),
                envelope,
                omitted: None,
            }),
            epoch: Epoch(1),
            redrives: 0,
            confirmed: None,
        }
    }

    #[tokio::test]
    async fn keys_are_shuffled_and_each_message_is_told_its_own_fate() {
        let memory = Memory::new();
        let broker = FaultyBroker::new(memory.clone());
        let source = Source {
            log: Uuid::new_v4(),
            reader: ConsumerName::parse("relay").unwrap(),
        };
        let mut producer = broker.producer(&source).await.unwrap();
        let batch: Vec<Outgoing> = (1..=10).map(outgoing).collect();
        let refused = Uuid::parse_str(&batch[9].message.envelope.id).unwrap();
        memory.on(refused, crate::broker::Then::Refuse);
        broker.nth(1, BrokerFault::Reorder(3));
        let fates = producer.submit(batch).await.unwrap().await;
        let confirmed: Vec<bool> = fates.iter().map(|fate| *fate == Fate::Confirmed).collect();
        assert_eq!(confirmed, [vec![true; 9], vec![false]].concat());
        let arrived: Vec<i64> = memory.arrived().iter().map(|arrived| arrived.position.0).collect();
        let of = |rest| arrived.iter().filter(|at| *at % 2 == rest).collect::<Vec<_>>();
        assert!(!arrived.is_sorted(), "{arrived:?}");
        assert!(of(0).is_sorted() && of(1).is_sorted(), "{arrived:?}");
    }
}
