//! What somebody may have meant: the nearest known word, and an event type for the name of a type.

/// The word of `known` that `written` is a slip of, if any: at most two letters wrong, or a word for the same thing.
pub(crate) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let synonym = match written {
        "name" | "event_type" | "kind" | "topic" => "type",
        "schema_version" | "schemaversion" | "rev" => "version",
        "partition_key" | "partitionkey" | "id" | "order_by" => "key",
        "path" | "krate" | "crate_path" => "crate",
        other => other,
    };
    let distances = known.iter().map(|word| (distance(synonym, word), *word));
    distances
        .filter(|(distance, word)| *distance <= 2 && *distance < word.len())
        .min()
        .map(|(_, word)| word)
}

/// Levenshtein's distance, counting a swap of neighbours as two.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

/// `OrderPlaced` is likely `order.placed`.
pub(crate) fn event_type_for(type_name: &str) -> String {
    let mut event_type = String::new();
    for letter in type_name.trim_start_matches("r#").chars() {
        if letter.is_uppercase() && !event_type.is_empty() {
            event_type.push('.');
        }
        event_type.extend(letter.to_lowercase());
    }
    event_type
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips() {
        let cases = [
            ("typ", Some("type")),
            ("tpye", Some("type")),
            ("name", Some("type")),
            ("versoin", Some("version")),
            ("schema_version", Some("version")),
            ("kye", Some("key")),
            ("crates", Some("crate")),
            ("colour", None),
            ("", None),
        ];
        for (written, wanted) in cases {
            assert_eq!(
                nearest(written, &["type", "version", "crate", "key"]),
                wanted,
                "{written:?}"
            );
        }
    }

    #[test]
    fn event_types() {
        for (name, wanted) in [("OrderPlaced", "order.placed"), ("Paid", "paid"), ("r#Type", "type")] {
            assert_eq!(event_type_for(name), wanted);
        }
    }
}
