//! What the log's tables refuse, and what they must not refuse.

use crate::servers::{INSERT, for_each_server, number, run, schema, state_of, version};
use anyhow::Result;
use eventloom_core::{
    Position, StoreErrorKind,
    ports::{Log, Outbox, ReadError, ReadLimits, Store},
};
use eventloom_postgres::{MigrateOptions, Postgres, grants_sql, migrate};
use sqlx::{Connection, PgConnection, postgres::PgPoolOptions};

const FENCES: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";

#[test]
fn rows_are_facts() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        run(&mut connection, INSERT).await?;
        let refused = [
            ("UPDATE eventloom.outbox SET topic = 'x'", "EV002"),
            ("TRUNCATE eventloom.outbox", "EV002"),
            ("DELETE FROM eventloom.outbox", "EV002"),
            ("DELETE FROM eventloom.outbox WHERE position = 2", "EV002"),
            (
                "INSERT INTO eventloom.outbox (topic, type) VALUES ('not a topic', 't')",
                "23514",
            ),
            ("INSERT INTO eventloom.outbox (topic, type) VALUES ('t', '')", "23514"),
            // A reader could not say these, and a row that cannot be read stops everybody behind it.
            (
                "INSERT INTO eventloom.outbox (topic, type, time) VALUES ('t', 't', 'infinity')",
                "23514",
            ),
            (
                "INSERT INTO eventloom.outbox (topic, type, time) VALUES ('t', 't', '4000-01-01 BC')",
                "23514",
            ),
            (
                "INSERT INTO eventloom.outbox (topic, type, key) VALUES ('t', 't', repeat('k', 2049))",
                "23514",
            ),
            (
                "INSERT INTO eventloom.outbox (topic, type, data, data_bytes) VALUES ('t', 't', '{}', 'x')",
                "23514",
            ),
            (
                "INSERT INTO eventloom.outbox (topic, type, headers) VALUES ('t', 't', '[]')",
                "23514",
            ),
        ];
        for (sql, state) in refused {
            assert_eq!(state_of(&mut connection, sql).await.as_deref(), Some(state), "{sql}");
        }
        assert_eq!(
            number(&mut connection, "SELECT count(*) FROM eventloom.outbox").await?,
            1
        );
        Ok(())
    });
}

/// Whatever the writer says of it, and also where triggers are off: readers find rows by it.
#[test]
fn the_lane_is_that_of_the_key() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let sql = "
            INSERT INTO eventloom.outbox (topic, type, key) VALUES ('t', 't', 'alice');
            INSERT INTO eventloom.outbox (topic, type, key, lane) VALUES ('t', 't', 'alice', 1);
            INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't');
            INSERT INTO eventloom.outbox (topic, type, key) VALUES ('t', 't', '');
            SET session_replication_role = replica;
            INSERT INTO eventloom.outbox (topic, type, key, lane) VALUES ('t', 't', 'alice', 2);
            RESET session_replication_role;
            CREATE FUNCTION lower_key() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                NEW.key := lower(NEW.key); RETURN NEW; END $$;
            CREATE TRIGGER somebodys BEFORE INSERT ON eventloom.outbox FOR EACH ROW EXECUTE FUNCTION lower_key();
            INSERT INTO eventloom.outbox (topic, type, key) VALUES ('t', 't', 'ALICE')";
        run(&mut connection, sql).await?;
        let right = "SELECT count(*) FROM eventloom.outbox
                      WHERE lane = ('x' || left(md5(coalesce(nullif(key, ''), id::text)), 8))::bit(32)::bigint % 64";
        assert_eq!(number(&mut connection, right).await?, 6);
        Ok(())
    });
}

