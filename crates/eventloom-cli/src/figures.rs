//! Numbers, ages and times as people read and write them.

use eventloom::{OffsetDateTime, Position, Start};
use std::time::Duration;
use time::{Date, PrimitiveDateTime, format_description::well_known::Rfc3339, macros::format_description};

/// `18204` as `18,204`.
pub(crate) fn thousands(number: impl Into<i128>) -> String {
    let number = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// A count that the store stops at: `100,000+`.
pub(crate) fn bounded(count: u64) -> String {
    const COUNTED_MAX: u64 = 100_000;
    let text = thousands(count);
    if count >= COUNTED_MAX { text + "+" } else { text }
}

/// `1 message`, `2 messages`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", bounded(count))
}

/// The two largest units: `3d4h`, `4m12s`, `1.2s`, `40ms`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => format!("{}ms", age.as_millis()),
        1..10 => format!("{:.1}s", (age.as_secs_f64() * 10.0).floor() / 10.0),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{}s", seconds % 60),
        3600..86_400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// How long ago, by this machine's clock; never negative.
pub(crate) fn since(time: OffsetDateTime) -> Duration {
    Duration::try_from(OffsetDateTime::now_utc() - time).unwrap_or_default()
}

/// `2026-11-30 15:14:02.123Z`.
pub(crate) fn moment(time: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:3]Z");
    time.to_offset(time::UtcOffset::UTC)
        .format(format)
        .unwrap_or_else(|_| time.to_string())
}

/// RFC 3339, for programs.
pub(crate) fn rfc3339(time: OffsetDateTime) -> String {
    time.to_offset(time::UtcOffset::UTC)
        .format(&Rfc3339)
        .unwrap_or_else(|_| time.to_string())
}

/// A duration with its unit: `500ms`, `5s`, `1h 30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(format!("{text:?} has no unit; write {text}s or {text}ms"));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("{text:?} is no duration such as 500ms, 5s or 10m: {error}"))
}

/// A moment: RFC 3339, a date with or without a time (UTC), or how long ago.
pub(crate) fn parse_moment(text: &str) -> Result<OffsetDateTime, String> {
    let text = text.trim();
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(time);
    }
    let (seconds, minutes) = (
        format_description!("[year]-[month]-[day] [hour]:[minute]:[second]"),
        format_description!("[year]-[month]-[day] [hour]:[minute]"),
    );
    let date = format_description!("[year]-[month]-[day]");
    let spaced = text.trim_end_matches('Z').replace('T', " ");
    let local = PrimitiveDateTime::parse(&spaced, seconds)
        .or_else(|_| PrimitiveDateTime::parse(&spaced, minutes))
        .or_else(|_| Date::parse(&spaced, date).map(Date::midnight));
    if let Ok(time) = local {
        return Ok(time.assume_utc());
    }
    let ago = parse_duration(text)
        .ok()
        .and_then(|ago| time::Duration::try_from(ago).ok());
    ago.and_then(|ago| OffsetDateTime::now_utc().checked_sub(ago))
        .ok_or_else(|| format!("{text:?} is no time; write 2026-11-30T15:14:00Z, 2026-11-30, or how long ago: 10m"))
}

/// A place of the log where somebody begins: `earliest`, `latest`, after a position, or at a moment.
pub(crate) fn parse_start(text: &str) -> Result<Start, String> {
    match text.trim() {
        "earliest" => Ok(Start::Earliest),
        "latest" => Ok(Start::Latest),
        text => match text.parse() {
            Ok(position) if position >= 0 => Ok(Start::After(Position(position))),
            Ok(position) => Err(format!("{position} is no position; they begin at 0")),
            Err(_) => parse_moment(text).map(Start::Since).map_err(|error| {
                let what = error.split(';').next().unwrap_or_default().replace("is no time", "is no place of a log");
                format!("{what}; write earliest, latest, a position, a time such as 2026-11-30T15:14:00Z, or how long ago: 10m")
            }),
        },
    }
}

/// The candidate that was probably meant.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate));
    let close = |(distance, candidate): &(usize, &str)| distance * 5 <= candidate.len().max(word.len()) * 2;
    scored
        .filter(close)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ages() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (9_412_882, "9,412,882"),
            (-1234, "-1,234"),
        ] {
            assert_eq!(thousands(number), text);
        }
        assert_eq!(
            (bounded(99_999).as_str(), bounded(100_000).as_str()),
            ("99,999", "100,000+")
        );
        let ages = [
            (40, "40ms"),
            (1_290, "1.2s"),
            (59_999, "59s"),
            (252_000, "4m12s"),
            (3_600_000, "1h0m"),
            (273_600_000, "3d4h"),
        ];
        for (milliseconds, text) in ages {
            assert_eq!(age(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn plurals() {
        assert_eq!(counted(1, "message"), "1 message");
        assert_eq!(counted(1200, "message"), "1,200 messages");
    }

    #[test]
    fn moments() {
        for text in [
            "2026-11-30T15:14:00Z",
            "2026-11-30 15:14",
            "2026-11-30T15:14:00",
            "2026-11-30T16:14:00+01:00",
        ] {
            assert_eq!(
                parse_moment(text).map(rfc3339),
                Ok("2026-11-30T15:14:00Z".to_owned()),
                "{text}"
            );
        }
        assert_eq!(
            parse_moment("2026-11-30").map(rfc3339),
            Ok("2026-11-30T00:00:00Z".to_owned())
        );
        assert!(parse_moment("10m").is_ok() && parse_moment("10").is_err() && parse_moment("soon").is_err());
        assert!(parse_duration("5").is_err_and(|error| error.contains("no unit")));
    }

    #[test]
    fn places_of_a_log() {
        assert_eq!(parse_start("earliest"), Ok(Start::Earliest));
        assert_eq!(parse_start("latest"), Ok(Start::Latest));
        assert_eq!(parse_start("12"), Ok(Start::After(Position(12))));
        assert!(matches!(parse_start("10m"), Ok(Start::Since(_))));
        assert!(matches!(parse_start("2026-11-30"), Ok(Start::Since(_))));
        for wrong in ["-1", "soon"] {
            assert!(parse_start(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_nearest() {
        let keys = ["store", "schema"];
        assert_eq!(nearest("stroe", keys.into_iter()), Some("store"));
        assert_eq!(nearest("colour", keys.into_iter()), None);
    }
}
