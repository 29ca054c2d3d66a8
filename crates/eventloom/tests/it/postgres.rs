//! The same on Postgres, in a database of its own, where a server is given.

use crate::{database::with_database, refusals};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_named_and_leave_the_transaction_usable() {
    with_database("refusals on postgres", async |database| {
        refusals::are_named_and_leave_the_transaction_usable(&database.store(3).await).await;
    })
    .await;
}
