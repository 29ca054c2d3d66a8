//! Making the tables, and what is checked when they are opened.

use crate::folder::{Folder, event, read_all};
use eventloom_core::{
    LaneCount, Position,
    ports::{Outbox, Store},
};
use eventloom_sqlite::{MigrateError, MigrateOptions, OpenError, Sqlite, migrate, migration_sql};
use sqlx::Connection;

#[tokio::test(flavor = "multi_thread")]
async fn it_is_idempotent_and_safe_to_run_at_once() {
    let folder = Folder::new();
    let running = (0..8).map(|_| tokio::spawn(migrate(folder.database(), MigrateOptions::default())));
    let running: Vec<_> = running.collect();
    let mut applied = 0;
    for migrated in running {
        let migrated = migrated.await.unwrap().unwrap();
        assert_eq!(migrated.to, 1);
        applied += migrated.applied.len();
    }
    assert_eq!(applied, 1, "one of them did it");
    let again = migrate(folder.database(), MigrateOptions::default()).await.unwrap();
    assert_eq!((again.from, again.to, again.applied.len()), (1, 1, 0));
    let store = Sqlite::connect(folder.database()).await.unwrap();
    store.publish_alone(event("k")).await.unwrap();
    assert_eq!(read_all(&store, Position::START).await.len(), 1);
}

#[tokio::test]
async fn nothing_makes_tables_but_a_migration() {
    let folder = Folder::new();
    let error = Sqlite::connect(folder.database()).await.unwrap_err();
    assert!(matches!(error, OpenError::NotMigrated { .. }), "{error}");
    assert!(error.to_string().contains("eventloom migrate"), "{error}");
    assert!(matches!(
        Sqlite::connect(":memory:").await,
        Err(OpenError::NoFile { .. })
    ));
    assert!(matches!(
        Sqlite::connect("sqlite::memory:").await,
        Err(OpenError::NoFile { .. })
    ));
    let nowhere = folder.path().join("no").join("such").join("folder.db");
    let error = Sqlite::connect(&nowhere).await.unwrap_err();
    assert!(
        matches!(error, OpenError::Unreachable { .. }) && error.to_string().contains("folder.db"),
        "{error}"
    );
    let no_database = folder.path().join("text.db");
    std::fs::write(
        &no_database,
        "this is no database, however long the text may be that stands here".repeat(100),
    )
    .unwrap();
    assert!(matches!(
        Sqlite::connect(&no_database).await,
        Err(OpenError::Unreachable { .. })
    ));
}

#[tokio::test]
async fn the_number_of_lanes_is_recorded_and_checked() {
    let folder = Folder::new();
    let lanes = LaneCount::new(8).unwrap();
    let eight = MigrateOptions::default().lanes(lanes);
    migrate(folder.database(), eight).await.unwrap();
    migrate(folder.database(), MigrateOptions::default()).await.unwrap();
    let other = MigrateOptions::default().lanes(LaneCount::new(16).unwrap());
    let error = migrate(folder.database(), other).await.unwrap_err();
    assert!(
        matches!(
            error,
            MigrateError::Lanes {
                found: 8,
                asked: 16,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(Sqlite::connect(folder.database()).await.unwrap().lanes(), lanes);
    let error = Sqlite::builder(folder.database())
        .lanes(LaneCount::default())
        .open()
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Lanes {
                found: 8,
                asked: 64,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_newer_schema_is_tolerated_until_it_asks_for_a_newer_program() {
    let folder = Folder::new();
    let store = folder.store().await;
    let additive = "ALTER TABLE eventloom_outbox ADD COLUMN tenant TEXT; \
                    INSERT INTO eventloom_schema_versions (version, min_program, name) VALUES (2, 1, 'tenant')";
    sqlx::raw_sql(additive).execute(store.pool()).await.unwrap();
    store.publish_alone(event("k")).await.unwrap();
    let restarted = Sqlite::connect(folder.database()).await.unwrap();
    restarted.publish_alone(event("k")).await.unwrap();
    assert_eq!(read_all(&restarted, Position::START).await.len(), 2);
    assert_eq!(
        migrate(folder.database(), MigrateOptions::default()).await.unwrap().to,
        2
    );

    let breaking = "INSERT INTO eventloom_schema_versions (version, min_program, name) VALUES (3, 2, 'lanes')";
    sqlx::query(breaking).execute(store.pool()).await.unwrap();
    let error = Sqlite::connect(folder.database()).await.unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::TooNew {
                min_program: 2,
                program: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    let folder = Folder::new();
    let store = folder.store().await;
    let printed = folder.path().join("printed.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&printed)
        .create_if_missing(true);
    let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let sql = migration_sql(LaneCount::default());
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let other = Sqlite::connect(&printed).await.unwrap();
    let tables = "SELECT name, sql FROM sqlite_schema ORDER BY name";
    let [one, two]: [Vec<(String, Option<String>)>; 2] = [
        sqlx::query_as(tables).fetch_all(store.pool()).await.unwrap(),
        sqlx::query_as(tables).fetch_all(other.pool()).await.unwrap(),
    ];
    assert_eq!(one, two);
}

#[tokio::test]
async fn a_migration_gives_up_when_others_write_for_too_long() {
    let folder = Folder::new();
    let store = folder.store().await;
    let open = store.begin_write().await.unwrap();
    let hurried = MigrateOptions::default().lock_timeout(std::time::Duration::from_millis(50));
    let error = migrate(folder.database(), hurried).await.unwrap_err();
    assert!(
        matches!(
            error,
            MigrateError::Locked {
                step: "log_and_consumers"
            }
        ),
        "{error}"
    );
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_url_is_a_path_too() {
    let folder = Folder::new();
    let url = format!("sqlite://{}", folder.database().display());
    migrate(&url, MigrateOptions::default()).await.unwrap();
    let store = Sqlite::connect(&url).await.unwrap();
    assert_eq!(store.place(), folder.database().display().to_string());
    store.ping().await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_leads_to_the_lock_files_of_the_real_file() {
    let folder = Folder::new();
    let store = folder.store().await;
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.database(), &link).unwrap();
    let other = Sqlite::connect(&link).await.unwrap();
    other.publish_alone(event("k")).await.unwrap();
    assert!(!folder.path().join("link.db-eventloom-lock").exists());
    assert_eq!(read_all(&store, Position::START).await.len(), 1);
}
