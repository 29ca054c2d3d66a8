//! A store with a service on it, events that go in, and effects that come out.

use crate::faults::{FaultyStore as Troubled, StoreFaults as Trouble};
use crate::store::{Failed, Fixture};
use eventloom_core::{
    Classify, ConsumerName, Event, NewEvent, OwnerId, Payload, Position, RetryClass, StoreError, StoreErrorKind, Topic,
    Uuid,
    ports::{
        Backend, DeadLetter, DeadLetters, LetterFilter, Log, Outbox, ReadLimits, ReaderStatus, Readers, Scope, Store,
        Transaction as _,
    },
};
use eventloom_runtime::{Backoff, Consumer, Context, EffectContext, EffectHandle, Eventloom, Handle, Service};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

pub(crate) const STEPS: Topic = Topic::new("steps");
pub(crate) const EFFECTS: Topic = Topic::new("effects");
/// How long a case waits for what must come. Only a failing case waits for it.
const PATIENCE: Duration = Duration::from_secs(40);

/// A numbered event of a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) key: String,
    pub(crate) number: i64,
}

impl Event for Step {
    const TYPE: &'static str = "step.taken";
    fn key(&self) -> Option<Cow<'_, str>> {
        (!self.key.is_empty()).then_some(Cow::Borrowed(self.key.as_str()))
    }
}

/// What a handler did: the ledger of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) number: i64,
}

impl Effect {
    fn of(consumer: &ConsumerName, step: &Step) -> Self {
        Effect {
            consumer: consumer.to_string(),
            key: step.key.clone(),
            number: step.number,
        }
    }
}

impl Event for Effect {
    const TYPE: &'static str = "effect.done";
}

/// How a handler treats a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treat {
    Succeed,
    /// Fails as something that may pass, this many times.
    FailTimes(u32),
    FailAlways,
    FailForGood,
    /// Loses against another transaction, for ever.
    Conflict,
    Panic,
    /// Never ends.
    Hang,
    /// Works for this long, then succeeds.
    Take(Duration),
    /// Swallows an error of the database, and returns as if nothing had happened.
    AbortTransaction,
}

