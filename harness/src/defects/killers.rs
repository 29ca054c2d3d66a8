//! Messages that end their process: they are counted and set aside, and take no innocents along.

use super::{
    calls::forgive_repeated,
    scene::{Scene, order},
};
use crate::{business::Business, evidence::Evidence, workload::Kind};
use anyhow::Result;

/// Few attempts, so that few lives are needed.
const ATTEMPTS: [&str; 2] = ["--attempts", "2"];
const DEAD: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.held WHERE state = 'dead' AND key LIKE 'killer-%'";

/// The killer is dead as it should be; whatever else is wrong is not forgiven.
fn forgive_killer(evidence: &mut Evidence) {
    evidence.orders.retain(|order| !order.key.starts_with("killer-"));
    evidence
        .acknowledged
        .orders
        .retain(|(key, _)| !key.starts_with("killer-"));
    evidence.left.retain(|left| !left.contains(", killer-"));
    forgive_repeated(evidence);
}

async fn outlived<S: Business>(scene: &Scene<S>, group: &'static str, arguments: &[&str]) -> Result<Vec<String>> {
    let (outlived, actor) = scene.lives(arguments, group, DEAD).await?;
    if !outlived {
        return Ok(vec![
            "a message ends its process again and again, and is never set aside".to_owned(),
        ]);
    }
    scene.judge(&[group], actor.into_iter().collect(), forgive_killer).await
}

/// From the log: what was taken must be known to the successor.
pub(super) async fn attempts_lost_at_restart<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("killer");
    scene.place(&[order(&key, 1, Kind::Killer(u32::MAX))]).await?;
    scene.place_fillers().await?;
    outlived(scene, "ledger", &ATTEMPTS).await
}

/// From `held`: a drain's marks are told from the successor's by the epoch.
pub(super) async fn take_without_bump<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("killer");
    scene.place(&[order(&key, 1, Kind::HeldKiller)]).await?;
    scene.place_fillers().await?;
    outlived(scene, "ledger", &["--attempts", "3"]).await
}

/// A slow innocent in another lane, which is not to be there when the killer strikes.
pub(super) async fn two_suspects_at_a_time<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let killer = scene.key("killer");
    let innocent = scene.key_beside("innocent", &killer, false)?;
    let meets = |me: &str, other: &str, kills| Kind::Meets {
        me: me.to_owned(),
        other: other.to_owned(),
        kills,
    };
    let orders = [
        order(&killer, 1, meets("killer", "innocent", true)),
        order(&innocent, 1, meets("innocent", "killer", false)),
    ];
    scene.place(&orders).await?;
    outlived(scene, "caller", &ATTEMPTS).await
}
