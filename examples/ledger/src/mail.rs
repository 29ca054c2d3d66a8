//! The file that stands for the receiver of mails: it dedups on the idempotency key, and we count what it had to.

use std::{collections::HashSet, io, path::Path};

/// What the receiver keeps of a key: its first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The idempotency key.
    pub key: String,
    /// The order.
    pub order: i64,
    /// To whom.
    pub customer: String,
}

/// Everything that was sent.
#[derive(Debug, Clone, Default)]
pub struct Mail {
    /// Lines in the file.
    pub raw: u64,
    /// Lines that are not `key order customer`.
    pub torn: u64,
    /// The first line of each key, as they came.
    pub letters: Vec<Letter>,
}

impl Mail {
    /// Reads the file.
    pub fn read(path: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(path)?))
    }

    /// Reads its text.
    pub fn parse(text: &str) -> Self {
        let mut mail = Mail::default();
        let mut seen = HashSet::new();
        for line in text.lines() {
            mail.raw += 1;
            let mut columns = line.split(' ');
            let (key, order, customer) = (columns.next(), columns.next(), columns.next());
            match (
                key,
                order.and_then(|order| order.parse().ok()),
                customer,
                columns.next(),
            ) {
                (Some(key), Some(order), Some(customer), None) => {
                    if seen.insert(key) {
                        mail.letters.push(Letter {
                            key: key.to_owned(),
                            order,
                            customer: customer.to_owned(),
                        });
                    }
                }
                _ => mail.torn += 1,
            }
        }
        mail
    }
}
