//! The event of a handler does not derive `Event`.

use eventloom::sqlite::prelude::*;

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: String,
}

async fn invoice(_: OrderPlaced, _: &mut Context<'_>) -> Result<(), PublishError> {
    Ok(())
}

fn main() {
    let _ = Consumer::<Sqlite>::new("invoicing").handle(invoice);
}
