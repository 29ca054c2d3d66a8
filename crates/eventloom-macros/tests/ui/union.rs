use eventloom_macros::Event;

#[derive(Event)]
#[event(type = "order.placed", crate = "eventloom_core")]
union OrderPlaced {
    order: u32,
    total: f32,
}

fn main() {}
