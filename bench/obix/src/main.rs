//! `bench-obix URL ROWS`: makes the tables of obix in an empty database, fills its outbox, and prints how many events a
//! second its listener delivers, and its subscriber that stores its position: each from its start to the last event.

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use obix::{
    EventCtx, EventSequence, Handled, MailboxConfig, OutboxEventJobConfig, SingletonSubscriber, out::Outbox,
};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
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
    for settle in ["VACUUM ANALYZE persistent_outbox_events", "CHECKPOINT"] {
        sqlx::raw_sql(settle).execute(&pool).await?;
    }
    println!("{} {}", listening(&pool, rows).await?, subscribed(&pool, rows).await?);
    Ok(())
}

/// Events a second of a stream that remembers no position: whoever starts again begins anew.
async fn listening(pool: &sqlx::PgPool, rows: i64) -> Result<f64> {
    let begun = Instant::now();
    let outbox = Outbox::<Placed>::init(pool, MailboxConfig::builder().build()).await?;
    let mut listener = outbox.listen_persisted(EventSequence::BEGIN);
    for delivered in 0..rows {
        let next = tokio::time::timeout(WITHIN, listener.next()).await;
        let event = next.with_context(|| format!("nothing came after {delivered}"))?;
        ensure!(event.is_some(), "the listener ended after {delivered}");
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
}

/// Counts what a batch holds before its position is stored, as a relay would send it.
struct Count(Arc<AtomicI64>);

impl SingletonSubscriber<Placed> for Count {
    type Batch = Vec<i64>;

    async fn handle_persistent<'inv>(
        &self,
        ctx: EventCtx<'inv, Vec<i64>>,
        event: &obix::EventDelivery<Placed>,
    ) -> Result<Handled<'inv>, Box<dyn std::error::Error + Send + Sync>> {
        match &event.payload {
            Some(placed) => Ok(ctx.collect(placed.order)),
            None => Ok(ctx.skip()),
        }
    }

    async fn flush(
        &self,
        _op: &mut obix::FlushOp<'_, obix::InsertOrder>,
        items: Vec<i64>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.fetch_add(items.len() as i64, Ordering::Relaxed);
        Ok(())
    }
}

/// Events a second of a subscriber that stores its position with each batch of a thousand.
async fn subscribed(pool: &sqlx::PgPool, rows: i64) -> Result<f64> {
    let begun = Instant::now();
    let mut jobs = job::Jobs::init(job::JobSvcConfig::builder().pool(pool.clone()).build()?).await?;
    let outbox = Outbox::<Placed>::init(pool, MailboxConfig::builder().build()).await?;
    let counted = Arc::new(AtomicI64::new(0));
    let config = OutboxEventJobConfig::new(job::JobType::new("bench")).with_max_batch_size(1000);
    outbox.register_singleton_subscriber(&mut jobs, config, Count(counted.clone())).await?;
    jobs.start_poll().await?;
    while counted.load(Ordering::Relaxed) < rows {
        ensure!(begun.elapsed() < WITHIN, "{} of {rows} came", counted.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(rows as f64 / begun.elapsed().as_secs_f64())
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