/// Whatever a writer puts into the setting where a transaction keeps its mark: no row is above the horizon unseen.
#[test]
fn a_forged_mark_hides_no_row() {
    for_each_server(async |database| {
        let (mut connection, mut reader) = (database.connect().await?, database.connect().await?);
        run(&mut connection, INSERT).await?;
        let namespace = number(&mut connection, "SELECT namespace::bigint FROM eventloom.logs").await?;
        let horizon = "SELECT horizon FROM eventloom.outbox_horizon()";
        for mark in ["0", "1", "2", "3", "4", "1000", "-1", "281474976710657", "x", "' '"] {
            run(&mut connection, "BEGIN").await?;
            let forged = format!(
                "SELECT set_config('eventloom_fence.m{namespace}', '{}', true)",
                mark.trim_matches('\'')
            );
            run(&mut connection, &forged).await?;
            let refused = state_of(&mut connection, INSERT).await;
            if refused.is_none() {
                let position = number(&mut connection, "SELECT max(position) FROM eventloom.outbox").await?;
                let seen = number(&mut reader, horizon).await?;
                assert!(
                    seen < position,
                    "{mark}: {seen} is not below {position}, which is in flight"
                );
            } else {
                assert!(
                    matches!(refused.as_deref(), Some("EV005" | "22P02")),
                    "{mark}: {refused:?}"
                );
            }
            run(&mut connection, "ROLLBACK").await?;
        }
        // Left behind in the session, where it is lower than it need be.
        run(
            &mut connection,
            &format!("SET eventloom_fence.m{namespace} = '1'; BEGIN"),
        )
        .await?;
        run(&mut connection, INSERT).await?;
        assert_eq!(number(&mut reader, horizon).await?, 1);
        run(&mut connection, "COMMIT").await?;
        assert!(number(&mut reader, horizon).await? > 1);
        Ok(())
    });
}

/// Each row raises it anew, and says when it was written.
#[test]
fn what_a_writer_says_of_durability_and_of_time_is_not_taken() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let off = "SET LOCAL synchronous_commit = off";
        run(&mut connection, "BEGIN").await?;
        for _ in 0..2 {
            run(&mut connection, off).await?;
            run(
                &mut connection,
                "INSERT INTO eventloom.outbox (topic, type, recorded_at, time) VALUES ('t', 't', 'infinity', '9999-12-31 23:59Z')",
            )
            .await?;
            let on = "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'on'";
            assert_eq!(number(&mut connection, on).await?, 1);
        }
        run(&mut connection, "COMMIT").await?;
        let sane = "SELECT count(*) FROM eventloom.outbox WHERE recorded_at BETWEEN now() - interval '1 min' AND clock_timestamp()";
        assert_eq!(number(&mut connection, sane).await?, 2);
        Ok(())
    });
}

/// What is refused names the value, the constraint and the column, as a CHECK would.
#[test]
fn refusals_say_what_is_wrong() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let cases = [
            ("('no topic', 't', NULL)", "outbox_topic_check", "'no topic'"),
            ("('', 't', NULL)", "outbox_topic_check", "1 to 249"),
            ("(repeat('t', 250), 't', NULL)", "outbox_topic_check", "1 to 249"),
            (
                "('t', 't', repeat('é', 1025))",
                "outbox_key_check",
                "2050 bytes, at most 2048",
            ),
        ];
        for (values, constraint, said) in cases {
            let sql = format!("INSERT INTO eventloom.outbox (topic, type, key) VALUES {values}");
            let error = run(&mut connection, &sql).await.unwrap_err();
            let error = error.as_database_error().unwrap();
            assert_eq!(error.constraint(), Some(constraint), "{values}");
            assert!(error.message().contains(said), "{values}: {}", error.message());
        }
        for missing in ["(topic) VALUES ('t')", "(type) VALUES ('t')"] {
            let sql = format!("INSERT INTO eventloom.outbox {missing}");
            assert_eq!(
                state_of(&mut connection, &sql).await.as_deref(),
                Some("23502"),
                "{missing}"
            );
        }
        Ok(())
    });
}

/// By INSERT and by COPY. Null and 0 are what libraries send for a value that is not given; a restore may give its own.
#[test]
fn positions_are_handed_out() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        for _ in 0..3 {
            run(&mut connection, INSERT).await?;
        }
        for position in ["-1", "1", "2", "4", "5", "6", "1000", "9223372036854775807"] {
            let sql = format!("INSERT INTO eventloom.outbox (position, topic, type) VALUES ({position}, 't', 't')");
            assert_eq!(state_of(&mut connection, &sql).await.as_deref(), Some("EV003"), "{sql}");
            let copied = copy(&mut connection, "position, topic, type", &format!("{position}\tt\tt\n")).await;
            let state = copied.unwrap_err();
            let state = state
                .as_database_error()
                .and_then(|error| error.code())
                .map(|code| code.into_owned());
            assert_eq!(state.as_deref(), Some("EV003"), "COPY of {position}");
        }
        copy(&mut connection, "topic, type", "t\tt\nt\tt\n").await?;
        run(
            &mut connection,
            "INSERT INTO eventloom.outbox (position, topic, type) VALUES (0, 't', 't'), (NULL, 't', 't'), (DEFAULT, 't', 't')",
        )
        .await?;
        let handed_out = "SELECT count(*) FROM eventloom.outbox WHERE position BETWEEN 2 AND 40";
        assert_eq!(number(&mut connection, handed_out).await?, 8);
        let restored = "SET session_replication_role = replica;
            INSERT INTO eventloom.outbox (position, topic, type) VALUES (1000, 't', 't');
            RESET session_replication_role";
        run(&mut connection, restored).await?;
        assert_eq!(
            number(&mut connection, "SELECT count(*) FROM eventloom.outbox").await?,
            9
        );
        Ok(())
    });
}

