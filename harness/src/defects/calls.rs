//! Mode effect: cursors and calls that are not finished, keys in parallel, results.

use super::scene::{LONG_LEASE, MUST_NOT, Scene, order};
use crate::{
    business::Business,
    evidence::{self, Evidence},
    site::flag,
    wait::until,
    workload::Kind,
};
use anyhow::Result;
use std::collections::HashSet;

/// A process was killed, so calls may have been made again. The receiver knows them by their key.
pub(super) fn forgive_repeated(evidence: &mut Evidence) {
    let mut seen = HashSet::new();
    evidence.calls.retain(|call| seen.insert(call.idempotency_key.clone()));
}

/// The first message of a lane is being called for, a later one has its result, and the process dies.
pub(super) async fn cursor_past_unfinished<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let slow = scene.key("slow");
    let quick = scene.key_beside("quick", &slow, true)?;
    scene
        .place(&[
            order(&slow, 1, Kind::Gate("shut".to_owned())),
            order(&quick, 1, Kind::Ok),
        ])
        .await?;
    scene.place_fillers().await?;
    let first = scene.consume("first", "caller", LONG_LEASE, &["--gated"])?;
    scene.file(&scene.site.gate("shut.in")).await?;
    let settled = format!(
        "SELECT CAST(count(*) AS TEXT) FROM eventloom.inbox i JOIN placed p ON p.id = i.id
          WHERE p.key = '{quick}' AND i.handled_at IS NOT NULL"
    );
    scene.count(&settled, 1).await?;
    first.kill().await?;
    // Its clock says that the lease of the dead has ended.
    let second = scene.consume("second", "caller", LONG_LEASE, &["--ahead-s", "3600"])?;
    scene.judge(&["caller"], vec![second], forgive_repeated).await
}

/// The first message of a key is being called for: the second must not be.
pub(super) async fn two_tasks_on_one_key<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("key");
    scene
        .place(&[order(&key, 1, Kind::Gate("first".to_owned())), order(&key, 2, Kind::Ok)])
        .await?;
    scene.place_fillers().await?;
    let caller = scene.consume("caller", "caller", LONG_LEASE, &["--gated"])?;
    scene.file(&scene.site.gate("first.in")).await?;
    let site = scene.site.clone();
    let second = |call: &evidence::Call| call.key == key && call.seq == 2;
    until(MUST_NOT, || async {
        evidence::calls(&site).ok()?.iter().any(second).then_some(())
    })
    .await;
    flag(&scene.site.gate("first"))?;
    scene.judge(&["caller"], vec![caller], |_| {}).await
}

/// The same event stands twice in the log, and the second is read when the first has its result.
pub(super) async fn effect_result_not_stored<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("twice");
    scene.publish_alone(&key).await?;
    let caller = scene.consume("caller", "caller", LONG_LEASE, &[])?;
    let site = scene.site.clone();
    scene
        .surely("a call", || async {
            (!evidence::calls(&site).ok()?.is_empty()).then_some(())
        })
        .await?;
    scene.settled(&["caller"]).await?;
    scene.publish_alone(&key).await?;
    scene.place_fillers().await?;
    scene.judge(&["caller"], vec![caller], |_| {}).await
}
