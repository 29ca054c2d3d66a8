//! One file for each command: its arguments, and what it does.

pub(crate) mod config;
pub(crate) mod consumer;
pub(crate) mod dlq;
pub(crate) mod migrate;
pub(crate) mod paper;
pub(crate) mod publish;
pub(crate) mod relay;
pub(crate) mod relays;
pub(crate) mod status;
pub(crate) mod tail;
