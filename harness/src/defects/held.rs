//! Held keys that are let go while a batch queues to them: the head goes at the worst moment.

use super::scene::{LONG_LEASE, Scene, order};
use crate::{evidence::Evidence, site::flag, workload::Kind};
use anyhow::{Context, Result, ensure};
use eventloom::postgres::Postgres;
use sqlx::{Connection, PgConnection};
use std::time::Duration;

/// Whoever inserts into `held` waits until the lock (42, 42) is free.
const STOP_AT_HELD: &str = "
    CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared(42, 42); RETURN NULL; END $$;
    CREATE TRIGGER stop_here AFTER INSERT ON eventloom.held FOR EACH STATEMENT EXECUTE FUNCTION stop_here()";
const STANDS_THERE: &str = "SELECT CAST(count(*) AS TEXT) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
const WAITS_FOR_THE_KEY: &str =
    "SELECT CAST(count(*) AS TEXT) FROM pg_locks WHERE locktype IN ('transactionid', 'tuple') AND NOT granted";
const DEAD: &str = "SELECT id FROM eventloom.held WHERE state = 'dead'";

/// The head was given up, so the next one of its key follows nothing.
fn forgive_head(key: &str) -> impl FnOnce(&mut Evidence) {
    move |evidence| {
        evidence.orders.retain(|order| order.key != key || order.seq != 1);
        evidence.acknowledged.orders.remove(&(key.to_owned(), 1));
        for effect in evidence
            .effects
            .iter_mut()
            .filter(|effect| effect.key == key && effect.seq == 2)
        {
            effect.prev += 1;
        }
    }
}

async fn dead(scene: &Scene<Postgres>) -> Result<String> {
    scene
        .count(
            "SELECT CAST(count(*) AS TEXT) FROM eventloom.held WHERE state = 'dead'",
            1,
        )
        .await?;
    scene.database.rows(DEAD).await?.concat().pop().context("a dead letter")
}

/// The batch has queued and not committed when the queue is empty for everybody else, and whoever has emptied it lets the
/// key go.
pub(super) async fn let_go_in_one_statement(scene: &mut Scene<Postgres>) -> Result<Vec<String>> {
    let key = scene.key("parked");
    scene.place(&[order(&key, 1, Kind::Poison)]).await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &[])?;
    let id = dead(scene).await?;
    let mut barrier = PgConnection::connect(&scene.site.url).await?;
    sqlx::raw_sql(STOP_AT_HELD).execute(&mut barrier).await?;
    sqlx::query("SELECT pg_advisory_lock(42, 42)")
        .execute(&mut barrier)
        .await?;
    scene.place(&[order(&key, 2, Kind::Ok)]).await?;
    scene.count(&in_this_database(STANDS_THERE), 1).await?;
    let emptied = sqlx::query("DELETE FROM eventloom.held WHERE id = $1").bind(&id);
    emptied.execute(scene.store.pool()).await?;
    let let_go = scene.start("let-go", &["let-go", "ledger", &key])?;
    scene.count(&in_this_database(WAITS_FOR_THE_KEY), 1).await?;
    barrier.close().await?;
    let (status, _) = let_go.wait(Duration::from_secs(30)).await?;
    ensure!(status.is_some_and(|status| status.success()), "letting go failed");
    scene.place_fillers().await?;
    scene.judge(&["ledger"], vec![ledger], forgive_head(&key)).await
}

/// Other scenarios run beside this one, each in a database of its own. Locks of transactions belong to none.
fn in_this_database(sql: &str) -> String {
    format!("{sql} AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())")
}

/// The batch has asked, and not queued, when the head is deleted and its key let go.
pub(super) async fn queue_without_lock(scene: &mut Scene<Postgres>) -> Result<Vec<String>> {
    let key = scene.key("parked");
    let beside = scene.key_beside("beside", &key, true)?;
    scene.place(&[order(&key, 1, Kind::Poison)]).await?;
    let ledger = scene.consume("ledger", "ledger", LONG_LEASE, &["--gated"])?;
    let id = dead(scene).await?;
    scene
        .place(&[
            order(&key, 2, Kind::Ok),
            order(&beside, 1, Kind::Gate("beside".to_owned())),
        ])
        .await?;
    scene.file(&scene.site.gate("beside.in")).await?;
    scene
        .start("delete", &["delete", "ledger", &id])?
        .wait(Duration::from_secs(30))
        .await?;
    flag(&scene.site.gate("beside"))?;
    scene.judge(&["ledger"], vec![ledger], forgive_head(&key)).await
}