#[derive(Debug, thiserror::Error)]
#[error("step {0} was refused")]
pub(crate) struct StepError(i64, RetryClass, #[source] Option<StoreError>);

impl Classify for StepError {
    fn retry_class(&self) -> RetryClass {
        self.1
    }
}

/// What handlers of a case share with it.
#[derive(Debug, Default)]
pub(crate) struct Script {
    treat: Mutex<HashMap<(String, i64), Treat>>,
    runs: Mutex<HashMap<(String, i64), u32>>,
    everybody: Mutex<Option<Treat>>,
    keys: Mutex<Vec<String>>,
}

impl Script {
    pub(crate) fn set(&self, key: &str, number: i64, treat: Treat) {
        locked(&self.treat).insert((key.to_owned(), number), treat);
    }

    pub(crate) fn all(&self, treat: Option<Treat>) {
        *locked(&self.everybody) = treat;
    }

    pub(crate) fn runs(&self, key: &str, number: i64) -> u32 {
        locked(&self.runs).get(&(key.to_owned(), number)).copied().unwrap_or(0)
    }

    /// How often handlers ran, whatever the step.
    pub(crate) fn runs_in_all(&self) -> u32 {
        locked(&self.runs).values().sum()
    }

    /// Idempotency keys that calls were made under, in their order.
    pub(crate) fn keys(&self) -> Vec<String> {
        locked(&self.keys).clone()
    }

    /// What this run of the step is to do, and how often it ran.
    fn enter(&self, step: &Step) -> (Treat, u32) {
        let place = (step.key.clone(), step.number);
        let mut runs = locked(&self.runs);
        let run = runs.entry(place.clone()).or_insert(0);
        *run += 1;
        let own = locked(&self.treat).get(&place).copied();
        (own.or(*locked(&self.everybody)).unwrap_or(Treat::Succeed), *run)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn treat(treat: Treat, run: u32, number: i64) -> Result<(), StepError> {
    match treat {
        Treat::Succeed | Treat::AbortTransaction => Ok(()),
        Treat::FailTimes(times) if run > times => Ok(()),
        Treat::FailTimes(_) | Treat::FailAlways => Err(StepError(number, RetryClass::Transient, None)),
        Treat::FailForGood => Err(StepError(number, RetryClass::Permanent, None)),
        Treat::Conflict => {
            let locked = StoreError::new(StoreErrorKind::Conflict, "locking a row", "somebody else has it");
            Err(StepError(number, RetryClass::Transient, Some(locked)))
        }
        Treat::Panic => panic!("step {number} panics"),
        Treat::Hang => std::future::pending().await,
        Treat::Take(time) => {
            // pacing: the handler's own work, in two steps, so that it has to be looked at in between
            tokio::time::sleep(time / 2).await;
            tokio::time::sleep(time / 2).await;
            Ok(())
        }
    }
}

/// A handler of mode transaction that follows the script.
pub(crate) struct Scripted(pub(crate) Arc<Script>);

impl<S: Backend> Handle<S> for Scripted {
    type Event = Step;
    type Output = i64;
    type Error = StepError;
    async fn handle(&self, step: Step, cx: &mut Context<'_, S>) -> Result<i64, StepError> {
        let (how, run) = self.0.enter(&step);
        if how == Treat::AbortTransaction {
            // An event of a type that the table refuses: the statement fails, and the handler does not tell.
            let row = NewEvent::untyped(EFFECTS, "");
            let _ = S::append(&S::Tables::default(), cx.connection(), &[row]).await;
        }
        cx.publish(EFFECTS, &Effect::of(cx.consumer(), &step))
            .await
            .map_err(|_| StepError(step.number, RetryClass::Permanent, None))?;
        treat(how, run, step.number).await?;
        Ok(step.number)
    }
}

/// A handler of mode effect that follows the script.
pub(crate) struct Calling(pub(crate) Arc<Script>);

impl EffectHandle for Calling {
    type Event = Step;
    type Output = i64;
    type Error = StepError;
    async fn handle(&self, step: Step, cx: &mut EffectContext<'_>) -> Result<i64, StepError> {
        let (how, run) = self.0.enter(&step);
        locked(&self.0.keys).push(cx.idempotency_key().to_owned());
        cx.publish(EFFECTS, &Effect::of(cx.consumer(), &step))
            .await
            .map_err(|_| StepError(step.number, RetryClass::Permanent, None))?;
        treat(how, run, step.number).await?;
        Ok(step.number)
    }
}

/// A database, and what handlers do on it.
pub(crate) struct Scene<'f, F: Fixture> {
    pub(crate) fixture: &'f F,
    pub(crate) store: F::Store,
    pub(crate) script: Arc<Script>,
    /// Of services started with it.
    pub(crate) trouble: Trouble,
}

impl<'f, F: Fixture> Scene<'f, F> {
    pub(crate) async fn new(fixture: &'f F) -> Self {
        Scene {
            fixture,
            store: fixture.fresh().await,
            script: Arc::default(),
            trouble: Trouble::default(),
        }
    }

    /// A consumer of mode transaction with short times.
    pub(crate) fn consumer(&self, name: &str) -> Consumer<F::Store> {
        quick(Consumer::new(name).topic(STEPS).handle(Scripted(self.script.clone())))
    }

    /// A consumer of mode effect with short times.
    pub(crate) fn caller(&self, name: &str) -> Consumer<F::Store> {
        quick(Consumer::new(name).topic(STEPS).effect(Calling(self.script.clone())))
    }

    /// A service with one consumer, as another process would have it.
    pub(crate) async fn start(&self, consumer: Consumer<F::Store>) -> Result<Service<F::Store>, Failed> {
        let store = self.fixture.again(&self.store).await;
        Ok(Eventloom::new(store).keep_log(None).consumer(consumer).start().await?)
    }

    /// A consumer of mode transaction on a store that fails when the case says so.
    pub(crate) fn troubled(&self, name: &str) -> Consumer<Troubled<F::Store>> {
        quick(Consumer::new(name).topic(STEPS).handle(Scripted(self.script.clone())))
    }

    /// The same of mode effect.
    pub(crate) fn troubled_caller(&self, name: &str) -> Consumer<Troubled<F::Store>> {
        quick(Consumer::new(name).topic(STEPS).effect(Calling(self.script.clone())))
    }

    /// A service on a store that fails when the case says so.
    pub(crate) async fn start_troubled(
        &self,
        consumer: Consumer<Troubled<F::Store>>,
    ) -> Result<Service<Troubled<F::Store>>, Failed> {
        let store = Troubled::new(self.fixture.again(&self.store).await, self.trouble.clone());
        Ok(Eventloom::new(store).keep_log(None).consumer(consumer).start().await?)
    }

    /// Publishes steps, all in one transaction, in the order given.
    pub(crate) async fn publish(&self, steps: &[(&str, i64)]) -> Result<Vec<Uuid>, Failed> {
        let mut rows = Vec::new();
        for (key, number) in steps {
            rows.push(NewEvent::of(
                STEPS,
                &Step {
                    key: (*key).to_owned(),
                    number: *number,
                },
            )?);
        }
        let ids = rows.iter().map(NewEvent::id).collect();
        self.publish_rows(&rows).await?;
        Ok(ids)
    }

    /// Starts a consumer, and publishes step 1 of `a` three times under one id: twice in one batch, and once more later.
    /// Returns when what follows it, step 2, has taken effect.
    pub(crate) async fn deliver_one_id_thrice(
        &self,
        name: &str,
        consumer: Consumer<F::Store>,
    ) -> Result<Service<F::Store>, Failed> {
        let step = Step {
            key: "a".into(),
            number: 1,
        };
        let row = NewEvent::of(STEPS, &step)?;
        self.publish_rows(&[row.clone(), row.clone()]).await?;
        let service = self.start(consumer).await?;
        self.until_effects(name, 1).await?;
        self.publish_rows(&[row]).await?;
        self.publish(&[("a", 2)]).await?;
        self.until_effects(name, 2).await?;
        Ok(service)
    }

    pub(crate) async fn publish_rows(&self, rows: &[NewEvent]) -> Result<(), Failed> {
        let reader = ConsumerName::parse("publisher")?;
        let owner = OwnerId::new("conformance", std::process::id());
        let mut tx = self
            .store
            .begin(Scope {
                reader: &reader,
                owner: &owner,
                limit: PATIENCE,
            })
            .await?;
        if self.fixture.doubles() {
            F::Store::append(self.store.tables(), &mut tx, rows).await?;
        }
        F::Store::append(self.store.tables(), &mut tx, rows).await?;
        Ok(tx.commit().await?)
    }

    /// Effects of a consumer in the order of their commits: `(key, number)`.
    pub(crate) async fn effects(&self, consumer: &str) -> Result<Vec<(String, i64)>, Failed> {
        let mut effects = Vec::new();
        let mut after = Position::START;
        loop {
            let page = self.store.read_after(after, ReadLimits::default()).await?;
            for row in page.rows.iter().filter(|row| row.envelope.topic == EFFECTS.as_str()) {
                let bytes = row.envelope.payload.as_ref().map_or(&b"null"[..], Payload::bytes);
                let effect: Effect = serde_json::from_slice(bytes)?;
                if effect.consumer == consumer {
                    effects.push((effect.key, effect.number));
                }
            }
            after = page.scanned_to;
            if after >= page.horizon {
                return Ok(effects);
            }
        }
    }

    /// Effects of one key, in order.
    pub(crate) async fn effects_of(&self, consumer: &str, key: &str) -> Result<Vec<i64>, Failed> {
        let effects = self.effects(consumer).await?;
        Ok(effects
            .into_iter()
            .filter(|(of, _)| of == key)
            .map(|(_, number)| number)
            .collect())
    }

    /// Waits until a consumer has had this many effects, and for as long as it takes to see that there are no more than
    /// those: until its lag is nothing.
    pub(crate) async fn until_effects(&self, consumer: &str, count: usize) -> Result<Vec<(String, i64)>, Failed> {
        self.until(&format!("{count} effects of {consumer}"), async || {
            let effects = self.effects(consumer).await?;
            Ok((effects.len() >= count).then_some(effects))
        })
        .await
    }

    /// Waits until a consumer has passed every row and holds nothing that waits for a time.
    pub(crate) async fn until_settled(&self, consumer: &str) -> Result<ReaderStatus, Failed> {
        self.until(&format!("{consumer} to have nothing left to do"), async || {
            let readers = self.store.readers(None).await?;
            let status = readers.into_iter().find(|status| status.name == consumer);
            Ok(status.filter(|status| status.lag_messages == 0 && (status.waiting == 0 || status.dead > 0)))
        })
        .await
    }

    pub(crate) async fn letters(&self, consumer: &str) -> Result<Vec<DeadLetter>, Failed> {
        let filter = LetterFilter::default().consumer(ConsumerName::parse(consumer)?);
        let mut letters = self.store.letters(&filter).await?;
        letters.sort_by_key(|letter| letter.message.position);
        Ok(letters)
    }

    /// Waits until a condition gives something.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        condition: impl AsyncFn() -> Result<Option<T>, Failed>,
    ) -> Result<T, Failed> {
        let begun = Instant::now();
        loop {
            if let Some(found) = condition().await? {
                return Ok(found);
            }
            if begun.elapsed() > PATIENCE {
                let letters = self.store.letters(&LetterFilter::default()).await?;
                let held: Vec<_> = letters
                    .iter()
                    .map(|letter| {
                        format!(
                            "{} {:?} {:?} {:?}",
                            letter.message.position, letter.state, letter.message.envelope.key, letter.error
                        )
                    })
                    .collect();
                return Err(Failed::new(format!("waited in vain for {what}; held: {held:?}")));
            }
            // pacing: of the poll; the condition decides
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Shuts a service down, which must not take long.
pub(crate) async fn stop<S: Backend>(service: Service<S>) -> Result<(), Failed> {
    Ok(service.shutdown(Duration::from_secs(20)).await?)
}

fn quick<S: Backend>(consumer: Consumer<S>) -> Consumer<S> {
    let backoff = Backoff::default()
        .first(Duration::from_millis(20))
        .most(Duration::from_millis(100));
    consumer
        .backoff(backoff)
        .attempts(4)
        .lease(Duration::from_secs(3))
        .deadline(Duration::from_millis(700))
}
