use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", key = "order", crate = "eventloom_core")]
struct OrderPlaced {
    #[event(key = "order")]
    order: String,
    #[event(version = 2)]
    total_cents: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.changed", crate = "eventloom_core")]
enum OrderChanged {
    #[event(type = "order.paid")]
    Paid { order: String },
}

fn main() {}
