//! What the consumers of the runs do: effects that show loss, doubling and order, and kinds that misbehave on purpose.

use crate::{
    business::{Business, Effect},
    site::{Site, flag},
    workload::{FOLLOWED, Followed, Kind, Placed},
};
use eventloom::{Classify, Context, EffectContext, EffectHandle, Handle, PublishError, RetryClass};
use std::{
    fs::OpenOptions,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

const PACE: Duration = Duration::from_millis(5);
/// How long one of two waits for the other to be in, where they must not be in together.
const MEETS_WITHIN: Duration = Duration::from_millis(700);

/// How a handler of the runs fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("not yet: attempt {0}")]
    Transient(u32),
    #[error("poison")]
    Poison,
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("the flags cannot be used: {0}")]
    Flags(#[from] std::io::Error),
}

impl Classify for Failure {
    fn retry_class(&self) -> RetryClass {
        match self {
            Failure::Poison => RetryClass::Permanent,
            _ => RetryClass::Transient,
        }
    }
}

/// Where the misbehaviour of messages is kept, outside of every transaction.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) site: Site,
    /// Whether gates are heeded by this process.
    pub(crate) gated: bool,
}

impl Stage {
    /// Behaves as the message is meant to, before its effect.
    async fn behave(&self, consumer: &str, id: &str, order: &Placed, attempt: u32) -> Result<(), Failure> {
        match &order.kind {
            Kind::Ok | Kind::Publishes => Ok(()),
            Kind::Slow => {
                tokio::time::sleep(Duration::from_millis(3)).await;
                Ok(())
            }
            Kind::Transient if attempt <= 2 => Err(Failure::Transient(attempt)),
            Kind::Transient => Ok(()),
            Kind::Poison if !self.site.cure(consumer, id).exists() => Err(Failure::Poison),
            Kind::Poison => Ok(()),
            Kind::Killer(times) => self.kill(consumer, id, *times),
            Kind::HeldKiller if attempt == 1 => Err(Failure::Transient(attempt)),
            Kind::HeldKiller => self.kill(consumer, id, u32::MAX),
            Kind::Gate(name) => self.stand_at(name).await,
            Kind::Meets { me, other, kills } => {
                self.meet(me, other, *kills).await?;
                if *kills {
                    self.kill(consumer, id, u32::MAX)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn kill(&self, consumer: &str, id: &str, times: u32) -> Result<(), Failure> {
        let mut killed = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.site.killed(consumer, id))?;
        if killed.metadata()?.len() >= u64::from(times) {
            return Ok(());
        }
        killed.write_all(b"x")?;
        eprintln!("a killer ends this process: {consumer} {id}");
        std::process::abort();
    }

    async fn stand_at(&self, name: &str) -> Result<(), Failure> {
        if !self.gated {
            return Ok(());
        }
        let entered = self.site.gate(&format!("{name}.in"));
        flag(&entered).map_err(std::io::Error::other)?;
        while !self.site.gate(name).exists() {
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Whoever meets somebody of the same process has met a message that must not be handled beside it. The one that
    /// kills goes on at once; the other one is still there when it does.
    async fn meet(&self, me: &str, other: &str, kills: bool) -> Result<(), Failure> {
        let of_this_process = |name: &str| self.site.gate(&format!("{name}.{}", std::process::id()));
        flag(&of_this_process(me)).map_err(std::io::Error::other)?;
        let deadline = Instant::now() + MEETS_WITHIN;
        while Instant::now() < deadline && !(kills && of_this_process(other).exists()) {
            tokio::time::sleep(PACE).await;
        }
        std::fs::remove_file(of_this_process(me))?;
        Ok(())
    }
}

/// Checks and updates what is known of a key, and appends an effect. `hot`: also counts on a row shared by many keys.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    pub(crate) stage: Arc<Stage>,
    pub(crate) hot: bool,
}

impl<S: Business> Handle<S> for Ledger {
    type Event = Placed;
    type Output = i64;
    type Error = Failure;

    async fn handle(&self, order: Placed, cx: &mut Context<'_, S>) -> Result<i64, Failure> {
        let (consumer, id) = (cx.consumer().to_string(), cx.envelope().id.clone());
        self.stage.behave(&consumer, &id, &order, cx.attempt()).await?;
        if self.hot {
            S::touch(cx.connection(), slot(&order)).await?;
        }
        let effect = Effect {
            consumer: &consumer,
            key: &order.key,
            seq: order.seq,
            id: &id,
        };
        S::effect(cx.connection(), effect).await?;
        if order.kind == Kind::Publishes && consumer == "ledger" {
            cx.publish(
                FOLLOWED,
                &Followed {
                    by: consumer,
                    key: order.key,
                    seq: order.seq,
                },
            )
            .await?;
        }
        Ok(order.seq)
    }
}

/// Neighbours of a batch have different ones, so that batches of two owners meet in both orders.
fn slot(order: &Placed) -> i64 {
    let mut hasher = DefaultHasher::new();
    (&order.key, order.seq).hash(&mut hasher);
    (hasher.finish() % 8) as i64
}

/// Appends what was published by handlers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follower;

impl<S: Business> Handle<S> for Follower {
    type Event = Followed;
    type Output = ();
    type Error = Failure;

    async fn handle(&self, event: Followed, cx: &mut Context<'_, S>) -> Result<(), Failure> {
        let (consumer, id) = (cx.consumer().to_string(), cx.envelope().id.clone());
        let key = Followed::key_of(&event.by, &event.key);
        S::effect(
            cx.connection(),
            Effect {
                consumer: &consumer,
                key: &key,
                seq: event.seq,
                id: &id,
            },
        )
        .await?;
        Ok(())
    }
}

/// Calls the outside: a file to which lines are appended, each with its idempotency key.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) stage: Arc<Stage>,
}

impl EffectHandle for Caller {
    type Event = Placed;
    type Output = i64;
    type Error = Failure;

    async fn handle(&self, order: Placed, cx: &mut EffectContext<'_>) -> Result<i64, Failure> {
        let (consumer, id) = (cx.consumer().to_string(), cx.envelope().id.clone());
        self.stage.behave(&consumer, &id, &order, cx.attempt()).await?;
        let (key, pid) = (cx.idempotency_key(), std::process::id());
        let line = format!("{key}\t{}\t{}\t{pid}\n", order.key, order.seq);
        // One write of less than a page: lines of several processes do not mix.
        let mut calls = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.stage.site.calls())?;
        calls.write_all(line.as_bytes())?;
        if order.kind == Kind::Publishes {
            cx.publish(
                FOLLOWED,
                &Followed {
                    by: consumer,
                    key: order.key,
                    seq: order.seq,
                },
            )
            .await?;
        }
        Ok(order.seq)
    }
}
