//! What the derive makes.
#![allow(dead_code)]

use eventloom_core::{Event as _, Uuid};
use eventloom_macros::Event;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{borrow::Cow, fmt, sync::Arc};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed", crate = "eventloom_core")]
struct Plain {
    total_cents: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Order_placed-2.v1", crate = "::eventloom_core")]
#[event(version = 7)]
struct Keyed {
    #[event(key)]
    #[serde(rename = "orderNumber")]
    r#type: String,
    total_cents: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "unit", crate = "eventloom_core")]
struct Unit;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "generic", crate = "eventloom_core")]
#[serde(bound = "")]
struct Generic<T, const N: usize>(T, #[event(key)] u64)
where
    T: Serialize + DeserializeOwned + Send + Sync + 'static;

/// A newtype that displays as something else than what it holds.
#[derive(Serialize, Deserialize)]
struct OrderNumber(u32);

impl fmt::Display for OrderNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order-{}", self.0)
    }
}

/// An event with one field, which is the key, of each kind of type.
macro_rules! event_of {
    ($name:ident, $of_type:ty) => {
        #[derive(Serialize, Deserialize, Event)]
        #[event(type = "one", crate = "eventloom_core")]
        struct $name(#[event(key)] $of_type);
    };
}

type Alias = String;

event_of!(OfString, String);
event_of!(OfLongString, ::std::string::String);
event_of!(OfCow, Cow<'static, str>);
event_of!(OfBox, Box<str>);
event_of!(OfUuid, Uuid);
event_of!(OfNumber, i64);
event_of!(OfAlias, Alias);
event_of!(OfNewtype, OrderNumber);
event_of!(OfOption, Option<String>);
event_of!(OfLongOption, std::option::Option<Option<OrderNumber>>);
event_of!(OfChar, char);
event_of!(OfBoxedNewtype, Box<OrderNumber>);

/// serde has `Arc<str>` only behind a feature, so its traits are written out.
#[derive(Event)]
#[event(type = "shared", crate = "eventloom_core")]
struct OfArc(#[event(key)] Arc<str>);

impl Serialize for OfArc {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OfArc {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| OfArc(text.into()))
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.changed", crate = "eventloom_core")]
enum Changed {
    Placed {
        total_cents: i64,
        #[event(key)]
        order: String,
    },
    Shipped(String, #[event(key)] OrderNumber),
    Cancelled(#[event(key)] Option<u32>),
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "none", crate = "eventloom_core")]
enum WithoutKey {
    One(String),
    Two,
}

fn check(key: Option<Cow<'_, str>>, wanted: Option<&str>, borrowed: bool) {
    assert_eq!(key.as_deref(), wanted);
    assert_eq!(
        matches!(key, Some(Cow::Borrowed(_))),
        borrowed,
        "whether {wanted:?} is borrowed"
    );
}

#[test]
fn types_and_versions() {
    assert_eq!((Plain::TYPE, Plain::VERSION), ("order.placed", 1));
    assert_eq!((Keyed::TYPE, Keyed::VERSION), ("Order_placed-2.v1", 7));
    assert_eq!((Unit::TYPE, WithoutKey::TYPE), ("unit", "none"));
    assert_eq!(<Generic<u8, 3>>::TYPE, "generic");
}

#[test]
fn keys_of_structs() {
    check(Plain { total_cents: 1 }.key(), None, false);
    check(
        Keyed {
            r#type: "a".to_owned(),
            total_cents: 1,
        }
        .key(),
        Some("a"),
        true,
    );
    check(Generic::<u8, 3>(1, 17).key(), Some("17"), false);
    check(OfString("a".to_owned()).key(), Some("a"), true);
    check(OfLongString(String::new()).key(), Some(""), true);
    check(OfCow("a".into()).key(), Some("a"), true);
    check(OfBox("a".into()).key(), Some("a"), true);
    check(OfArc("a".into()).key(), Some("a"), true);
    check(
        OfUuid(Uuid::nil()).key(),
        Some("00000000-0000-0000-0000-000000000000"),
        false,
    );
    check(OfNumber(-5).key(), Some("-5"), false);
    check(OfChar('ü').key(), Some("ü"), false);
    check(OfAlias("a".to_owned()).key(), Some("a"), false);
    check(OfNewtype(OrderNumber(3)).key(), Some("order-3"), false);
    check(OfBoxedNewtype(Box::new(OrderNumber(3))).key(), Some("order-3"), false);
    check(OfOption(Some("a".to_owned())).key(), Some("a"), true);
    check(OfOption(None).key(), None, false);
    check(OfLongOption(Some(Some(OrderNumber(3)))).key(), Some("order-3"), false);
    check(OfLongOption(Some(None)).key(), None, false);
}

#[test]
fn keys_of_enums() {
    check(
        Changed::Placed {
            total_cents: 1,
            order: "a".to_owned(),
        }
        .key(),
        Some("a"),
        true,
    );
    check(
        Changed::Shipped("parcel".to_owned(), OrderNumber(3)).key(),
        Some("order-3"),
        false,
    );
    check(Changed::Cancelled(Some(4)).key(), Some("4"), false);
    check(Changed::Cancelled(None).key(), None, false);
    check(WithoutKey::Two.key(), None, false);
}

#[test]
fn rows() -> Result<(), eventloom_core::PublishError> {
    let event = Keyed {
        r#type: "a".to_owned(),
        total_cents: 1,
    };
    let row = eventloom_core::NewEvent::of(eventloom_core::Topic::new("orders"), &event)?;
    assert_eq!(
        (row.event_type(), row.key(), row.schemaversion()),
        ("Order_placed-2.v1", Some("a"), 7)
    );
    assert_eq!(
        row.payload().map(|payload| payload.bytes()),
        Some(br#"{"orderNumber":"a","total_cents":1}"#.as_slice())
    );
    Ok(())
}
