//! What is kept of a failed attempt: the chain of errors, and a fingerprint to group by.

use eventloom_core::{RetryClass, StoreErrorKind, chain, ports::Failure};
use std::error::Error;

const ERROR_BYTES_MAX: usize = 4096;
const FINGERPRINT_BYTES_MAX: usize = 256;

/// A handler's failure, flattened for the engine.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) class: RetryClass,
    pub(crate) failure: Failure,
    /// Trouble of the store behind it, when there is any.
    pub(crate) store: Option<StoreErrorKind>,
}

impl Failed {
    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        Failed {
            class: RetryClass::Permanent,
            failure: of_text(message.into()),
            store: None,
        }
    }

    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Failed {
            class: RetryClass::Transient,
            failure: of_text(message.into()),
            store: None,
        }
    }

    pub(crate) fn of(error: &(dyn Error + 'static), class: RetryClass, store: Option<StoreErrorKind>) -> Self {
        Failed {
            class,
            failure: of_text(chain(error).to_string()),
            store,
        }
    }
}

fn of_text(mut error: String) -> Failure {
    truncate(&mut error, ERROR_BYTES_MAX);
    // A NUL cannot be stored as text.
    let error = error.replace('\0', "\u{fffd}");
    let fingerprint = fingerprint(&error);
    Failure { error, fingerprint }
}

fn truncate(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
    }
}

/// Takes out what differs from message to message: quoted text, numbers, and hexadecimal ids.
fn fingerprint(error: &str) -> String {
    let mut out = String::with_capacity(error.len().min(FINGERPRINT_BYTES_MAX));
    let mut chars = error.chars().peekable();
    while let Some(c) = chars.next() {
        if out.len() >= FINGERPRINT_BYTES_MAX {
            break;
        }
        match c {
            '\'' | '"' | '`' => {
                let quoted: String = chars.clone().take_while(|next| *next != c).collect();
                if chars.clone().nth(quoted.chars().count()) == Some(c) {
                    chars.nth(quoted.chars().count());
                    out.push_str("<string>");
                } else {
                    out.push(c);
                }
            }
            c if c.is_ascii_alphanumeric() => {
                let mut word = String::from(c);
                while let Some(next) =
                    chars.next_if(|next| next.is_ascii_alphanumeric() || *next == '-' || *next == '_')
                {
                    word.push(next);
                }
                let hex = word.len() >= 8 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
                let digits = word.chars().filter(char::is_ascii_digit).count();
                if digits > 0 && (hex || digits * 2 >= word.len()) {
                    out.push_str("<number>");
                } else {
                    out.push_str(&word);
                }
            }
            c => out.push(c),
        }
    }
    truncate(&mut out, FINGERPRINT_BYTES_MAX);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_group() {
        let cases = [
            ("no row for 'XK'", "no row for <string>"),
            (
                "order 4711 timed out after 30s",
                "order <number> timed out after <number>",
            ),
            ("id 018f2c4e-9d3a-7cc1-8f00-aa12bb34cc56 gone", "id <number> gone"),
            ("it's broken", "it's broken"),
            ("E0308 in step2", "<number> in step2"),
        ];
        for (error, wanted) in cases {
            assert_eq!(fingerprint(error), wanted, "{error}");
        }
        assert!(fingerprint(&"ä".repeat(1000)).len() <= FINGERPRINT_BYTES_MAX);
    }

    #[test]
    fn chains_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner;
        let failed = Failed::of(&Outer(Inner), RetryClass::Transient, None);
        assert_eq!(failed.failure.error, "outer: inner");
    }
}
