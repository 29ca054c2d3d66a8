use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
struct OrderPlaced {
    order: String,
}

fn main() {}
