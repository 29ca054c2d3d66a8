use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", crate = "eventloom_core")]
#[event(type = "order.paid")]
struct OrderPlaced {
    order: String,
}

fn main() {}
