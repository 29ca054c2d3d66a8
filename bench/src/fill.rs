//! Rows in the log before a consumer starts.

use anyhow::Result;
use eventloom::{NewEvent, publish_rows};
use sqlx::PgPool;

/// Rows that share an INSERT.
const ROWS_MAX: usize = 2000;

/// Publishes them, in order.
pub(crate) async fn fill(pool: &PgPool, rows: impl IntoIterator<Item = NewEvent>) -> Result<()> {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let some: Vec<NewEvent> = rows.by_ref().take(ROWS_MAX).collect();
        let mut tx = pool.begin().await?;
        publish_rows(&mut *tx, &some).await?;
        tx.commit().await?;
    }
    Ok(())
}
