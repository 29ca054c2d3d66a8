//! An error and what lies behind it, on one line: for logs, screens and whatever else people read.

use std::{error::Error, fmt};

/// An error with its chain of sources, to be displayed.
///
/// An error of Eventloom displays its own part and gives the rest as its source; where it quotes its source, it does not
/// give that as well. So this is how errors are printed: `error.to_string()` alone may leave out why.
///
/// What a link quotes at its end is not told twice: drivers and `#[error("…: {0}")]` do that.
///
/// ```
/// use eventloom_core::{PublishError, Refusal, chain};
/// let error = PublishError::from(Refusal::EmptyType);
/// assert!(chain(&error).to_string().starts_with("the event was refused: the event type is empty"));
/// ```
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl fmt::Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            let link = source.to_string();
            if !told.ends_with(&link) {
                write!(f, ": {link}")?;
                told = link;
            }
            next = source.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn each_link_is_told_once() {
        let cases: [(&[&'static str], &str); 4] = [
            (&["alone"], "alone"),
            (&["outer", "middle", "inner"], "outer: middle: inner"),
            (&["outer: inner", "inner"], "outer: inner"),
            (
                &["outer: middle: inner", "middle: inner", "inner", "core"],
                "outer: middle: inner: core",
            ),
        ];
        for (links, wanted) in cases {
            let error = links.iter().rev().fold(None, |source, text| {
                let source = source.map(Box::new);
                Some(Link { text, source })
            });
            assert_eq!(error.map(|error| chain(&error).to_string()).as_deref(), Some(wanted));
        }
    }
}
