use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "", crate = "eventloom_core")]
struct OrderPlaced {
    order: String,
}

fn main() {}
