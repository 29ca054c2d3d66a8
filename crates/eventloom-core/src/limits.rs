//! What may enter a log, checked before the database is asked, so that the caller's transaction stays usable.

use crate::event::NewEvent;
use time::UtcOffset;

/// A key is part of indexes, which take no longer one.
const KEY_BYTES_OF_A_LOG: usize = 2048;

/// Limits at publish. The defaults fit what every supported broker accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishLimits {
    /// Payload, in bytes. 1 MiB unless changed.
    pub payload_bytes_max: usize,
    /// Number of headers. 64 unless changed.
    pub headers_max: usize,
    /// Name and value of one header together, in bytes. 8 KiB unless changed.
    pub header_bytes_max: usize,
    /// Key, in bytes. 1 KiB unless changed, and never above 2,048, which is what a log takes.
    pub key_bytes_max: usize,
}

impl Default for PublishLimits {
    fn default() -> Self {
        PublishLimits {
            payload_bytes_max: 1 << 20,
            headers_max: 64,
            header_bytes_max: 8 << 10,
            key_bytes_max: 1 << 10,
        }
    }
}

impl PublishLimits {
    /// Sets the largest payload, in bytes.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// Sets the largest number of headers.
    #[must_use]
    pub fn headers_max(mut self, headers: usize) -> Self {
        self.headers_max = headers;
        self
    }

    /// Sets the largest header, name and value together, in bytes.
    #[must_use]
    pub fn header_bytes_max(mut self, bytes: usize) -> Self {
        self.header_bytes_max = bytes;
        self
    }

    /// Sets the largest key, in bytes.
    #[must_use]
    pub fn key_bytes_max(mut self, bytes: usize) -> Self {
        self.key_bytes_max = bytes;
        self
    }

    /// Says whether an event may enter a log. Touches no database.
    pub fn check(&self, event: &NewEvent) -> Result<(), Refusal> {
        let payload = event.payload().map_or(0, |payload| payload.bytes().len());
        if payload > self.payload_bytes_max {
            return Err(Refusal::PayloadTooLarge {
                bytes: payload,
                bytes_max: self.payload_bytes_max,
            });
        }
        let headers = event.headers();
        if headers.len() > self.headers_max {
            return Err(Refusal::TooManyHeaders {
                headers: headers.len(),
                headers_max: self.headers_max,
            });
        }
        for (name, value) in headers {
            let bytes = name.len() + value.len();
            if bytes > self.header_bytes_max {
                return Err(Refusal::HeaderTooLarge {
                    name: name.clone(),
                    bytes,
                    bytes_max: self.header_bytes_max,
                });
            }
        }
        if event.event_type().trim().is_empty() {
            return Err(Refusal::EmptyType);
        }
        let key_bytes_max = self.key_bytes_max.min(KEY_BYTES_OF_A_LOG);
        if let Some(key) = event.key()
            && key.len() > key_bytes_max
        {
            return Err(Refusal::KeyTooLarge {
                bytes: key.len(),
                bytes_max: key_bytes_max,
            });
        }
        if let Some(time) = event.time()
            && !time
                .checked_to_offset(UtcOffset::UTC)
                .is_some_and(|time| (1..=9999).contains(&time.year()))
        {
            return Err(Refusal::TimeOutOfRange { year: time.year() });
        }
        if let Some(what) = event.text_with_nul() {
            return Err(Refusal::NulCharacter { what });
        }
        if let Some(why) = event.not_json() {
            return Err(Refusal::NotJson { why });
        }
        Ok(())
    }
}

/// Why an event must not enter a log. Names the value and the limit; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The payload is over the limit.
    #[error("payload of {bytes} bytes is over the limit of {bytes_max} bytes")]
    PayloadTooLarge {
        /// Size of the payload.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// More headers than allowed.
    #[error("{headers} headers are over the limit of {headers_max}")]
    TooManyHeaders {
        /// Number of headers.
        headers: usize,
        /// The limit.
        headers_max: usize,
    },
    /// One header is over the limit.
    #[error("header {name:?} of {bytes} bytes (name and value) is over the limit of {bytes_max} bytes")]
    HeaderTooLarge {
        /// Name of the header.
        name: String,
        /// Size of name and value.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The key is over the limit.
    #[error("key of {bytes} bytes is over the limit of {bytes_max} bytes")]
    KeyTooLarge {
        /// Size of the key.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The event's time cannot be written as a timestamp of CloudEvents.
    #[error("the event's time is in the year {year}; years 1 to 9999 are allowed")]
    TimeOutOfRange {
        /// Year of the time.
        year: i32,
    },
    /// CloudEvents demands a type.
    #[error("the event type is empty; a type such as \"order.placed\" is required")]
    EmptyType,
    /// A database refuses it, and the caller's transaction with it.
    #[error("the payload is not JSON: {why}; bytes of another kind are a binary payload with a content type")]
    NotJson {
        /// What a parser says.
        why: String,
    },
    /// Postgres stores no NUL in text, so neither store does.
    #[error("{what} holds a NUL character, which a database cannot store as text")]
    NulCharacter {
        /// Which attribute.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Topic;
    use time::{Date, Month, OffsetDateTime, Time};

    fn of_year(year: i32) -> NewEvent {
        let date = Date::from_calendar_date(year, Month::June, 1).unwrap();
        NewEvent::untyped(Topic::new("orders"), "order.placed").with_time(OffsetDateTime::new_utc(date, Time::MIDNIGHT))
    }

    #[test]
    fn what_a_table_refuses_is_refused_before() {
        let limits = PublishLimits::default().key_bytes_max(1 << 20);
        for year in [1, 9999] {
            limits.check(&of_year(year)).unwrap();
        }
        for year in [0, -1] {
            assert_eq!(limits.check(&of_year(year)), Err(Refusal::TimeOutOfRange { year }));
        }
        let keyed = |bytes: usize| of_year(2026).with_key("k".repeat(bytes));
        limits.check(&keyed(2048)).unwrap();
        let (bytes, bytes_max) = (2049, 2048);
        assert_eq!(
            limits.check(&keyed(bytes)),
            Err(Refusal::KeyTooLarge { bytes, bytes_max })
        );
    }
}
