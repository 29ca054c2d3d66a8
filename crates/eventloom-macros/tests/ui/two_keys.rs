use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", crate = "eventloom_core")]
struct OrderPlaced {
    #[event(key)]
    customer: String,
    #[event(key)]
    order: String,
}

fn main() {}
