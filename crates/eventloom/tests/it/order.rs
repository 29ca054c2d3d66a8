//! An order with nothing but its key, for tests that ask for no more.

use eventloom::Event;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
pub(crate) struct Placed(pub(crate) String);

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.0))
    }
}
