//! The store beside a site that is relayed to: another schema of the same database, or another file in the same folder.

use crate::{
    business::{Business, Opening},
    database::Database,
    script::LANES,
    site::{Site, StoreKind},
};
use anyhow::{Context, Result};
use eventloom::{LaneCount, SchemaName, postgres, sqlite};
use sqlx::postgres::PgPoolOptions;
use std::collections::{HashMap, HashSet};

/// The schema.
pub(crate) const SCHEMA: &str = "relayed";

/// Where it is: the same URL on Postgres.
fn beside(site: &Site) -> Result<Site> {
    let url = match site.store()? {
        StoreKind::Postgres => site.url.clone(),
        StoreKind::Sqlite => format!("sqlite://{}", site.folder.join("relayed.db").display()),
    };
    Ok(Site {
        url,
        folder: site.folder.clone(),
    })
}

/// Opens it; one attempt.
pub(crate) async fn open<S: Business>(site: &Site) -> Result<S> {
    let opening = Opening {
        connections: 4,
        pooled: false,
        schema: Some(SCHEMA),
    };
    S::open(&beside(site)?, opening).await
}

/// Makes its tables. Safe to repeat.
pub(crate) async fn migrate(site: &Site) -> Result<()> {
    let lanes = LaneCount::new(LANES).context("a number of lanes")?;
    match site.store()? {
        StoreKind::Postgres => {
            let pool = PgPoolOptions::new().max_connections(1).connect(&site.url).await?;
            let schema = SchemaName::parse(SCHEMA)?;
            let options = postgres::MigrateOptions::default().lanes(lanes).schema(schema);
            postgres::migrate(&pool, options).await?;
            pool.close().await;
        }
        StoreKind::Sqlite => {
            let options = sqlite::MigrateOptions::default().lanes(lanes);
            sqlite::migrate(&beside(site)?.url, options).await?;
        }
    }
    Ok(())
}

/// The oracle's look at it; its tables are spelled `relayed.x`.
pub(crate) fn database(site: &Site) -> Result<Database> {
    Database::of(&beside(site)?)
}

const SENT: &str =
    "SELECT CAST(id AS TEXT), coalesce(key, '') FROM eventloom.outbox WHERE origin IS NULL ORDER BY position";
const ARRIVED: &str = "SELECT CAST(id AS TEXT), coalesce(key, '') FROM relayed.outbox ORDER BY position";
const HELD: &str = "SELECT id FROM eventloom.held WHERE consumer = 'relay'";

/// What speaks against a relay: messages that neither arrived nor are held, and keys out of order.
pub(crate) async fn wrong(source: &Database, target: &Database) -> Result<Vec<String>> {
    let held: HashSet<String> = source.rows(HELD).await?.concat().into_iter().collect();
    let sent = source.rows(SENT).await?;
    let arrived = target.rows(ARRIVED).await?;
    Ok(compare(&sent, &arrived, &held))
}

/// `(id, key)` in the order of the source, and in that of the arrivals; a second arrival of an id does not count.
pub(crate) fn compare(sent: &[Vec<String>], arrived: &[Vec<String>], held: &HashSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    // A logical id that was published twice stands in the source twice: its first place counts.
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (place, row) in sent.iter().enumerate() {
        places.entry(row[0].as_str()).or_insert(place);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    let mut last: HashMap<&str, usize> = HashMap::new();
    for row in arrived {
        let (id, key) = (row[0].as_str(), row[1].as_str());
        if !seen.insert(id) {
            continue;
        }
        let Some(place) = places.get(id).copied() else {
            wrong.push(format!("{id} of {key} arrived and was never sent"));
            continue;
        };
        if !key.is_empty() && last.insert(key, place).is_some_and(|before| before > place) {
            wrong.push(format!("{key}: {id} arrived after one that was sent later"));
        }
    }
    let missing = places.keys().filter(|id| !seen.contains(*id) && !held.contains(**id));
    wrong.extend(missing.map(|id| format!("{id} did not arrive and is not held")));
    wrong
}
