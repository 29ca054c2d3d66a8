//! Eventloom is the event side of a service's database: what a service commits is delivered to whoever needs it, in order
//! for each key, and takes effect once.
//!
//! Delivery is at least once, so every effect is made idempotent by the system: the inbox entry, the effects of the
//! handler, what it publishes and the cursor commit together, or not at all.
//!
//! # A guided tour
//!
//! - An [`Event`] is a fact as a type. It goes to a [`Topic`]; what must stay in order has the same key.
//! - [`publish`] writes it in the transaction that is open already. It exists if and when that commits.
//! - A [`Consumer`] follows topics with handlers: async functions of an event and a `Context`, or structs that implement
//!   [`Handle`] and hold dependencies. Calls to the outside are handlers of mode effect ([`Consumer::effect`]).
//! - [`Eventloom`] starts consumers on a store; [`Service::shutdown`] drains and stops them.
//! - What fails is tried again, and set aside with its key when it keeps failing: [`DeadLetters`] lists, redrives and deletes.
//! - [`once`] does work once for an Idempotency-Key.
//!
//! Each store has a prelude that names its `Context`, so that handlers need no type parameter: `eventloom::sqlite::prelude`
//! and `eventloom::postgres::prelude`.

#[cfg(feature = "endpoint")]
mod endpoint;
mod publish;

#[cfg(feature = "endpoint")]
pub use endpoint::{Endpoint, EndpointError};
pub use eventloom_core::{
    Awake, Classify, Clock, ConsumerName, Envelope, Epoch, Event, Headers, Lane, LaneCount, NameError, NewEvent,
    OffsetDateTime, OwnerId, Payload, Position, PublishError, PublishLimits, Recorded, Refusal, RetryClass, SchemaName,
    StoreError, StoreErrorKind, Topic, Uuid, chain, ports,
};
#[cfg(feature = "macros")]
pub use eventloom_macros::Event;
pub use eventloom_runtime::{
    Backoff, Companion, Consumer, ConsumerHealth, Context, Database, EffectContext, EffectHandle, EffectHandler,
    Eventloom, Handle, Handler, Health, HotKey, Mode, Null, Once, OnceError, Outstanding, Poison, Relay, Service,
    ShutdownError, StartError, TokioClock, Unhandled, Watch, once, once_in,
};
pub use ports::{DeadLetter, DeadLetters, LetterFilter, Readers, Redrive, Start};
pub use publish::{Publish, publish, publish_all, publish_rows};

/// What both stores' preludes share.
pub mod prelude {
    pub use crate::{
        Backoff, Classify, Consumer, Database, EffectContext, EffectHandle, Event, Eventloom, Handle, NewEvent, Once,
        Poison::{Block, Park, Skip},
        Publish, PublishError, Relay, RetryClass, Start, Topic, once, once_in,
        ports::{DeadLetters, Readers},
        publish, publish_all,
    };
}

/// The store on SQLite.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use eventloom_sqlite::*;

    /// Everything a service on SQLite needs.
    pub mod prelude {
        pub use crate::prelude::*;
        pub use eventloom_sqlite::Sqlite;
        /// What a handler is given beside its event.
        pub type Context<'a> = crate::Context<'a, Sqlite>;
    }
}

/// The store on Postgres.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use eventloom_postgres::*;

    /// Everything a service on Postgres needs.
    pub mod prelude {
        pub use crate::prelude::*;
        pub use eventloom_postgres::Postgres;
        /// What a handler is given beside its event.
        pub type Context<'a> = crate::Context<'a, Postgres>;
    }
}
