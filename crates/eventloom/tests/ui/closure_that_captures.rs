//! A closure that captures is no handler; a struct that implements `Handle` is.

use eventloom::sqlite::prelude::*;

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(type = "order.placed")]
struct OrderPlaced {
    order: String,
}

fn main() {
    let rate = String::from("0.19");
    let invoice = async move |_: OrderPlaced, _: &mut Context<'_>| -> Result<String, PublishError> { Ok(rate.clone()) };
    let _ = Consumer::<Sqlite>::new("invoicing").handle(invoice);
}
