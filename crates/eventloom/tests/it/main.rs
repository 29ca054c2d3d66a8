//! What a user of the facade meets: the README's first example, publishing and its refusals, handlers, `once`.

#![allow(clippy::unwrap_used)]

mod broker;
#[cfg(feature = "postgres")]
mod database;
mod documents;
#[cfg(feature = "postgres")]
mod ended;
#[cfg(feature = "endpoint")]
mod endpoint;
mod events;
mod folder;
#[cfg(feature = "postgres")]
mod frozen;
mod handlers;
#[cfg(feature = "postgres")]
mod hostile;
mod once;
mod order;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod process;
mod readme;
mod refusals;
mod testing;
mod testing_guide;
#[cfg(feature = "otel")]
mod traced;
mod ui;
mod unstorable;
mod wrapped;
