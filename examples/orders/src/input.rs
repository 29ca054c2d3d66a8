//! The purchases: the CDNOW file that is carried along, or another one of the same columns.

use crate::event::OrderPlaced;
use anyhow::{Context, bail};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::{io::Read, path::Path};

pub(crate) const CDNOW: &[u8] = include_bytes!("../data/cdnow.txt.gz");

/// Purchases in the order of the input, each as the order that it becomes.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) sha256: String,
    pub(crate) purchases: Vec<OrderPlaced>,
}

impl Input {
    /// Reads `path`, or what is carried along.
    pub(crate) fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Input::parse("the CDNOW purchases".to_owned(), &text(CDNOW, true)?);
        };
        let name = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read --input {name}"))?;
        let compressed = path.extension().is_some_and(|extension| extension == "gz");
        let text = text(&bytes, compressed).with_context(|| format!("--input {name} is no text"))?;
        Input::parse(name.clone(), &text).with_context(|| format!("--input {name}"))
    }

    fn parse(name: String, text: &str) -> anyhow::Result<Self> {
        let mut purchases = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            match columns[..] {
                [] => {}
                [first, ..] if number == 1 && first.starts_with("customer") => {}
                [customer, day, discs, value] => purchases.push(
                    purchase(number, customer, day, discs, value)
                        .with_context(|| format!("line {number} is no purchase: {line:?}"))?,
                ),
                _ => bail!(
                    "line {number} has {} columns and not 4: customer, yyyymmdd, number, dollars",
                    columns.len()
                ),
            }
        }
        if purchases.is_empty() {
            bail!("there is no purchase in it");
        }
        let digest = Sha256::digest(text.as_bytes());
        let sha256 = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Input {
            name,
            sha256,
            purchases,
        })
    }
}

fn text(bytes: &[u8], compressed: bool) -> anyhow::Result<String> {
    let mut text = String::new();
    match compressed {
        true => GzDecoder::new(bytes).read_to_string(&mut text)?,
        false => { bytes }.read_to_string(&mut text)?,
    };
    Ok(text)
}

fn purchase(order: i64, customer: &str, day: &str, discs: &str, value: &str) -> anyhow::Result<OrderPlaced> {
    if day.len() != 8 || !day.bytes().all(|digit| digit.is_ascii_digit()) {
        bail!("{day:?} is no date as yyyymmdd");
    }
    let (dollars, cents) = value
        .split_once('.')
        .context("dollars have two digits behind the point")?;
    if cents.len() != 2 {
        bail!("{value:?} has not two digits behind the point");
    }
    let (dollars, cents): (i64, i64) = (dollars.parse()?, cents.parse()?);
    Ok(OrderPlaced {
        order,
        customer: customer.to_owned(),
        day: format!("{}-{}-{}", &day[..4], &day[4..6], &day[6..]),
        discs: discs.parse()?,
        cents: dollars * 100 + cents,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_carried_along_can_be_read() {
        let input = Input::read(None).unwrap();
        assert_eq!(input.purchases.len(), 69_659);
        let first = OrderPlaced {
            order: 2,
            customer: "00001".to_owned(),
            day: "1997-01-01".to_owned(),
            discs: 1,
            cents: 1177,
        };
        assert_eq!(input.purchases[0], first);
        assert_eq!(first.month(), "1997-01");
    }

    #[test]
    fn what_is_no_purchase_is_refused() {
        let cases = [
            "1 19970101 1",
            "1 1997-1-1 1 1.00",
            "1 19970101 x 1.00",
            "1 19970101 1 1",
            "1 19970101 1 1.0",
            "",
        ];
        for line in cases {
            assert!(Input::parse("test".to_owned(), line).is_err(), "{line:?}");
        }
    }
}