async fn copy(connection: &mut PgConnection, columns: &str, rows: &str) -> Result<u64, sqlx::Error> {
    let statement = format!("COPY eventloom.outbox ({columns}) FROM STDIN");
    let mut copy = connection.copy_in_raw(&statement).await?;
    copy.send(rows.as_bytes()).await?;
    copy.finish().await
}

#[test]
fn every_way_to_insert_takes_the_fence() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        run(&mut connection, "CREATE TABLE business (n int)").await?;
        run(
            &mut connection,
            "CREATE FUNCTION nested() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't'); RETURN NULL; END $$;
             CREATE TRIGGER nested AFTER INSERT ON business FOR EACH ROW EXECUTE FUNCTION nested();
             CREATE VIEW seen AS SELECT topic, type FROM eventloom.outbox",
        )
        .await?;
        let mut ways = vec![
            INSERT,
            "INSERT INTO eventloom.outbox (topic, type) SELECT 't', 't' FROM generate_series(1, 3)",
            "WITH new AS (INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't') RETURNING 1) SELECT * FROM new",
            "INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't') ON CONFLICT DO NOTHING",
            "INSERT INTO seen VALUES ('t', 't')",
            "INSERT INTO business VALUES (1)",
            "SET LOCAL session_replication_role = replica; INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't')",
            "DO $$ BEGIN BEGIN INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't'); RAISE 'x';
                EXCEPTION WHEN OTHERS THEN NULL; END; INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't'); END $$",
            "SAVEPOINT a; INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't'); ROLLBACK TO a;
                INSERT INTO eventloom.outbox (topic, type) VALUES ('t', 't')",
        ];
        // Postgres 14 has no MERGE.
        if version(&mut connection).await? >= 150_000 {
            ways.push(
                "MERGE INTO eventloom.outbox USING (VALUES (1)) new (n) ON false
                   WHEN NOT MATCHED THEN INSERT (topic, type) VALUES ('t', 't')",
            );
        }
        for sql in ways {
            let mut tx = connection.begin().await?;
            run(&mut tx, sql).await?;
            assert_eq!(number(&mut tx, FENCES).await?, 1, "{sql}");
            run(&mut tx, INSERT).await?;
            assert_eq!(number(&mut tx, FENCES).await?, 1, "once a transaction: {sql}");
            tx.rollback().await?;
        }
        Ok(())
    });
}

#[test]
fn two_logs_in_one_transaction_take_two_fences() {
    for_each_server(async |database| {
        let other = MigrateOptions::default().schema(schema("shop"));
        migrate(&database.pool(1).await?, other).await?;
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        run(&mut tx, &INSERT.replace("eventloom.", "shop.")).await?;
        assert_eq!(number(&mut tx, FENCES).await?, 2);
        let [one, other] = [database.store(2).await?, shop(&database).await?];
        let [before, behind] = [one.horizon().await?, other.horizon().await?];
        assert!(before.position < before.handed_out && behind.position < behind.handed_out);
        // A writer of the one log holds nothing back in the other.
        tx.rollback().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        let horizon = other.horizon().await?;
        assert_eq!(horizon.position, horizon.handed_out);
        tx.commit().await?;
        Ok(())
    });
}

async fn shop(database: &crate::servers::Database) -> Result<Postgres> {
    Ok(Postgres::builder(database.pool(2).await?)
        .schema(schema("shop"))
        .open()
        .await?)
}

