//! The ledger of the orders example: what the input says should have happened, against what did happen.
//!
//! It shares no code with what it judges: no crate of Eventloom, and not even the example's reader of its input. It takes
//!
//! 1. the input file, read anew ([`Input`]);
//! 2. the business tables and the held messages, by plain SQL ([`Books`]);
//! 3. the file that the mailer appends to ([`Mail`]);
//!
//! and [`balance`] works out for each customer which orders should have been handled in which order. [`print`] shows it.

mod balance;
mod books;
mod digest;
mod explain;
mod input;
mod mail;
mod print;

pub use balance::{Group, Ledger, Month, balance};
pub use books::{Books, BooksError, Database, HeldOrder, MonthRow, OrderRow, RunRow, TotalRow};
pub use digest::{Digest, digest_of};
pub use input::{Input, InputError, Purchase};
pub use mail::{Letter, Mail};
pub use print::{dollars, grouped, print};

use std::path::Path;

/// The name of the database file of a run on SQLite, in its data folder.
pub const DATABASE_FILE: &str = "orders.db";

/// Why there is no ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The tables could not be read.
    #[error(transparent)]
    Books(#[from] BooksError),
    /// The orders were placed from another file.
    #[error("the orders were placed from {placed:?}, and that is not this input; give the same file with --input")]
    OtherInput {
        /// Name of the file that they were placed from.
        placed: String,
    },
    /// The mailer's file could not be read.
    #[error("cannot read the mailer's file {path}: {why}; give the data folder of this run with --data")]
    Mail {
        /// The file.
        path: String,
        /// Why.
        why: std::io::Error,
    },
}

/// Reads tables and mail of the run in `folder` and holds them against the input. `effects` is the database whose log the
/// groups followed: the same one, unless the run had a broker.
///
/// # Errors
/// When something cannot be read. What does not balance is no error but a ledger that is not clean.
pub async fn examine(
    database: &Database,
    effects: &Database,
    folder: &Path,
    input: &Input,
) -> Result<Ledger, LedgerError> {
    let books = Books::read(database, effects).await?;
    if books.run.input_sha256 != input.sha256 {
        return Err(LedgerError::OtherInput {
            placed: books.run.input_name,
        });
    }
    let path = folder.join(&books.run.mail_file);
    let mail = Mail::read(&path).map_err(|why| LedgerError::Mail {
        path: path.display().to_string(),
        why,
    })?;
    Ok(balance(input, &books, &mail))
}
