//! What a relay must not do: move on before it was confirmed, take a refusal for a confirmation, overtake, change its ids,
//! send what is not its own, and go on where the broker has forgotten.

use super::scene::{LONG_LEASE, MUST_NOT, SHORT_LEASE, Scene, order};
use crate::{
    business::Business,
    relay::{receiver, relayed},
    site::{StoreKind, flag},
    wait::until,
    workload::Kind,
};
use anyhow::Result;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

const CONFIRMED: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors WHERE reader = 'relay' AND position > 0";
const UNSETTLED: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors
    WHERE reader = 'relay' AND position < (SELECT coalesce(max(position), 0) FROM eventloom.outbox)";
const LANES: &str = "SELECT CAST(count(*) AS TEXT) FROM eventloom.cursors WHERE reader = 'relay' AND owner IS NOT NULL";
const WITHIN: Duration = Duration::from_secs(30);

/// Waits until nothing is left to be relayed, or as long as that may take.
async fn settled<S: Business>(scene: &Scene<S>) {
    let begun = async || scene.database.number(LANES).await.is_ok_and(|lanes| lanes > 0);
    let done = async || begun().await && scene.database.number(UNSETTLED).await.is_ok_and(|left| left == 0);
    until(WITHIN, || async { done().await.then_some(()) }).await;
}

async fn judge<S: Business>(scene: &Scene<S>) -> Result<Vec<String>> {
    settled(scene).await;
    let target = relayed::database(&scene.site)?;
    let wrong = relayed::wrong(&scene.database, &target).await;
    target.close().await;
    wrong
}

/// The broker takes nothing for a moment, and the relay dies then.
pub(super) async fn advance_before_confirmation<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    relayed::migrate(&scene.site).await?;
    scene.place_fillers().await?;
    let target = relayed::database(&scene.site)?;
    let locked = target.lock("relayed.relayed").await?;
    let relay = scene.start("relay", &["relay", "--lease-ms", SHORT_LEASE])?;
    scene.count(LANES, 1).await?;
    // Only a relay that is wrong moves now.
    until(MUST_NOT, || async {
        (scene.database.number(CONFIRMED).await.ok()? > 0).then_some(())
    })
    .await;
    relay.kill().await?;
    drop(locked);
    let relay = scene.start("relay-again", &["relay", "--lease-ms", SHORT_LEASE])?;
    let wrong = judge(scene).await;
    relay.end(Duration::from_secs(15)).await?;
    target.close().await;
    wrong
}

/// The broker refuses one message of a key.
pub(super) async fn refused_counted_as_confirmed<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    relayed::migrate(&scene.site).await?;
    let target = relayed::database(&scene.site)?;
    let refuse = match scene.site.store()? {
        StoreKind::Postgres => "ALTER TABLE relayed.outbox ADD CHECK (type <> 'order.followed')",
        StoreKind::Sqlite => {
            "CREATE TRIGGER refuse BEFORE INSERT ON relayed.outbox WHEN NEW.type = 'order.followed'
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        }
    };
    target.execute(refuse).await?;
    scene.place_fillers().await?;
    scene
        .execute("INSERT INTO eventloom.outbox (topic, type, key, data) VALUES ('orders', 'order.followed', 'refused', '{}')")
        .await?;
    scene.place_fillers().await?;
    let relay = scene.start("relay", &["relay", "--lease-ms", LONG_LEASE])?;
    let wrong = judge(scene).await;
    relay.end(Duration::from_secs(15)).await?;
    target.close().await;
    wrong
}

/// Delivery ids and keys as they came to the file.
fn received<S: Business>(scene: &Scene<S>) -> Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(receiver::file(&scene.site)).unwrap_or_default();
    Ok(text
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect())
}

async fn to_a_file<S: Business>(scene: &mut Scene<S>, trouble: impl Fn(&Scene<S>, &str)) -> Result<Vec<Vec<String>>> {
    let key = scene.key("doubtful");
    let orders: Vec<_> = (1..=4).map(|seq| order(&key, seq, Kind::Ok)).collect();
    trouble(scene, &key);
    scene.place(&orders).await?;
    scene.place_fillers().await?;
    let relay = scene.start("relay", &["relay", "--to-file", "--lease-ms", LONG_LEASE])?;
    settled(scene).await;
    relay.end(Duration::from_secs(15)).await?;
    received(scene)
}

/// The first message of a key vanishes, and nothing says so.
pub(super) async fn successor_after_unknown<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let came = to_a_file(scene, |scene, key| {
        let _ = flag(&receiver::vanish(&scene.site, key));
    });
    let came: Vec<Vec<String>> = came.await?.into_iter().map(|line| line[1..].to_vec()).collect();
    let sent = "SELECT CAST(id AS TEXT), coalesce(key, '') FROM eventloom.outbox ORDER BY position";
    Ok(relayed::compare(
        &scene.database.rows(sent).await?,
        &came,
        &HashSet::new(),
    ))
}

/// A message comes, and its confirmation is lost.
pub(super) async fn delivery_id_changed_on_resend<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    let came = to_a_file(scene, |scene, key| {
        let _ = flag(&receiver::untold(&scene.site, key));
    });
    let mut ids: HashMap<String, HashSet<String>> = HashMap::new();
    for line in came.await? {
        ids.entry(line[1].clone()).or_default().insert(line[0].clone());
    }
    let many = ids.into_iter().filter(|(_, deliveries)| deliveries.len() > 1);
    Ok(many
        .map(|(id, deliveries)| format!("{id} came under {deliveries:?}"))
        .collect())
}

/// A row that came from another log stands among its own.
pub(super) async fn relay_takes_foreign_rows<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    relayed::migrate(&scene.site).await?;
    scene.place_fillers().await?;
    let foreign = "INSERT INTO eventloom.outbox (topic, type, key, data, origin)
        VALUES ('orders', 'order.placed', 'foreign', '{}', '01900000-0000-7000-8000-000000000001')";
    scene.execute(foreign).await?;
    scene.place_fillers().await?;
    let relay = scene.start("relay", &["relay", "--lease-ms", LONG_LEASE])?;
    let wrong = judge(scene).await;
    relay.end(Duration::from_secs(15)).await?;
    wrong
}

/// The broker forgets what it had confirmed, as one does that is restored from a backup.
pub(super) async fn relay_marks_ignored<S: Business>(scene: &mut Scene<S>) -> Result<Vec<String>> {
    relayed::migrate(&scene.site).await?;
    scene.place_fillers().await?;
    let relay = scene.start("relay", &["relay", "--lease-ms", SHORT_LEASE])?;
    settled(scene).await;
    relay.end(Duration::from_secs(15)).await?;
    let target = relayed::database(&scene.site)?;
    target.execute("DELETE FROM relayed.relayed").await?;
    target.close().await;
    scene.place_fillers().await?;
    let relay = scene.start("relay-again", &["relay", "--lease-ms", SHORT_LEASE])?;
    let alarmed = until(MUST_NOT * 4, || async { relay.told().alarm.then_some(()) }).await;
    relay.end(Duration::from_secs(15)).await?;
    Ok(match alarmed {
        Some(()) => Vec::new(),
        None => vec!["it went on with a broker that had forgotten what it had confirmed".to_owned()],
    })
}