#[test]
fn a_log_row_is_durable_before_it_is_visible() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        run(&mut connection, "SET synchronous_commit = off").await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        let raised = "SELECT (current_setting('synchronous_commit') = 'on')::int::bigint";
        assert_eq!(number(&mut tx, raised).await?, 1);
        tx.commit().await?;
        assert_eq!(number(&mut connection, raised).await?, 0, "for this transaction alone");
        Ok(())
    });
}

/// Roles of the grants script, each with an account of its own.
#[test]
fn roles_can_what_they_need_and_no_more() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let name = format!("{}_writer", database.name);
        let grants = grants_sql(&schema("eventloom")).replace("eventloom_writer", &name);
        let [reader, operator] = ["reader", "operator"].map(|role| format!("{}_{role}", database.name));
        let grants = grants
            .replace("eventloom_reader", &reader)
            .replace("eventloom_operator", &operator);
        run(&mut connection, &grants).await?;
        run(&mut connection, &grants).await?;
        let outcome = roles(&database, &mut connection, &name, &reader).await;
        for role in [&operator, &reader, &name] {
            run(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
        }
        outcome
    });
}

async fn roles(
    database: &crate::servers::Database,
    connection: &mut PgConnection,
    writer: &str,
    reader: &str,
) -> Result<()> {
    run(connection, &format!("SET ROLE {writer}")).await?;
    run(connection, INSERT).await?;
    let sql = "INSERT INTO eventloom.outbox (position, topic, type) VALUES (1000, 't', 't')";
    assert_eq!(state_of(connection, sql).await.as_deref(), Some("EV003"), "{sql}");
    for sql in [
        "SELECT * FROM eventloom.outbox",
        "SELECT nextval('eventloom.outbox_position_seq')",
        "SELECT eventloom.outbox_doze(0)",
        "SELECT * FROM eventloom.inbox",
    ] {
        assert_eq!(state_of(connection, sql).await.as_deref(), Some("42501"), "{sql}");
    }
    run(connection, "RESET ROLE").await?;

    let role = format!("SET ROLE {reader}");
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .after_connect(move |connection, _| {
            let role = role.clone();
            Box::pin(async move { run(connection, &role).await })
        });
    let store = Postgres::builder(pool.connect_with(database.options.clone()).await?)
        .open()
        .await?;
    let name = crate::servers::consumer("billing");
    use eventloom_core::ports::{Leases, Readers, Start};
    store.register(&name, Start::Earliest, None).await?;
    let owner = eventloom_core::OwnerId::new("host", 1);
    let lease = std::time::Duration::from_secs(10);
    let tenure = store.keep(&name, &owner, lease, &[], None).await?;
    assert_eq!(tenure.owned.len(), 64);
    let page = store.read_after(Position::START, ReadLimits::default()).await?;
    assert_eq!(page.rows.len(), 1);
    store.doze(page.scanned_to, std::time::Duration::from_millis(1)).await?;
    store.prune(lease, 10, None).await?;
    assert_eq!(store.readers(None).await?.len(), 1);
    assert_eq!(store.log_status().await?.held_by, None);
    Ok(())
}

/// A default isolation of the database does not change how our own transactions read.
#[test]
fn readers_read_committed() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        run(&mut connection, INSERT).await?;
        let calls = [
            "SELECT * FROM eventloom.outbox_horizon()",
            "SELECT * FROM eventloom.read_after('outbox', 0)",
            "SELECT eventloom.outbox_doze(0)",
            "SELECT eventloom.outbox_position_at(now())",
        ];
        for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
            for sql in calls {
                let sql = format!("BEGIN ISOLATION LEVEL {isolation}; {sql}");
                assert_eq!(state_of(&mut connection, &sql).await.as_deref(), Some("EV001"), "{sql}");
                run(&mut connection, "ROLLBACK").await?;
            }
        }
        let strict = format!(
            "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'",
            database.name
        );
        run(&mut connection, &strict).await?;
        let store = database.store(2).await?;
        assert_eq!(
            store
                .read_after(Position::START, ReadLimits::default())
                .await?
                .rows
                .len(),
            1
        );
        let mut other = database.connect().await?;
        let refused = state_of(&mut other, calls[1]).await;
        assert_eq!(refused.as_deref(), Some("EV001"), "the function is told by its caller");
        Ok(())
    });
}

