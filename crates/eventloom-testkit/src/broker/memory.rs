//! What arrives is kept in order, with the delivery id it came under; what is to go wrong is said beforehand.

use eventloom_core::{
    Envelope, Lane, Position, Uuid,
    ports::{Broker, BrokerError, Capabilities, Fate, Mark, Marks, Outgoing, Producer, Source},
};
use futures::{FutureExt, future::BoxFuture};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A message that has arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrived {
    /// Under which delivery id.
    pub delivery_id: String,
    /// Where it stood in the log that it came from.
    pub position: Position,
    /// The message.
    pub envelope: Envelope,
}

/// What happens to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// It is refused for its own sake.
    Refuse,
    /// It arrives, and its fate is not told, this many times.
    ArriveUntold(u32),
    /// It does not arrive, and its fate is not told, this many times.
    Vanish(u32),
}

#[derive(Debug, Default)]
struct State {
    arrived: Vec<Arrived>,
    /// Delivery ids that have arrived: a second time is swallowed, as brokers do.
    known: HashSet<String>,
    swallowed: u64,
    down: bool,
    confirms_after: Duration,
    blocked: HashSet<String>,
    then: HashMap<Uuid, Then>,
    refused_types: HashSet<String>,
    marks: HashMap<Source, BTreeMap<Lane, Mark>>,
    batches: u64,
    turned_away: u64,
}

/// A broker in memory. Clones are the same broker.
///
/// It keeps the order of keys within a batch, dedups on delivery ids, keeps marks, and takes payloads of 64 KiB.
#[derive(Debug, Clone)]
pub struct Memory {
    identity: Uuid,
    capabilities: Capabilities,
    state: Arc<Mutex<State>>,
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}

impl Memory {
    /// An empty one.
    pub fn new() -> Self {
        Memory {
            identity: Uuid::new_v4(),
            capabilities: Capabilities::new(64 << 10).pipelines(true).marks(true),
            state: Arc::default(),
        }
    }

    /// One that cannot keep several messages of a key in order within a batch: it takes each for itself.
    #[must_use]
    pub fn without_pipelines(mut self) -> Self {
        self.capabilities.pipelines = false;
        self
    }

    /// What has arrived, in order; each delivery id once.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.state().arrived.clone()
    }

    /// How often something came a second time under its delivery id.
    pub fn swallowed(&self) -> u64 {
        self.state().swallowed
    }

    /// Batches that were handed over.
    pub fn batches(&self) -> u64 {
        self.state().batches
    }

    /// How often somebody came while it was unreachable.
    pub fn turned_away(&self) -> u64 {
        self.state().turned_away
    }

    /// Makes it unreachable, or reachable again.
    pub fn down(&self, down: bool) {
        self.state().down = down;
    }

    /// Confirms this much later.
    pub fn confirms_after(&self, delay: Duration) {
        self.state().confirms_after = delay;
    }

    /// Refuses messages of a topic for the topic's sake, or takes them again.
    pub fn block(&self, topic: &str, blocked: bool) {
        let mut state = self.state();
        match blocked {
            true => drop(state.blocked.insert(topic.to_owned())),
            false => drop(state.blocked.remove(topic)),
        }
    }

    /// Refuses messages of this event type for their own sake.
    pub fn refuse_type(&self, event_type: &str) {
        self.state().refused_types.insert(event_type.to_owned());
    }

    /// What happens to the message of this logical id.
    pub fn on(&self, id: Uuid, then: Then) {
        self.state().then.insert(id, then);
    }

    /// The message of this logical id is taken like others again.
    pub fn mend(&self, id: Uuid) {
        self.state().then.remove(&id);
    }

    /// Forgets everything after a position, as a broker does that was restored from a backup.
    pub fn restore_to(&self, position: Position) {
        let mut state = self.state();
        state.arrived.retain(|arrived| arrived.position <= position);
        state.known = state
            .arrived
            .iter()
            .map(|arrived| arrived.delivery_id.clone())
            .collect();
        let marks = state.marks.values_mut();
        marks.for_each(|lanes| lanes.retain(|_, mark| mark.position <= position));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, source: &Source, outgoing: &Outgoing) -> Fate {
        let envelope = &outgoing.message.envelope;
        let (lane, epoch) = (outgoing.message.lane, outgoing.epoch);
        let mark = self.marks.get(source).and_then(|lanes| lanes.get(&lane));
        if mark.is_some_and(|mark| mark.epoch > epoch) {
            return Fate::Fenced;
        }
        if mark.map(|mark| mark.position) < outgoing.confirmed {
            return Fate::Lost;
        }
        if self.blocked.contains(&envelope.topic) {
            return Fate::Blocked(format!("topic {:?} is unknown", envelope.topic));
        }
        let then = Uuid::parse_str(&envelope.id).ok().and_then(|id| self.then.get_mut(&id));
        let untold = || Fate::Unknown("the connection was lost".to_owned());
        match then {
            _ if self.refused_types.contains(&envelope.event_type) => {
                return Fate::Refused("its type is not taken".to_owned());
            }
            Some(Then::Refuse) => return Fate::Refused("malformed".to_owned()),
            Some(Then::Vanish(times)) if *times > 0 => {
                *times -= 1;
                return untold();
            }
            Some(Then::ArriveUntold(times)) if *times > 0 => {
                *times -= 1;
                self.arrive(source, outgoing);
                return untold();
            }
            _ => {}
        }
        self.arrive(source, outgoing);
        Fate::Confirmed
    }

    fn arrive(&mut self, source: &Source, outgoing: &Outgoing) {
        let message = &outgoing.message;
        let marks = self.marks.entry(source.clone()).or_default();
        let mark = marks.entry(message.lane).or_insert_with(|| Mark {
            lane: message.lane,
            epoch: outgoing.epoch,
            position: Position::START,
            id: String::new(),
        });
        mark.epoch = mark.epoch.max(outgoing.epoch);
        if message.position > mark.position {
            mark.position = message.position;
            mark.id.clone_from(&message.envelope.id);
        }
        let delivery_id = outgoing.delivery_id(source);
        if !self.known.insert(delivery_id.clone()) {
            self.swallowed += 1;
            return;
        }
        let mut envelope = message.envelope.clone();
        envelope.origin = Some(source.log);
        self.arrived.push(Arrived {
            delivery_id,
            position: message.position,
            envelope,
        });
    }
}

