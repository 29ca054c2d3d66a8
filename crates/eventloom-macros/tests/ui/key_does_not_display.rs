use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderNumber(u32);

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", crate = "eventloom_core")]
struct OrderPlaced {
    #[event(key)]
    order: OrderNumber,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.changed", crate = "eventloom_core")]
enum OrderChanged {
    Paid(#[event(key)] Option<Vec<u8>>),
}

fn main() {}
