//! Names that end up in SQL, in subjects and on screens, validated where they enter.

use std::{borrow::Cow, fmt};

/// Why a name was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} is not a legal name: {rule}")]
pub struct NameError {
    what: &'static str,
    value: String,
    rule: &'static str,
}

/// Letters, digits and `. _ -`, at most 249 bytes: what every broker accepts without translation.
const TOPIC_RULE: &str = "1 to 249 of the characters a-z A-Z 0-9 . _ -";
const TOPIC_BYTES_MAX: usize = 249;

const fn legal_topic(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > TOPIC_BYTES_MAX {
        return false;
    }
    let mut i = 0;
    while i < bytes.len() {
        if !(bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'.' | b'_' | b'-')) {
            return false;
        }
        i += 1;
    }
    true
}

/// Where an event goes: a name that every broker accepts as it stands.
///
/// ```
/// use eventloom_core::Topic;
/// const ORDERS: Topic = Topic::new("orders");       // checked by the compiler
/// assert!(Topic::parse("orders of today").is_err()); // checked at run time
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Cow<'static, str>);

impl Topic {
    /// A topic known at compile time.
    ///
    /// # Panics
    /// If the name is illegal; in a `const` that is a compile error.
    pub const fn new(name: &'static str) -> Self {
        assert!(
            legal_topic(name),
            "a topic is 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        );
        Topic(Cow::Borrowed(name))
    }

    /// A topic from configuration or from another program.
    pub fn parse(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if legal_topic(&name) {
            Ok(Topic(Cow::Owned(name)))
        } else {
            Err(NameError {
                what: "topic",
                value: name,
                rule: TOPIC_RULE,
            })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifiers that start with a letter and hold `a-z 0-9 _ -`: safe on screens, in logs and as text keys.
fn legal_identifier(name: &str, dash: bool, bytes_max: usize) -> bool {
    name.len() <= bytes_max
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || (dash && (c == '-' || c == '.')))
}

/// The name of a consumer group (any reader of a log): what its cursors, inbox and held messages are filed under.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerName(String);

impl ConsumerName {
    /// 1 to 63 of `a-z 0-9 _ - .`, beginning with a letter.
    pub fn parse(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if legal_identifier(&name, true, 63) {
            Ok(ConsumerName(name))
        } else {
            let rule = "1 to 63 of the characters a-z 0-9 _ - . with a letter first";
            Err(NameError {
                what: "consumer",
                value: name,
                rule,
            })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A schema of Postgres, the one place where a name becomes part of SQL text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SchemaName(String);

impl SchemaName {
    /// 1 to 48 of `a-z 0-9 _`, beginning with a letter; no quoting is ever needed.
    pub fn parse(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if legal_identifier(&name, false, 48) && !name.starts_with("pg_") {
            Ok(SchemaName(name))
        } else {
            let rule = "1 to 48 of the characters a-z 0-9 _ with a letter first, not pg_…";
            Err(NameError {
                what: "schema",
                value: name,
                rule,
            })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SchemaName {
    fn default() -> Self {
        SchemaName("eventloom".to_owned())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One running instance: `host-pid-suffix`, at most 36 bytes. Unique for each start of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(String);

impl OwnerId {
    /// A new id for this start of this process. `host` is shortened to 16 bytes and cleaned.
    pub fn new(host: &str, pid: u32) -> Self {
        let host: String = host
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .take(16)
            .collect();
        let suffix = uuid::Uuid::new_v4().simple().to_string();
        OwnerId(format!(
            "{}-{pid}-{}",
            if host.is_empty() { "host" } else { &host },
            &suffix[..8]
        ))
    }

    /// The id as it stands in the cursors.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let topics = [
            ("orders", true),
            ("a.b_c-D9", true),
            ("", false),
            ("a b", false),
            ("ö", false),
            ("a/b", false),
        ];
        for (name, legal) in topics {
            assert_eq!(Topic::parse(name).is_ok(), legal, "topic {name:?}");
        }
        assert!(Topic::parse("x".repeat(249)).is_ok() && Topic::parse("x".repeat(250)).is_err());
        let schemas = [
            ("eventloom", true),
            ("e1_x", true),
            ("Event", false),
            ("a-b", false),
            ("pg_x", false),
            ("x\"; --", false),
        ];
        for (name, legal) in schemas {
            assert_eq!(SchemaName::parse(name).is_ok(), legal, "schema {name:?}");
        }
        let consumers = [
            ("orders-out", true),
            ("a.b", true),
            ("9a", false),
            ("a/b", false),
            ("", false),
        ];
        for (name, legal) in consumers {
            assert_eq!(ConsumerName::parse(name).is_ok(), legal, "consumer {name:?}");
        }
    }
}
