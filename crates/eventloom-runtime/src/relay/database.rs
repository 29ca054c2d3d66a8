//! A database as the broker of other services: what is relayed to it stands in its log, with the origin it came from, and
//! the consumers of that log handle it.

use eventloom_core::{
    Envelope, StoreError, StoreErrorKind, chain,
    ports::{Broker, BrokerError, Capabilities, Fate, Log, Marks, Outbox, Outgoing, Producer, Relays, Source, Untaken},
};
use futures::{FutureExt, future::BoxFuture};
use std::collections::{HashMap, HashSet};

/// A store, as a broker. What it refuses is found by halving the batch, so a message that it does not take costs a few
/// transactions more, and none beside it.
#[derive(Debug, Clone)]
pub struct Database<S> {
    store: S,
}

impl<S: Relays + Log + Outbox> Database<S> {
    /// A broker that is this store.
    pub fn new(store: S) -> Self {
        Database { store }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Relays + Log + Outbox> Broker for Database<S> {
    type Producer = DatabaseProducer<S>;

    fn place(&self) -> String {
        self.store.place()
    }

    fn capabilities(&self) -> Capabilities {
        let limits = self.store.limits();
        Capabilities::new(limits.payload_bytes_max as u64)
            .pipelines(true)
            .marks(true)
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        let most = self.store.limits().payload_bytes_max;
        let bytes = message.payload.as_ref().map_or(0, |payload| payload.bytes().len());
        if bytes > most {
            return Err(format!(
                "the payload has {bytes} bytes, and {} takes at most {most}",
                self.place()
            ));
        }
        Ok(())
    }

    async fn producer(&self, source: &Source) -> Result<DatabaseProducer<S>, BrokerError> {
        Ok(DatabaseProducer {
            store: self.store.clone(),
            source: source.clone(),
        })
    }
}

/// The sending side of [`Database`].
#[derive(Debug)]
pub struct DatabaseProducer<S> {
    store: S,
    source: Source,
}

impl<S: Relays + Log + Outbox> Producer for DatabaseProducer<S> {
    type Ticket = BoxFuture<'static, Vec<Fate>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        let broker = self.store.log_status().await.map_err(unreachable)?.identity;
        let lanes = self.store.relay_marks(&self.source).await.map_err(unreachable)?;
        Ok(Some(Marks { broker, lanes }))
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let (store, source) = (self.store.clone(), self.source.clone());
        Ok(async move { take_in(&store, &source, &batch).await }.boxed())
    }
}

/// Halves what is refused until it is known whose fault it is; everything before it is in the log by then.
async fn take_in<S: Relays>(store: &S, source: &Source, batch: &[Outgoing]) -> Vec<Fate> {
    let mut fates = Vec::with_capacity(batch.len());
    // Keys of which a message was not accepted: nothing of them may follow.
    let mut stuck: HashSet<&str> = HashSet::new();
    let mut parts = vec![batch];
    let mut unknown = None;
    while let Some(part) = parts.pop() {
        if let Some(why) = &unknown {
            fates.extend(part.iter().map(|_| Fate::Unknown(String::clone(why))));
            continue;
        }
        let is_stuck = |message: &Outgoing| message.key().is_some_and(|key| stuck.contains(key));
        let free: Vec<Outgoing> = part.iter().filter(|message| !is_stuck(message)).cloned().collect();
        let taken = match free.is_empty() {
            true => Ok(HashMap::new()),
            false => store.take_in(source, &free).await,
        };
        match taken {
            Ok(untaken) => fates.extend(part.iter().map(|message| match untaken.get(&message.message.lane) {
                _ if is_stuck(message) => Fate::Behind,
                Some(Untaken::Fenced) => Fate::Fenced,
                Some(Untaken::Lost) => Fate::Lost,
                None => Fate::Confirmed,
            })),
            Err(error) if is_a_message(&error) && part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) if is_a_message(&error) => {
                stuck.extend(part.iter().filter_map(Outgoing::key));
                fates.push(Fate::Refused(chain(&error).to_string()));
            }
            Err(error) => {
                let why = chain(&error).to_string();
                fates.extend(part.iter().map(|_| Fate::Unknown(why.clone())));
                unknown = Some(why);
            }
        }
    }
    fates
}

/// Whether the store refused for the sake of what it was given. Whatever else is wrong is tried again.
fn is_a_message(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Constraint
}

fn unreachable(error: StoreError) -> BrokerError {
    BrokerError::Unreachable(chain(&error).to_string())
}
