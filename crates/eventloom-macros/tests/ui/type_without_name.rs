use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed")]
struct OrderPlaced {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event = "order.placed"]
struct OrderPaid {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = 5, version)]
struct OrderShipped {
    order: String,
}

fn main() {}
