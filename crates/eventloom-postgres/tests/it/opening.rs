//! Migrating and opening: what is checked, and what is said when something is wrong.

use crate::servers::{DIRECT, for_each_server, number, run, schema, until};
use eventloom_core::{
    LaneCount, Position, chain,
    ports::{Log, Outbox, ReadLimits, Store},
};
use eventloom_postgres::{MigrateError, MigrateOptions, OpenError, Postgres, migrate, migration_sql};
use futures::future::try_join_all;
use sqlx::{Connection, postgres::PgPoolOptions};
use std::time::Duration;

#[test]
fn migrations_run_once_however_many_come() {
    for_each_server(async |database| {
        let pool = database.pool(8).await?;
        let names = ["shop", "shop", "shop", "depot", "depot", "eventloom", "till", "till"];
        let migrations = names.map(|name| {
            let options = MigrateOptions::default().schema(schema(name));
            migrate(&pool, options)
        });
        let done = try_join_all(migrations).await?;
        assert_eq!(
            done.iter().map(|migrated| migrated.applied.len()).sum::<usize>(),
            3 * 2,
            "{done:?}"
        );
        assert!(done.iter().all(|migrated| migrated.to == 2));
        let mut connection = database.connect().await?;
        let namespaces = "SELECT count(DISTINCT namespace) FROM (SELECT namespace FROM shop.logs
            UNION ALL SELECT namespace FROM depot.logs UNION ALL SELECT namespace FROM till.logs
            UNION ALL SELECT namespace FROM eventloom.logs) logs";
        assert_eq!(number(&mut connection, namespaces).await?, 4);
        Ok(())
    });
}

#[test]
fn the_script_is_the_migration() {
    for_each_server(async |database| {
        let lanes = LaneCount::new(16).unwrap();
        let mut connection = database.connect().await?;
        run(&mut connection, &migration_sql(&schema("shop"), lanes)).await?;
        let options = MigrateOptions::default().schema(schema("shop")).lanes(lanes);
        let migrated = migrate(&database.pool(1).await?, options).await?;
        assert_eq!((migrated.from, migrated.to, migrated.applied.len()), (2, 2, 0));
        let store = Postgres::builder(database.pool(1).await?)
            .schema(schema("shop"))
            .open()
            .await?;
        assert_eq!(store.lanes(), lanes);
        store.publish_alone(crate::servers::event("order-17")).await?;
        let lane = number(&mut connection, "SELECT lane::bigint FROM shop.outbox").await?;
        assert_eq!(lane, i64::from(lanes.lane_of("order-17").0));
        let options = MigrateOptions::default()
            .schema(schema("shop"))
            .lanes(LaneCount::new(32).unwrap_or_default());
        let refused = migrate(&database.pool(1).await?, options).await;
        assert!(
            matches!(
                refused,
                Err(MigrateError::Lanes {
                    found: 16,
                    asked: 32,
                    ..
                })
            ),
            "{refused:?}"
        );
        Ok(())
    });
}

#[test]
fn a_migration_does_not_queue_for_locks() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, "SELECT pg_advisory_xact_lock(29801, 0)").await?;
        let limit = Duration::from_millis(50);
        let options = MigrateOptions::default().lock_timeout(limit).lock_tries(2);
        let refused = migrate(&database.pool(1).await?, options)
            .await
            .unwrap_err()
            .to_string();
        let wanted = "step log did not get its locks in 2 tries of 50ms, nothing of it happened";
        assert!(refused.starts_with(wanted), "{refused}");
        Ok(())
    });
}

/// By default it waits for some seconds, lets the others pass, and comes again: never for ever.
#[test]
fn a_migration_that_nobody_limited_comes_again() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let mut tx = connection.begin().await?;
        run(&mut tx, "SELECT pg_advisory_xact_lock(29801, 0)").await?;
        let pool = database.pool(1).await?;
        let migration = tokio::spawn(async move { migrate(&pool, MigrateOptions::default()).await });
        let mut looking = database.connect().await?;
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 29801 AND NOT granted
                          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        // It waits, gives up by itself, and waits again.
        for queued in [1, 0, 1] {
            let what = format!("{queued} migrations wait");
            until(&what, async || Ok(number(&mut looking, waiting).await? == queued)).await?;
        }
        tx.rollback().await?;
        migration.await??;
        Ok(())
    });
}

