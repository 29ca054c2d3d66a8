//! What a user of the facade meets: the README's first example, publishing and its refusals, handlers, `once`.

#![allow(clippy::unwrap_used)]

mod documents;
mod events;
mod folder;
mod handlers;
mod once;
#[cfg(feature = "postgres")]
mod postgres;
mod readme;
mod refusals;
mod ui;
