//! Relays under fire: from one store to another, or to a receiver that is a file, with the same faults as consumers.

pub(crate) mod actor;
mod campaign;
mod late;
pub(crate) mod receiver;
pub(crate) mod relayed;

pub(crate) use actor::Relaying;
pub(crate) use campaign::{Options, run};
