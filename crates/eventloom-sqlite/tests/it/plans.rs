//! The plans of every shipped statement at a million rows: bounded searches, never a scan of what grows.

use crate::folder::Folder;
use eventloom_sqlite::shipped_statements;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};

const ROWS: i64 = 1_000_000;

/// Names under which the tables that grow stand in a plan. Cursors are among them: there are 16,384 lanes at most.
const GROWING: &[&str] = &[
    "eventloom_outbox",
    "eventloom_inbox",
    "eventloom_held",
    "eventloom_held_keys",
    "eventloom_attempts",
    "eventloom_cursors",
    "head",
    "o",
    "h",
    "i",
    "c",
];

/// Statements that sort, and how many rows that can be.
const SORTING: &[(&str, &str)] = &[
    ("held.due", "at most the limit for each lane"),
    ("letters.of_key", "the messages of one key"),
    ("letters.dead_of_key", "the messages of one key"),
];

/// Statements that know nothing but a consumer or a time, and why that is bounded.
const BY_CONSUMER: &[(&str, &str)] = &[
    ("held.count_all", "a limit"),
    ("inbox.once_forget", "a limit"),
    ("letters.next_consumer", "the first entry"),
    ("readers.held_keys", "a limit"),
    ("readers.first_dead", "the first entry"),
    ("readers.last_error", "the last entry"),
    ("readers.leftover", "the first entry"),
    ("readers.forget_inbox", "a limit"),
    ("readers.forget_held", "a limit"),
    ("readers.forget_keys", "a limit"),
    ("readers.forget_attempts", "a limit"),
];

async fn fill(connection: &mut SqliteConnection) {
    let numbers = format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})");
    let fills = [
        format!(
            "INSERT INTO eventloom_outbox (topic, type, key, data) {numbers} SELECT 'orders', 't', 'k' || (i % 5000), '{{}}' FROM n"
        ),
        format!(
            "INSERT INTO eventloom_inbox (consumer, id, handled_at) {numbers} SELECT 'c' || (i % 3), 'id' || i, i FROM n"
        ),
        format!(
            "INSERT INTO eventloom_held (consumer, id, position, lane, topic, type, key, time, schemaversion, queued, state, \
             attempts, due_at, first_failed_at, last_failed_at, held_at, held_by) {numbers} \
             SELECT 'c' || (i % 3), 'id' || i, i, i % 64, 'orders', 't', 'k' || (i % 5000), i, 1, i % 10 > 0, \
             iif(i % 2, 'dead', 'waiting'), 1, iif(i % 2, NULL, i), i, i, i, 'owner' FROM n"
        ),
        format!(
            "INSERT INTO eventloom_held_keys (consumer, key, lane, held_at) {numbers} \
             SELECT 'c' || (i % 3), 'k' || i, i % 64, i FROM n LIMIT 100000"
        ),
    ];
    for sql in fills {
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
    }
}

async fn check_all(connection: &mut SqliteConnection, when: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, sql) in shipped_statements() {
        let plan = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")))
            .fetch_all(&mut *connection)
            .await;
        for row in plan.unwrap_or_else(|error| panic!("{name}: {error}\n{sql}")) {
            let step: String = row.get("detail");
            let words: Vec<&str> = step.split_whitespace().collect();
            let table = words.get(1).copied().unwrap_or_default();
            let grows = GROWING.contains(&table);
            let scans = words[0] == "SCAN" && grows;
            // Without a constraint it is the first or the last entry of the table; with one of several columns of an index
            // it is all that belongs to a consumer.
            let constraint = step.split_once('(').map_or("", |(_, constraint)| constraint);
            let narrow = constraint.is_empty() || constraint.contains(" AND ") || constraint.starts_with("rowid");
            let wide = words[0] == "SEARCH" && grows && !narrow && !is_among(BY_CONSUMER, name);
            let sorts = step.contains("TEMP B-TREE") && !is_among(SORTING, name);
            if scans || wide || sorts {
                wrong.push(format!("{when}: {name}: {step}"));
            }
        }
    }
    wrong
}

fn is_among(exceptions: &[(&str, &str)], name: &str) -> bool {
    exceptions.iter().any(|(exception, _)| *exception == name)
}

#[tokio::test]
async fn no_statement_scans_what_grows() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut connection = store.pool().acquire().await.unwrap();
    sqlx::query("PRAGMA synchronous = OFF")
        .execute(&mut *connection)
        .await
        .unwrap();
    fill(&mut connection).await;
    let mut wrong = check_all(&mut connection, "as shipped").await;
    sqlx::query("ANALYZE").execute(&mut *connection).await.unwrap();
    wrong.extend(check_all(&mut connection, "after ANALYZE").await);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
