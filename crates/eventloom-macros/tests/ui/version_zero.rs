use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = 0, crate = "eventloom_core")]
struct OrderPlaced {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = -1, crate = "eventloom_core")]
struct OrderPaid {
    order: String,
}

fn main() {}
