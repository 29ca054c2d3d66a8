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
        clean += &match is_server(&clean) {
            true => server_without_password(&rest[..end]),
            false => word_without_password(&rest[..end]),
        };
        rest = &rest[end..];
    }
    clean += rest;
    Cow::Owned(clean)
}

/// The text of a store, which is one word whatever stands in it, and may be a URL that was mistyped.
pub(crate) fn of_store(text: &str) -> String {
    let place = match text.split_once("://") {
        Some((_, place)) => place,
        None => behind_postgres(text).unwrap_or(text),
    };
    let before = &text[..text.len() - place.len()];
    let place = match is_server(before) {
        true => server_without_password(place),
        false => word_without_password(place),
    };
    before.to_owned() + &place
}

/// A command line that was not understood: anything like `user:password@host` in it may be a URL that was mistyped.
pub(crate) fn of_command_line(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`');
    without_passwords(text).split_inclusive(is_end).map(of_store).collect()
}

/// What follows `postgres:`, `postgres:/`, `postgres//` and the like. Nobody keeps a file under such a name.
pub(crate) fn behind_postgres(text: &str) -> Option<&str> {
    let rest = text
        .strip_prefix("postgresql")
        .or_else(|| text.strip_prefix("postgres"))?;
    rest.starts_with([':', '/'])
        .then(|| rest.trim_start_matches([':', '/']))
}

/// `user:password@host/database?password=…`, behind the `://`.
fn word_without_password(word: &str) -> String {
    // First, since this password may hold an @ as well.
    let lower = word.to_ascii_lowercase();
    if let Some(at) = ["?password=", "&password="].iter().find_map(|name| lower.find(name)) {
        let begin = at + "?password=".len();
        let end = word[begin..].find('&').map_or(word.len(), |end| begin + end);
        if word[begin..end] != *"***" {
            return word_without_password(&format!("{}***{}", &word[..begin], &word[end..]));
        }
    }
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

/// Whether what follows this is the place of a server, and not the path of a file.
fn is_server(before: &str) -> bool {
    let scheme = before.trim_end_matches([':', '/']);
    scheme.len() < before.len() && (scheme.ends_with("postgres") || scheme.ends_with("postgresql"))
}

/// Where the host was forgotten, with its @, what stands before the path is `user:password`: a port is a number.
fn server_without_password(word: &str) -> String {
    let (host, path) = word.split_at(word.find(['/', '?']).unwrap_or(word.len()));
    match host.split_once(':') {
        Some((user, port))
            if !word.contains('@') && !host.starts_with('[') && !port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            word_without_password(&format!("{user}:***{path}"))
        }
        _ => word_without_password(word),
    }
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
            (
                "postgres://h:1/d?password=p@ss&a=b",
                "postgres://h:1/d?password=***&a=b",
            ),
            ("postgres://u:p@ss/w@127.0.0.1", "postgres://u:***@127.0.0.1"),
            ("postgres://u:secret/db", "postgres://u:***/db"),
            ("postgres://u:secret:5432/db?a=b", "postgres://u:***/db?a=b"),
            ("postgres://h:5432/db", "postgres://h:5432/db"),
            ("postgres://[::1]:5432/db", "postgres://[::1]:5432/db"),
            ("a://u:p@h b://u:p@h", "a://u:***@h b://u:***@h"),
            ("sqlite://shop.db", "sqlite://shop.db"),
        ];
        for (text, clean) in cases {
            assert_eq!(without_passwords(text), clean);
        }
    }

    #[test]
    fn urls_that_were_mistyped() {
        let cases = [
            ("postgres:/u:p@h/x", "postgres:/u:***@h/x"),
            ("postgres//u:p@h/x", "postgres//u:***@h/x"),
            ("postgresql:u:p@h/x", "postgresql:u:***@h/x"),
            ("u:p@ss/w@h/x", "u:***@h/x"),
            ("postgres://u:p a@h/x", "postgres://u:***@h/x"),
            ("shop.db", "shop.db"),
        ];
        for (text, clean) in cases {
            assert_eq!(of_store(text), clean);
        }
        assert_eq!(
            of_command_line("error: unexpected argument 'u:p@h/x' found\n"),
            "error: unexpected argument 'u:***@h/x' found\n"
        );
    }
}
