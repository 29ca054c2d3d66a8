//! The error of a handler does not say whether a retry can help.

use eventloom::sqlite::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(type = "order.placed")]
struct OrderPlaced {
    order: String,
}

#[derive(Debug, thiserror::Error)]
#[error("no tax row")]
struct NoTaxRow;

async fn invoice(_: OrderPlaced, _: &mut Context<'_>) -> Result<(), NoTaxRow> {
    Err(NoTaxRow)
}

fn main() {
    let _ = Consumer::<Sqlite>::new("invoicing").handle(invoice);
}
