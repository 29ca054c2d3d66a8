//! The log: what was pruned, and what is not committed yet.

use super::scene::{LONG_LEASE, MUST_NOT, Scene, order};
use crate::{
    business::Business,
    wait::until,
    workload::{Kind, ORDERS},
};
use anyhow::Result;
use eventloom::{NewEvent, postgres::Postgres, publish_rows};
use std::time::Duration;

/// Somebody prunes while a group is away that has not read everything.
pub(super) async fn prune_past_reader<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    scene.place_fillers().await?;
    let early = scene.consume("early", "ledger", LONG_LEASE, &[])?;
    scene.settled(&["ledger"]).await?;
    early.end(Duration::from_secs(15)).await?;
    scene.place_fillers().await?;
    scene.start("pruner", &["prune"])?.wait(Duration::from_secs(30)).await?;
    let late = scene.consume("late", "ledger", LONG_LEASE, &[])?;
    scene.judge(&["ledger"], vec![late], |_| {}).await
}

/// A transaction that has published stays open while a later one commits.
pub(super) async fn horizon_ignored(scene: &mut Scene<Postgres>) -> Result<Vec<String>> {
    let open = order(&scene.key("open"), 1, Kind::Ok);
    let mut tx = scene.store.pool().begin().await?;
    let row = NewEvent::of(ORDERS, &open)?;
    let place = sqlx::query("INSERT INTO placed (key, seq, id, kind) VALUES ($1, 1, $2, '\"Ok\"')");
    place
        .bind(&open.key)
        .bind(row.id().to_string())
        .execute(&mut *tx)
        .await?;
    publish_rows(&mut *tx, &[row]).await?;
    scene.place_fillers().await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &[])?;
    scene.told(&ledger, "it works", |told| told.ready).await?;
    let database = scene.database.clone();
    let passed = "SELECT CAST(count(*) AS TEXT) FROM effects";
    until(MUST_NOT, || async {
        (database.number(passed).await.ok()? > 0).then_some(())
    })
    .await;
    tx.commit().await?;
    scene.judge(&["ledger"], vec![ledger], |_| {}).await
}
