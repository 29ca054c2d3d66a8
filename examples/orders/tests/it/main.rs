//! The example from end to end, as a user runs it: the program itself, on a small part of the purchases.

mod ledger;
mod postgres;
mod runs;
mod shop;
