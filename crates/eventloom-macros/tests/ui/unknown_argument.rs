use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", versoin = 2, crate = "eventloom_core")]
struct OrderPlaced {
    #[event(kye)]
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(name = "order.paid", crate = "eventloom_core")]
struct OrderPaid {
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.shipped", colour = "red", crate = "eventloom_core")]
struct OrderShipped {
    order: String,
}

fn main() {}
