//! `bench-obix URL ROWS`: makes the tables of obix in an empty database, fills its outbox, and prints how many events a
//! second its listener delivers, from the first start to the last event.

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use obix::{EventSequence, MailboxConfig, out::Outbox};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// The same payload as the bench's own.
#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    order: i64,
    customer: String,
    total_cents: i64,
    note: String,
}

const FILL: &str = "INSERT INTO persistent_outbox_events (payload)
    SELECT jsonb_build_object('order', n, 'customer', 'customer-' || n % 10000, 'total_cents', n % 5000,
                              'note', repeat('x', 30))
      FROM generate_series(1, $1) n";
const WITHIN: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, rows] = &arguments[..] else {
        bail!("usage: bench-obix URL ROWS");
    };
    let rows: i64 = rows.parse()?;
    let pool = sqlx::PgPool::connect(url).await?;
    for migration in migrations()? {
        sqlx::raw_sql(&std::fs::read_to_string(migration)?).execute(&pool).await?;
    }
    sqlx::query(FILL).bind(rows).execute(&pool).await?;
    sqlx::raw_sql("VACUUM ANALYZE persistent_outbox_events; CHECKPOINT").execute(&pool).await?;
    let begun = Instant::now();
    let outbox = Outbox::<Placed>::init(&pool, MailboxConfig::builder().build()).await?;
    let mut listener = outbox.listen_persisted(EventSequence::BEGIN);
    for delivered in 0..rows {
        let next = tokio::time::timeout(WITHIN, listener.next()).await;
        let event = next.with_context(|| format!("nothing came after {delivered}"))?;
        ensure!(event.is_some(), "the listener ended after {delivered}");
    }
    println!("{}", rows as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// The migrations that obix ships, in order.
fn migrations() -> Result<Vec<PathBuf>> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let obix = packages.iter().find(|package| package["name"] == "obix").context("obix")?;
    let folder = obix["manifest_path"].as_str().and_then(|path| Path::new(path).parent());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder.context("its folder")?.join("migrations"))? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}
