//! How a case says what differs, and where.

use eventloom_core::chain;
use std::{error::Error, fmt, panic::Location};

/// What a case returns.
pub type Outcome = Result<(), Failed>;

/// Why a case failed, with its place in the suite.
///
/// Any error of a port becomes one with `?`, which keeps the place of the call. So it is no [`Error`] itself.
pub struct Failed {
    what: String,
    place: &'static Location<'static>,
}

impl Failed {
    /// A failure in words.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> Self {
        Failed {
            what: what.into(),
            place: Location::caller(),
        }
    }
}

impl<E: Error + 'static> From<E> for Failed {
    #[track_caller]
    fn from(error: E) -> Self {
        Failed::new(format!("a call failed: {}", chain(&error)))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  at {}:{}", self.what, self.place.file(), self.place.line())
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `found` is what the contract asks for.
#[track_caller]
pub(crate) fn same<T: PartialEq<U> + fmt::Debug, U: fmt::Debug>(what: &str, found: T, wanted: U) -> Outcome {
    match found == wanted {
        true => Ok(()),
        false => Err(Failed::new(format!(
            "{what}\n   found: {found:?}\n  wanted: {wanted:?}"
        ))),
    }
}

/// `fact` holds; otherwise `found` is shown.
#[track_caller]
pub(crate) fn holds(what: &str, fact: bool, found: impl fmt::Debug) -> Outcome {
    match fact {
        true => Ok(()),
        false => Err(Failed::new(format!("{what}\n   found: {found:?}"))),
    }
}

/// `result` is the error that `wanted` describes.
#[track_caller]
pub(super) fn refused<T: fmt::Debug, E: fmt::Debug>(
    what: &str,
    result: Result<T, E>,
    wanted: impl FnOnce(&E) -> bool,
) -> Outcome {
    match &result {
        Err(error) if wanted(error) => Ok(()),
        _ => Err(Failed::new(format!(
            "{what}\n   found: {result:?}\n  wanted: a refusal of that kind"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails() -> Outcome {
        "x".parse::<u8>()?;
        Ok(())
    }

    #[test]
    fn a_failure_names_its_place() {
        let failed = fails().map_err(|failed| failed.to_string());
        let place = format!("\n  at {}:", file!());
        let told = failed
            .as_ref()
            .is_err_and(|text| text.contains("invalid digit") && text.contains(&place));
        assert!(told, "{failed:?}");
        let differs = same("numbers", 1, 2).map_err(|failed| failed.to_string());
        assert!(differs.is_err_and(|text| text.starts_with("numbers\n   found: 1\n  wanted: 2\n  at ")));
    }
}
