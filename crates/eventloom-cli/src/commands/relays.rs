//! Which readers are relays: those that have had something confirmed by a broker.

use crate::failure::Failure;
use eventloom::{
    ConsumerName,
    ports::{Backend, ReaderStatus},
};
use std::collections::BTreeSet;

/// Names of the relays among readers. One that has not begun to send cannot be told from a consumer.
pub(crate) async fn among<S: Backend>(store: &S, readers: &[ReaderStatus]) -> Result<BTreeSet<String>, Failure> {
    let mut relays = BTreeSet::new();
    for reader in readers {
        let Ok(name) = ConsumerName::parse(&reader.name) else {
            continue;
        };
        let standing = store.relay_standing(&name).await?;
        if standing.broker.is_some() || standing.lanes.iter().any(|lane| lane.confirmed.is_some()) {
            relays.insert(reader.name.clone());
        }
    }
    Ok(relays)
}