#[test]
fn a_cursor_below_the_pruned_is_an_error() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        for _ in 0..5 {
            run(&mut connection, INSERT).await?;
        }
        run(&mut connection, "UPDATE eventloom.logs SET pruned_to = 4").await?;
        let store = database.store(2).await?;
        let after = |position| store.read_after(Position(position), ReadLimits::default());
        for position in [0, 3] {
            let refused = after(position).await;
            assert!(
                matches!(
                    refused,
                    Err(ReadError::Pruned {
                        pruned_to: Position(4),
                        ..
                    })
                ),
                "{refused:?}"
            );
            let sql = format!("SELECT * FROM eventloom.read_after('outbox', {position})");
            assert_eq!(state_of(&mut connection, &sql).await.as_deref(), Some("EV004"));
        }
        assert_eq!(after(4).await?.rows.len(), 2);
        assert_eq!(
            number(
                &mut connection,
                "SELECT count(*) FROM eventloom.read_after('outbox', 4)"
            )
            .await?,
            2
        );
        for sql in [
            "SELECT * FROM eventloom.read_after('events', 0)",
            "SELECT * FROM eventloom.read_after('outbox', NULL)",
        ] {
            assert_eq!(state_of(&mut connection, sql).await.as_deref(), Some("EV006"), "{sql}");
        }
        Ok(())
    });
}

/// An aborted transaction that is committed says so: Postgres answers its COMMIT with a silent rollback.
#[test]
fn a_commit_that_rolled_back_is_no_commit() {
    use eventloom_core::ports::{Scope, Transaction};
    for_each_server(async |database| {
        let store = database.store(2).await?;
        let (reader, owner) = (
            crate::servers::consumer("billing"),
            eventloom_core::OwnerId::new("host", 1),
        );
        let limit = std::time::Duration::from_secs(10);
        let mut tx = store
            .begin(Scope {
                reader: &reader,
                owner: &owner,
                limit,
            })
            .await?;
        Postgres::append(store.tables(), &mut tx, &[crate::servers::event("k")]).await?;
        assert!(run(&mut tx, "SELECT 1 / 0").await.is_err());
        let refused = tx.commit().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Aborted, "{refused}");
        Ok(())
    });
}

#[test]
fn who_holds_the_horizon_back_is_named() {
    for_each_server(async |database| {
        let store = database.store(2).await?;
        assert_eq!(store.log_status().await?.held_by, None);
        let mut connection = database.connect().await?;
        run(&mut connection, "SET application_name = 'a slow service'").await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, INSERT).await?;
        let pid = number(&mut tx, "SELECT pg_backend_pid()::bigint").await?;
        let status = store.log_status().await?;
        assert!(status.horizon < status.head, "{status:?}");
        let blocker = status.held_by.unwrap();
        assert_eq!(
            (blocker.pid.map(i64::from), blocker.application.as_str()),
            (Some(pid), "a slow service")
        );
        assert_eq!(blocker.query, "SELECT pg_backend_pid()::bigint");
        tx.rollback().await?;

        // No backend, and nobody to ask. Decided before anything is asserted, or the database could not be dropped.
        let name = format!("of {}", database.name);
        run(
            &mut connection,
            &format!("BEGIN; {INSERT}; PREPARE TRANSACTION '{name}'"),
        )
        .await?;
        let held = (
            store.log_status().await,
            store.read_after(Position::START, ReadLimits::default()).await,
        );
        run(&mut connection, &format!("COMMIT PREPARED '{name}'")).await?;
        let blocker = held.0?.held_by.unwrap();
        assert_eq!(
            (blocker.pid, blocker.application),
            (None, format!("prepared transaction {name}"))
        );
        assert!(held.1?.rows.is_empty());
        let rows = store.read_after(Position::START, ReadLimits::default()).await?.rows;
        assert_eq!(rows.len(), 1);
        Ok(())
    });
}

/// The standby of a server, made with its own tools.
#[test]
fn a_standby_is_refused() {
    let Some(standby) = crate::standby::Standby::start() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Postgres::builder(sqlx::PgPool::connect_with(standby.options()).await.unwrap())
            .open()
            .await
            .unwrap();
        let refused = store
            .read_after(Position::START, ReadLimits::default())
            .await
            .unwrap_err();
        let ReadError::Store(refused) = refused else {
            panic!("{refused}")
        };
        assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
        assert!(refused.to_string().contains("standby"), "{refused}");
    });
}