impl Broker for Memory {
    type Producer = MemoryProducer;

    fn place(&self) -> String {
        "a broker in memory".to_owned()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        let most = self.capabilities.payload_bytes_max;
        let bytes = message
            .payload
            .as_ref()
            .map_or(0, |payload| payload.bytes().len() as u64);
        match bytes > most {
            true => Err(format!(
                "the payload has {bytes} bytes, and {} takes at most {most}",
                self.place()
            )),
            false => Ok(()),
        }
    }

    async fn producer(&self, source: &Source) -> Result<MemoryProducer, BrokerError> {
        let mut state = self.state();
        if state.down {
            state.turned_away += 1;
            return Err(BrokerError::Unreachable("nobody listens".to_owned()));
        }
        Ok(MemoryProducer {
            broker: self.clone(),
            source: source.clone(),
        })
    }
}

/// The sending side of [`Memory`].
#[derive(Debug)]
pub struct MemoryProducer {
    broker: Memory,
    source: Source,
}

impl Producer for MemoryProducer {
    type Ticket = BoxFuture<'static, Vec<Fate>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        Ok(Some(Marks {
            broker: self.broker.identity,
            lanes: match self.broker.state().marks.get(&self.source) {
                Some(marks) => marks.values().cloned().collect(),
                None => Vec::new(),
            },
        }))
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let (fates, delay) = {
            let mut state = self.broker.state();
            if state.down {
                state.turned_away += 1;
                return Err(BrokerError::Lost("nobody listens any more".to_owned()));
            }
            state.batches += 1;
            let mut stuck: HashSet<&str> = HashSet::new();
            let mut fates = Vec::with_capacity(batch.len());
            for outgoing in &batch {
                let key = outgoing.key().filter(|_| self.broker.capabilities.pipelines);
                let fate = match key {
                    Some(key) if stuck.contains(key) => Fate::Behind,
                    _ => state.take(&self.source, outgoing),
                };
                if fate != Fate::Confirmed {
                    stuck.extend(key);
                }
                fates.push(fate);
            }
            (fates, state.confirms_after)
        };
        Ok(async move {
            if !delay.is_zero() {
                // pacing: the broker's own
                tokio::time::sleep(delay).await;
            }
            fates
        }
        .boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{BrokerFixture, conformance};

    struct InMemory(Memory);

    impl BrokerFixture for InMemory {
        type Broker = Memory;

        async fn fresh(&self) -> Memory {
            Memory {
                state: Arc::default(),
                ..self.0.clone()
            }
        }

        async fn arrived(&self, broker: &Memory) -> Vec<Envelope> {
            broker.arrived().into_iter().map(|arrived| arrived.envelope).collect()
        }

        async fn refuse(&self, broker: &Memory, event_type: &str) -> bool {
            broker.refuse_type(event_type);
            true
        }
    }

    #[tokio::test]
    async fn it_is_a_broker_like_others() {
        for memory in [Memory::new(), Memory::new().without_pipelines()] {
            let report = conformance(&InMemory(memory)).await;
            assert!(report.failed.is_empty(), "{report}");
        }
    }

    /// Claims what it does not do.
    struct Boaster;

    impl BrokerFixture for Boaster {
        type Broker = Memory;

        async fn fresh(&self) -> Memory {
            let mut memory = Memory::new().without_pipelines();
            memory.capabilities.marks = false;
            memory.capabilities.pipelines = true;
            memory
        }

        async fn arrived(&self, broker: &Memory) -> Vec<Envelope> {
            broker.arrived().into_iter().map(|arrived| arrived.envelope).collect()
        }

        async fn refuse(&self, _broker: &Memory, _event_type: &str) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_claim_without_proof_fails() {
        let report = conformance(&Boaster).await;
        let failed: Vec<_> = report.failed.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            failed,
            ["pipelines_are_kept_as_claimed", "marks_are_kept_as_claimed"],
            "{report}"
        );
    }
}
