//! Mode transaction: claims in the inbox, and what is asked of held keys.

use super::scene::{LONG_LEASE, Scene, order};
use crate::{business::Business, workload::Kind};
use anyhow::Result;

/// A handler fails after its message was claimed: the claim must go with the rest.
pub(super) async fn inbox_in_own_transaction<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("fails");
    scene
        .place(&[order(&key, 1, Kind::Transient), order(&key, 2, Kind::Ok)])
        .await?;
    scene.place_fillers().await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &[])?;
    scene.judge(&["ledger"], vec![ledger], |_| {}).await
}

/// The same event stands twice in the log.
pub(super) async fn claim_without_inbox<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("twice");
    scene.publish_alone(&key).await?;
    scene.place_fillers().await?;
    scene.publish_alone(&key).await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &[])?;
    // The second one comes after the first one of its key.
    scene.judge(&["ledger"], vec![ledger], |_| {}).await
}

/// The first message of a key fails and is held while others of its batch, among them the next of its key, wait.
pub(super) async fn held_asked_once_a_batch<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let fails = scene.key("fails");
    let other = scene.key_beside("other", &fails, true)?;
    let orders = [
        order(&fails, 1, Kind::Transient),
        order(&other, 1, Kind::Ok),
        order(&fails, 2, Kind::Ok),
        order(&other, 2, Kind::Ok),
    ];
    scene.place(&orders).await?;
    scene.place_fillers().await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &["--single"])?;
    scene.judge(&["ledger"], vec![ledger], |_| {}).await
}
