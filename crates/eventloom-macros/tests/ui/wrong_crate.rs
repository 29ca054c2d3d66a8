use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", crate = "not a path")]
struct OrderPlaced {
    order: String,
}

fn main() {}
