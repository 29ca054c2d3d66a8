//! The service runs on SQLite, and the handler was written for Postgres.

use eventloom::{postgres, sqlite::prelude::*};

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(type = "order.placed")]
struct OrderPlaced {
    order: String,
}

async fn invoice(_: OrderPlaced, _: &mut postgres::prelude::Context<'_>) -> Result<(), PublishError> {
    Ok(())
}

fn service(store: Sqlite) -> Eventloom<Sqlite> {
    Eventloom::new(store).consumer(Consumer::new("invoicing").handle(invoice))
}

fn main() {
    let _ = Consumer::<Sqlite>::new("invoicing").handle(invoice);
}
