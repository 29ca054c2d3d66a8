use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = "2", crate = "eventloom_core")]
struct OrderPlaced {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = latest, crate = "eventloom_core")]
struct OrderPaid {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", version = 3000000000, crate = "eventloom_core")]
struct OrderShipped {
    order: String,
}

fn main() {}
