//! What happened, read from the databases and from the receiver's file when a run is over.

use crate::{database::Database, site::Site, workload::Kind};
use anyhow::{Context, Result};
use std::collections::BTreeSet;

/// What placers were told to be durable, as they reported it before they could be killed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acknowledged {
    /// Orders.
    pub(crate) orders: BTreeSet<(String, i64)>,
    /// Keys of events that were published alone, acknowledged or not.
    pub(crate) begun_alone: BTreeSet<String>,
}

/// A committed business row.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) id: String,
    pub(crate) kind: Kind,
}

/// A committed effect, in the order of their insertion.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) consumer: String,
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) prev: i64,
    pub(crate) id: String,
}

/// A call that the receiver got, in the order in which it got them.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) idempotency_key: String,
    pub(crate) key: String,
    pub(crate) seq: i64,
}

/// Everything that is judged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Evidence {
    pub(crate) acknowledged: Acknowledged,
    pub(crate) orders: Vec<Order>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) calls: Vec<Call>,
    /// Sum over the rows that many keys share.
    pub(crate) touched: i64,
    /// Rows of `held`, `held_keys` and `attempts` that are left.
    pub(crate) left: Vec<String>,
    /// Queued messages whose key is not held.
    pub(crate) orphans: Vec<String>,
}

/// Queued messages whose key is not held: at no moment may there be one.
pub(crate) const ORPHANS: &str =
    "SELECT h.consumer || ': ' || h.key || ' at ' || CAST(h.position AS TEXT) FROM eventloom.held h
    WHERE h.queued AND NOT EXISTS (SELECT 1 FROM eventloom.held_keys k
        WHERE k.consumer = h.consumer AND k.source = h.source AND k.key = h.key)";
const ORDERS: &str = "SELECT key, CAST(seq AS TEXT), id, kind FROM placed";
const EFFECTS: &str = "SELECT consumer, key, CAST(seq AS TEXT), CAST(prev AS TEXT), id FROM effects ORDER BY ord";
const TOUCHED: &str = "SELECT CAST(sum(touched) AS TEXT) FROM shared";
const LEFT: &str = "SELECT 'held: ' || consumer || ', ' || coalesce(key, 'no key') || ', ' || state || ', attempts '
           || CAST(attempts AS TEXT) || ', ' || coalesce(error, 'queued') FROM eventloom.held
    UNION ALL SELECT 'held key: ' || consumer || ', ' || key FROM eventloom.held_keys
    UNION ALL SELECT 'counted attempts: ' || consumer || ', ' || id || ', ' || CAST(attempts AS TEXT) FROM eventloom.attempts";

/// Reads all of it.
pub(crate) async fn read(database: &Database, site: &Site, acknowledged: Acknowledged) -> Result<Evidence> {
    let mut evidence = Evidence {
        acknowledged,
        touched: database.number(TOUCHED).await?,
        calls: calls(site)?,
        ..Evidence::default()
    };
    for row in database.rows(ORDERS).await? {
        if let [key, seq, id, kind] = &row[..] {
            let (key, id, kind) = (key.clone(), id.clone(), serde_json::from_str(kind)?);
            evidence.orders.push(Order {
                key,
                seq: seq.parse()?,
                id,
                kind,
            });
        }
    }
    for row in database.rows(EFFECTS).await? {
        if let [consumer, key, seq, prev, id] = &row[..] {
            let (consumer, key, id) = (consumer.clone(), key.clone(), id.clone());
            evidence.effects.push(Effect {
                consumer,
                key,
                seq: seq.parse()?,
                prev: prev.parse()?,
                id,
            });
        }
    }
    evidence.left = database.rows(LEFT).await?.concat();
    evidence.orphans = database.rows(ORPHANS).await?.concat();
    Ok(evidence)
}

/// The receiver's file.
pub(crate) fn calls(site: &Site) -> Result<Vec<Call>> {
    let text = match std::fs::read_to_string(site.calls()) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    text.lines()
        .map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().with_context(|| format!("a call is cut off: {line:?}"));
            let (idempotency_key, key) = (next()?.to_owned(), next()?.to_owned());
            Ok(Call {
                idempotency_key,
                key,
                seq: next()?.parse()?,
            })
        })
        .collect()
}
