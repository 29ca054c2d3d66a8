//! The engines of Eventloom, generic over the ports of `eventloom-core`.
//!
//! Read it in the order in which a message passes through:
//!
//! - [`Consumer`] says what is wanted; [`Eventloom`] starts it and [`Service`] stops it; `tasks` keeps what runs running;
//! - `membership` holds the lease of an instance and takes and gives lanes;
//! - `tail` reads the log once for all consumers of the process, `fetch` hands rows to lanes;
//! - `lanes` is what an instance knows of the lanes it owns;
//! - `worker` picks lanes, `batch` handles their messages in one transaction, `suspect` those that may kill, and `losing`
//!   counts what loses against others;
//! - `effect` is what calls the outside, `calls` makes the calls, without a transaction around them, `in_flight` keeps
//!   them going, and `results` stores what they came to;
//! - `hold` sets messages aside, `drain` tries them again and lets keys go;
//! - `meter` counts and times under the names of `instruments`, `observe` asks the store,
//!   `hot_keys` finds the keys that most messages have, and
//!   `span` tells traces;
//! - `relay` does with a broker what `batch` does with handlers.

mod backoff;
mod batch;
mod calls;
mod clock;
mod companion;
mod consumer;
mod context;
mod drain;
mod effect;
mod failure;
mod fetch;
mod group;
mod handler;
mod health;
mod hold;
mod hot_keys;
mod housekeeping;
mod in_flight;
mod instruments;
mod lanes;
mod losing;
mod membership;
mod meter;
mod observe;
mod once;
mod outage;
mod outstanding;
mod relay;
mod results;
mod service;
mod settings;
mod span;
mod suspect;
mod tail;
mod tasks;
mod time_limit;
mod worker;

pub use backoff::Backoff;
pub use clock::TokioClock;
pub use companion::{Companion, Watch};
pub use consumer::{Consumer, Mode, Poison, Unhandled};
pub use context::Context;
pub use effect::{EffectContext, EffectHandle, EffectHandler};
pub use handler::{Function, Handle, Handler, Struct};
pub use health::{ConsumerHealth, Health};
pub use hot_keys::HotKey;
pub use once::{Once, OnceError, once, once_in};
pub use outstanding::Outstanding;
pub use relay::{Database, DatabaseProducer, Null, NullProducer, Relay};
pub use service::{Eventloom, Service, ShutdownError, StartError};
#[doc(hidden)]
pub use span::{in_span, publish_span, published, row_in_span};
