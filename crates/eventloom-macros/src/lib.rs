//! `#[derive(Event)]`: a struct or an enum becomes an event.
//!
//! Use it through the facade (`eventloom::Event`); the trait that it implements is documented there.

mod arguments;
mod derive;
mod key;
mod nearest;

use proc_macro::TokenStream;

/// Makes a struct or an enum an event.
///
/// The type also implements `serde::Serialize` and `serde::Deserialize`, which are what its payload is made with, owns its
/// data, and is `Send + Sync`.
///
/// ```
/// use eventloom_macros::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "order.placed", version = 2, crate = "eventloom_core")]
/// struct OrderPlaced {
///     #[event(key)]
///     customer: String,
///     total_cents: i64,
/// }
///
/// use eventloom_core::Event as _;
/// let placed = OrderPlaced { customer: "customer-17".to_owned(), total_cents: 1250 };
/// assert_eq!((OrderPlaced::TYPE, OrderPlaced::VERSION), ("order.placed", 2));
/// assert_eq!(placed.key().as_deref(), Some("customer-17"));
/// ```
///
/// # Above the type: `#[event(…)]`
///
/// | argument | meaning |
/// |---|---|
/// | `type = "order.placed"` | CloudEvents `type`. Required. Letters, digits and `. _ -`. Never changes once events are stored. |
/// | `version = 2` | Version of the payload's schema, from 1. It is 1 when nothing is said. |
/// | `crate = "path"` | Where the trait `Event` is. It is `::eventloom` when nothing is said; for libraries that re-export it. |
///
/// # On a field: `#[event(key)]`
///
/// Events of one key are handled in the order of their inserts. Without a key no order is asked.
///
/// The field is text (`String`, `Box<str>`, `Arc<str>`, `Cow<'static, str>`: borrowed), or anything that implements
/// `Display` (a number, a `Uuid`, a newtype: written out). An `Option` of one of these gives no key when it is `None`.
///
/// In an enum the key stands on one field of each variant, or nowhere:
///
/// ```
/// # use eventloom_macros::Event;
/// # use eventloom_core::{Event as _, Uuid};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "order.changed", crate = "eventloom_core")]
/// enum OrderChanged {
///     Shipped { #[event(key)] order: Uuid, parcel: String },
///     Cancelled(#[event(key)] Uuid),
/// }
///
/// let order = Uuid::from_u128(17);
/// assert_eq!(OrderChanged::Cancelled(order).key().as_deref(), Some("00000000-0000-0000-0000-000000000011"));
/// ```
///
/// The derive makes no type and no other item that can be named; by hand the impl is three lines.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    derive::event(&input)
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}
