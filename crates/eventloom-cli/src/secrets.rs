//! Passwords never appear in any output: whatever is printed about a connection passes through here.

use std::borrow::Cow;

/// The text with the password of every URL in it replaced by `***`.
///
/// A password ends at the last `@` before the host; one that was not percent-encoded may hold anything but blanks and
/// quotes, so everything up to the last `@` of the word goes.
pub(crate) fn without_passwords(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("://").map(|at| at + 3) {
        clean += &rest[..begin];
        rest = &rest[begin..];
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`'))
            .unwrap_or(rest.len());
        clean += &word_without_password(&rest[..end]);
        rest = &rest[end..];
    }
    clean += rest;
    Cow::Owned(clean)
}

/// `user:password@host/database?password=…`, behind the `://`.
fn word_without_password(word: &str) -> String {
    let (login, place) = match word.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, word),
    };
    let login = match login {
        Some(login) => match login.split_once(':') {
            Some((user, _)) => format!("{user}:***@"),
            None => format!("{login}@"),
        },
        None => String::new(),
    };
    let Some((place, query)) = place.split_once('?') else {
        return login + place;
    };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=***"),
        _ => parameter.to_owned(),
    });
    format!("{login}{place}?{}", parameters.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_go_and_the_rest_stays() {
        let cases = [
            ("no url", "no url"),
            ("postgres://host/db", "postgres://host/db"),
            ("postgres://user@host/db", "postgres://user@host/db"),
            ("postgres://user:secret@host/db", "postgres://user:***@host/db"),
            (
                "at 'postgres://u:se@cr#et/x@host/db' it",
                "at 'postgres://u:***@host/db' it",
            ),
            (
                "postgres://u:p@h/d?sslmode=require&password=secret",
                "postgres://u:***@h/d?sslmode=require&password=***",
            ),
            ("a://u:p@h b://u:p@h", "a://u:***@h b://u:***@h"),
            ("sqlite://shop.db", "sqlite://shop.db"),
        ];
        for (text, clean) in cases {
            assert_eq!(without_passwords(text), clean);
        }
    }
}
