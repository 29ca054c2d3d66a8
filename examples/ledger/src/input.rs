//! The input, read a second time by other code on purpose: an oracle that shares the reader with what it judges would
//! agree with its mistakes.

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};
use std::{
    io::{self, Read},
    path::Path,
};

/// One line of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purchase {
    /// Line of the file, from 1: the number of the order.
    pub number: i64,
    /// Who bought.
    pub customer: String,
    /// `1997-01`.
    pub month: String,
    /// What it cost.
    pub cents: i64,
}

/// The whole input.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its purchases, by number.
    pub purchases: Vec<Purchase>,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
}

/// An input could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file could not be read.
    #[error("cannot read {path}: {why}")]
    File {
        /// The file.
        path: String,
        /// Why.
        why: io::Error,
    },
    /// A line is no purchase.
    #[error("line {line} is no purchase (`customer yyyymmdd number_of_cds dollar_value`): {text:?}")]
    Line {
        /// Which, from 1.
        line: i64,
        /// What stands there.
        text: String,
    },
}

impl Input {
    /// Reads text with a purchase a line; a first line of column names is passed over.
    pub fn parse(text: &str) -> Result<Self, InputError> {
        let mut purchases = Vec::new();
        for (text, line) in text.lines().zip(1..) {
            let columns: Vec<&str> = text.split_ascii_whitespace().collect();
            if columns.is_empty() || (line == 1 && columns[0].starts_with("customer")) {
                continue;
            }
            let purchase = purchase(line, &columns);
            purchases.push(purchase.ok_or_else(|| InputError::Line {
                line,
                text: text.to_owned(),
            })?);
        }
        let sha256 = Sha256::digest(text.as_bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Input { purchases, sha256 })
    }

    /// Reads a file; one that ends in `.gz` is decompressed.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let failed = |why| InputError::File {
            path: path.display().to_string(),
            why,
        };
        let bytes = std::fs::read(path).map_err(failed)?;
        let compressed = path.extension().is_some_and(|extension| extension == "gz");
        let text = if compressed {
            decompressed(&bytes)
        } else {
            String::from_utf8(bytes).map_err(io::Error::other)
        };
        Self::parse(&text.map_err(failed)?)
    }

    /// Reads a compressed file that is in memory already.
    pub fn of_gzip(bytes: &[u8]) -> Result<Self, InputError> {
        let text = decompressed(bytes).map_err(|why| InputError::File {
            path: "the carried input".to_owned(),
            why,
        })?;
        Self::parse(&text)
    }
}

fn decompressed(bytes: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text)?;
    Ok(text)
}

fn purchase(line: i64, columns: &[&str]) -> Option<Purchase> {
    let [customer, date, _cds, value] = columns else {
        return None;
    };
    if date.len() != 8 || !date.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Digits alone, so that no rounding enters: two of them behind the point.
    let (whole, part) = value.split_once('.')?;
    if part.len() != 2 {
        return None;
    }
    let cents = format!("{whole}{part}").parse().ok()?;
    let month = format!("{}-{}", &date[..4], &date[4..6]);
    Some(Purchase {
        number: line,
        customer: (*customer).to_owned(),
        month,
        cents,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_become_purchases() {
        let input = Input::parse(" customer_id  date cds  value\r\n 00001 19970101  1   11.77\r\n").unwrap();
        let wanted = Purchase {
            number: 2,
            customer: "00001".to_owned(),
            month: "1997-01".to_owned(),
            cents: 1177,
        };
        assert_eq!(input.purchases, [wanted]);
    }

    #[test]
    fn what_is_no_purchase_is_refused_with_its_line() {
        for line in [
            "00001 1997-01-01 1 11.77",
            "00001 19970101 1 11.7",
            "00001 19970101 1",
            "00001 19970101 1 a.bc",
        ] {
            let error = Input::parse(&format!("1 19970101 1 0.00\n{line}\n")).unwrap_err();
            assert!(
                error.to_string().starts_with("line 2 is no purchase"),
                "{line}: {error}"
            );
        }
    }
}
