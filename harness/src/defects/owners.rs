//! Owners that do not know yet that they are not any more.

use super::scene::{LONG_LEASE, SHORT_LEASE, Scene, order};
use crate::{
    business::Business,
    process::Actor,
    wait::until,
    workload::{Kind, Placed},
};
use anyhow::Result;
use rustix::process::Signal;
use std::time::Duration;

/// Orders of one key: more than one owner gets through before the other one has come.
const MANY: i64 = 250;
/// How long a server may take to read what a process has sent to it.
const UNREAD: Duration = Duration::from_secs(1);

/// A second instance whose clock runs ahead takes the lanes of a live one in the middle of its work. The inbox is off, so
/// that nothing but the cursor protects; and nobody ends a former owner's transactions.
pub(super) async fn no_epoch_check<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let key = scene.key("contested");
    let orders: Vec<Placed> = (1..=MANY).map(|seq| order(&key, seq, Kind::Slow)).collect();
    scene.place(&orders).await?;
    let arguments = ["--without-inbox", "--pooled", "--batch-max", "1"];
    let former = scene.consume("former", "ledger", LONG_LEASE, &arguments)?;
    scene.count("SELECT CAST(count(*) AS TEXT) FROM effects", 3).await?;
    // It asks often: a row that the former owner has locked at the moment is passed over.
    let arguments = [&arguments[..], &["--ahead-s", "3600"]].concat();
    let successor = scene.consume("successor", "ledger", SHORT_LEASE, &arguments)?;
    scene.judge(&["ledger"], vec![former, successor], |_| {}).await
}

const EPOCHS: &str = "SELECT CAST(lane AS TEXT), CAST(epoch AS TEXT) FROM eventloom.cursors ORDER BY lane";

/// An instance is frozen beyond its lease and thawed, with nobody there to take its lanes: they are taken anew all the same,
/// since nobody can know what happened to them meanwhile.
pub(super) async fn lease_renewed_without_epoch<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    scene.place_fillers().await?;
    let ledger = scene.consume("ledger", "ledger", SHORT_LEASE, &[])?;
    scene.settled(&["ledger"]).await?;
    freeze_at_rest(scene, &ledger).await?;
    let before = scene.database.rows(EPOCHS).await?;
    let (now, long_ago) = match S::NAME {
        "postgres" => ("clock_timestamp()", "interval '3 seconds'"),
        _ => (
            "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)",
            "3000000",
        ),
    };
    // Longer ago than a lease: a renewal that was under way when it froze, however late it was, has lapsed too.
    let lapsed = format!("SELECT CAST(count(*) AS TEXT) FROM eventloom.members WHERE lease_until < {now} - {long_ago}");
    scene.count(&lapsed, 1).await?;
    ledger.signal(Signal::CONT);
    let renewed = format!("SELECT CAST(count(*) AS TEXT) FROM eventloom.members WHERE lease_until > {now}");
    scene.count(&renewed, 1).await?;
    let after = scene.database.rows(EPOCHS).await?;
    let mut wrong: Vec<String> = before
        .iter()
        .filter(|lane| after.contains(lane))
        .map(|lane| {
            format!(
                "lane {} was held under one epoch from before its lease lapsed until after",
                lane.concat()
            )
        })
        .collect();
    scene.place_fillers().await?;
    wrong.extend(scene.judge(&["ledger"], vec![ledger], |_| {}).await?);
    Ok(wrong)
}

/// Freezes a process while none of its transactions is open: one that the server ends at its time limit would make it drop
/// its lanes, whatever it thinks of its lease.
async fn freeze_at_rest<S: Business>(scene: &Scene<S>, actor: &Actor) -> Result<()> {
    // Waiting for a client ends before what it has sent is read, so whoever has read something is no longer at rest.
    let busy = match S::NAME {
        "postgres" => {
            "SELECT CAST(count(*) AS TEXT) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
               AND (state <> 'idle' OR wait_event IS DISTINCT FROM 'ClientRead')"
        }
        _ => "SELECT '0'",
    };
    let at_rest = || async {
        actor.signal(Signal::STOP);
        // First what it had sent, then who works on it: frozen, it sends nothing more.
        let unread = || async { actor.is_frozen_and_read().then_some(()) };
        if until(UNREAD, unread).await.is_some() && scene.database.number(busy).await.ok()? == 0 {
            return Some(());
        }
        actor.signal(Signal::CONT);
        None
    };
    scene.surely("a moment of rest", at_rest).await
}