/// What somebody did to the tables, and what `open` says then.
#[test]
fn a_log_that_is_not_safe_is_not_opened() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let cases: [(&str, Option<&str>); 27] = [
            ("SELECT 1", None),
            ("INSERT INTO eventloom.schema_versions VALUES (3, 2, 'additive')", None),
            (
                "INSERT INTO eventloom.schema_versions VALUES (4, 4, 'breaking')",
                Some("version 4 or later, this one knows 2"),
            ),
            (
                "DELETE FROM eventloom.schema_versions WHERE version > 1",
                Some("version 1, this program needs 2"),
            ),
            ("INSERT INTO eventloom.schema_versions VALUES (2, 2, 'readers')", None),
            (
                "ALTER TABLE eventloom.outbox ENABLE TRIGGER zz_eventloom_fence",
                Some("mode \"O\" instead of \"A\""),
            ),
            (
                "ALTER TABLE eventloom.outbox ENABLE ALWAYS TRIGGER zz_eventloom_fence",
                None,
            ),
            (
                "ALTER SEQUENCE eventloom.outbox_position_seq CACHE 10",
                Some("CACHE 10 and INCREMENT 1, which must both be 1"),
            ),
            ("ALTER SEQUENCE eventloom.outbox_position_seq CACHE 1", None),
            (
                "ALTER TABLE eventloom.outbox ENABLE ROW LEVEL SECURITY",
                Some("row level security"),
            ),
            ("ALTER TABLE eventloom.outbox DISABLE ROW LEVEL SECURITY", None),
            (
                "ALTER SEQUENCE eventloom.outbox_position_seq INCREMENT -1",
                Some("INCREMENT -1"),
            ),
            ("ALTER SEQUENCE eventloom.outbox_position_seq INCREMENT 1", None),
            (
                "CREATE TABLE more () INHERITS (eventloom.outbox)",
                Some("its outbox and the table more inherit from one another"),
            ),
            ("DROP TABLE more; CREATE TABLE base (id uuid NOT NULL)", None),
            (
                "ALTER TABLE eventloom.outbox INHERIT base",
                Some("its outbox and the table base inherit"),
            ),
            ("ALTER TABLE eventloom.outbox NO INHERIT base", None),
            (
                "ALTER TABLE eventloom.outbox SET UNLOGGED",
                Some("its table outbox is not logged"),
            ),
            (
                "ALTER TABLE eventloom.outbox SET LOGGED; ALTER TABLE eventloom.inbox SET UNLOGGED",
                Some("its table inbox is not logged"),
            ),
            ("ALTER TABLE eventloom.inbox SET LOGGED", None),
            (
                "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
                 CREATE TRIGGER zzz BEFORE INSERT ON eventloom.outbox FOR EACH ROW EXECUTE FUNCTION meddle()",
                Some("the trigger \"zzz\" runs behind its fence"),
            ),
            (
                "DROP TRIGGER zzz ON eventloom.outbox;
                 CREATE TRIGGER a BEFORE INSERT ON eventloom.outbox FOR EACH ROW EXECUTE FUNCTION meddle();
                 CREATE TRIGGER zzz AFTER INSERT ON eventloom.outbox FOR EACH ROW EXECUTE FUNCTION meddle()",
                None,
            ),
            (
                "INSERT INTO eventloom.outbox (topic, type) VALUES ('orders', 'x'), ('orders', 'x')",
                None,
            ),
            (
                "SELECT setval('eventloom.outbox_position_seq', 2)",
                Some("stands at 2, and positions up to 3 are taken"),
            ),
            (
                "ALTER SEQUENCE eventloom.outbox_position_seq RESTART",
                Some("was restarted"),
            ),
            (
                "SELECT setval('eventloom.outbox_position_seq', 10); UPDATE eventloom.logs SET pruned_to = 20",
                Some("stands at 10, and positions up to 20 are taken"),
            ),
            ("SELECT setval('eventloom.outbox_position_seq', 20)", None),
        ];
        for (sql, said) in cases {
            run(&mut connection, sql).await?;
            let opened = Postgres::builder(database.pool(1).await?).open().await.map(drop);
            match said {
                None => opened?,
                Some(said) => {
                    let error = opened.unwrap_err().to_string();
                    assert!(error.contains(said), "{sql}: {error}");
                }
            }
        }
        let asked = Postgres::builder(database.pool(1).await?).lanes(LaneCount::new(8).unwrap());
        let refused = asked.open().await.unwrap_err();
        assert!(
            matches!(
                refused,
                OpenError::Lanes {
                    found: 64,
                    asked: 8,
                    ..
                }
            ),
            "{refused}"
        );
        let refused = Postgres::builder(database.pool(1).await?)
            .schema(schema("nowhere"))
            .open()
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("run `eventloom migrate`"), "{refused}");
        Ok(())
    });
}

