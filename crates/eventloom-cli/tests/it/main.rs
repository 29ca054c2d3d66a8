//! The real program, on a file of SQLite and (where a server is named) on Postgres.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod config;
mod consumer;
mod daemon;
mod dlq;
mod door;
mod migrate;
mod program;
mod publish_and_tail;
mod relay;
mod relay_languages;
mod service;
mod settings;
mod status;
mod stores;
mod wait;
