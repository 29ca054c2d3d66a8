use eventloom_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.changed", crate = "eventloom_core")]
enum OrderChanged {
    Placed {
        #[event(key)]
        order: String,
    },
    Shipped {
        order: String,
    },
    Cancelled,
}

fn main() {}