/// What is set for a role or a database holds in every connection.
#[test]
fn settings_of_the_database_do_not_matter() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        let defaults = format!(
            "DROP SCHEMA eventloom CASCADE;
             ALTER DATABASE {0} SET standard_conforming_strings = off;
             ALTER DATABASE {0} SET default_transaction_isolation = 'serializable';
             ALTER DATABASE {0} SET search_path = ''",
            database.name
        );
        run(&mut connection, &defaults).await?;
        migrate(&database.pool(1).await?, MigrateOptions::default()).await?;
        let store = database.store(1).await?;
        store.publish_alone(crate::servers::event("order-17")).await?;
        let page = store.read_after(Position::START, ReadLimits::default()).await?;
        assert_eq!(page.rows.len(), 1);
        Ok(())
    });
}

#[test]
fn an_unreachable_server_is_named_without_its_password() {
    let Some(options) = DIRECT[0].url() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        for options in [
            options.clone().port(nobody),
            options.clone().database("no_such_database"),
        ] {
            let options = options.password("secret-of-the-test");
            let port = options.get_port();
            let database = options.get_database().unwrap().to_owned();
            let pool = PgPoolOptions::new()
                .acquire_timeout(Duration::from_secs(2))
                .connect_lazy_with(options);
            let refused = Postgres::builder(pool).open().await.unwrap_err();
            assert!(matches!(refused, OpenError::Unreachable { .. }), "{refused:?}");
            let said = format!("{} {refused:?}", chain(&refused));
            assert!(
                said.contains(&format!("127.0.0.1:{port}/{database}")) && !said.contains("secret"),
                "{said}"
            );
        }
    });
}

/// A reader that is not the owner would see none of the rows, and pass them.
#[test]
fn rows_that_are_hidden_are_no_hole() {
    for_each_server(async |database| {
        let mut connection = database.connect().await?;
        run(&mut connection, crate::servers::INSERT).await?;
        let role = format!("{}_reader", database.name);
        run(
            &mut connection,
            &format!(
                "CREATE ROLE {role}; GRANT USAGE ON SCHEMA eventloom TO {role};
                 GRANT SELECT ON ALL TABLES IN SCHEMA eventloom TO {role};
                 GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA eventloom TO {role}"
            ),
        )
        .await?;
        let pool = database.pool(1).await?;
        let store = Postgres::builder(pool.clone()).open().await?;
        run(&mut *pool.acquire().await?, &format!("SET ROLE {role}")).await?;
        let seen = store.read_after(Position(0), ReadLimits::default()).await?;
        assert_eq!(seen.rows.len(), 1);
        run(
            &mut connection,
            "ALTER TABLE eventloom.outbox ENABLE ROW LEVEL SECURITY",
        )
        .await?;
        let hidden = store.read_after(Position(0), ReadLimits::default()).await;
        run(&mut *pool.acquire().await?, "RESET ROLE").await?;
        run(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
        let error = hidden.map(|page| page.rows.len()).unwrap_err().to_string();
        assert!(error.contains("row-level security"), "{error}");
        Ok(())
    });
}
