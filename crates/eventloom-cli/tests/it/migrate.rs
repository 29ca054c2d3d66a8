//! `migrate`, and programs on a schema that is newer than they are.

use crate::{
    program::{command, on, run},
    stores::{Folder, TestStore, on_each},
};

const TABLES: &[&str] = &[
    "outbox",
    "schema_versions",
    "logs",
    "readers",
    "members",
    "cursors",
    "inbox",
    "attempts",
    "held_keys",
    "held",
];

#[test]
fn it_can_be_run_again() {
    on_each("it_can_be_run_again", |store| {
        on(store, &["migrate", "--dry-run"])
            .exits(0)
            .says(&["dry run", "nothing was changed"]);
        on(store, &["status"])
            .exits(1)
            .says(&["error: ", "next: ", "eventloom migrate"]);
        on(store, &["migrate", "--lanes", "16"])
            .exits(0)
            .prints(&["is migrated: version 0 to ", "16 lanes"]);
        on(store, &["migrate"])
            .exits(0)
            .prints(&["is current: version ", "16 lanes"]);
        on(store, &["migrate", "--dry-run"])
            .exits(0)
            .says(&["is current, with 16 lanes"]);
        on(store, &["migrate", "--lanes", "32"])
            .exits(1)
            .says(&["16 lanes", "32", "cannot be changed after the first migration"])
            .says(&["next: leave --lanes out: eventloom migrate"]);
        on(store, &["status"])
            .exits(0)
            .prints(&["outbox       head ", "   horizon ", "   0 held back"]);
    });
}

#[test]
fn a_schema_of_another_name() {
    let check = |store: &TestStore| {
        on(store, &["migrate", "--schema", "shop_events"])
            .exits(0)
            .prints(&["schema shop_events at "]);
        on(store, &["publish", "--schema", "shop_events", "orders", "order.placed"]).exits(0);
        on(store, &["tail", "--schema", "shop_events"])
            .exits(0)
            .prints(&["order.placed"]);
        on(store, &["status"])
            .exits(1)
            .says(&["schema eventloom at ", "next: eventloom migrate"]);
        let again = "next: eventloom migrate --schema other";
        on(store, &["status", "--schema", "other"])
            .exits(1)
            .says(&["schema other at ", again]);
    };
    crate::stores::on_postgres("a_schema_of_another_name", check);
    on(&TestStore::sqlite(), &["migrate", "--schema", "shop"])
        .exits(2)
        .says(&["SQLite has no schemas"]);
}

#[test]
fn the_printed_sql_is_the_migration() {
    on_each("the_printed_sql_is_the_migration", |store| {
        // Nothing is connected: this place does not exist.
        let nowhere = if store.is_postgres() {
            "postgres://nobody@127.0.0.1:1/none"
        } else {
            "/nowhere/at/all.db"
        };
        let arguments = ["migrate", "--print-sql", "--lanes", "8", "--store", nowhere];
        let answer = on(store, &arguments).exits(0);
        for table in TABLES {
            let name = if store.is_postgres() {
                format!("eventloom.{table} ")
            } else {
                format!("eventloom_{table} ")
            };
            assert!(answer.stdout.contains(&name), "{name} is missing");
        }
        store.execute(&answer.stdout);
        on(store, &["migrate"]).exits(0).prints(&["is current", "8 lanes"]);
        on(store, &["publish", "orders", "order.placed", "--data", "{}"]).exits(0);
    });
}

#[test]
fn grants_are_printed_for_postgres_alone() {
    let folder = Folder::new();
    let print = |store| run(command(folder.path(), &["migrate", "--grants", "--store", store]));
    print("postgres://")
        .exits(0)
        .prints(&["eventloom_writer", "eventloom_reader", "eventloom_operator"]);
    print("shop.db").exits(2).says(&["SQLite has no roles"]);
    assert!(!folder.path().join("shop.db").exists());
}

#[test]
fn the_printed_grants_run_through() {
    crate::stores::on_postgres("the_printed_grants_run_through", |store| {
        // Roles belong to the server: this schema's are told apart by its name, and go at the end.
        let schema = format!("shop_{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        on(store, &["migrate", "--schema", &schema]).exits(0);
        let grants = on(store, &["migrate", "--grants", "--schema", &schema]).exits(0).stdout;
        store.execute(&grants);
        let publish = |role: &str| {
            let url = format!("{}?options=-crole%3D{schema}_{role}", store.url());
            on(
                store,
                &[
                    "publish",
                    "orders",
                    "order.placed",
                    "--schema",
                    &schema,
                    "--store",
                    &url,
                ],
            )
        };
        let next = format!("next: connect to the primary, with a role that was granted {schema}_reader");
        let writer = publish("writer");
        let reader = publish("reader");
        let operator = format!("{}?options=-crole%3D{schema}_operator", store.url());
        let promote = [
            "migrate",
            "--promoted",
            "--yes",
            "--schema",
            &schema,
            "--store",
            &operator,
        ];
        let promoted = on(store, &promote);
        let roles = ["operator", "reader", "writer"].map(|role| format!("{schema}_{role}"));
        let remove = roles.map(|role| format!("DROP OWNED BY {role}; DROP ROLE {role};"));
        store.execute(&remove.concat());
        writer.exits(1).says(&[
            "permission denied",
            &next,
            "migrate --grants",
            &format!("{schema}_writer"),
        ]);
        reader.exits(0);
        promoted
            .exits(1)
            .says(&["permission denied", "next: use the role that owns the tables"]);
    });
}

/// A rolling deploy: the tables are one additive step ahead of the programs that still run.
#[test]
fn a_newer_schema_is_used_as_long_as_it_allows() {
    on_each("a_newer_schema_is_used_as_long_as_it_allows", |store| {
        on(store, &["migrate"]).exits(0);
        on(store, &["publish", "orders", "order.placed"]).exits(0);
        store.execute(
            "INSERT INTO {t}schema_versions (version, min_program, name)
                 SELECT 901, max(min_program), 'of_a_newer_program' FROM {t}schema_versions;
             ALTER TABLE {t}outbox ADD COLUMN brand_new text;
             ALTER TABLE {t}readers ADD COLUMN brand_new text;
             ALTER TABLE {t}held ADD COLUMN brand_new text DEFAULT 'new';",
        );
        on(store, &["publish", "orders", "order.placed"]).exits(0);
        on(store, &["migrate"]).exits(0).prints(&["is current: version 901"]);
        on(store, &["status"]).exits(0).prints(&["held back"]);
        assert_eq!(on(store, &["tail", "--json"]).exits(0).stdout.lines().count(), 2);
        crate::service::run(store, &[], |reader| reader.lag_messages == 0, || ());

        store.execute("INSERT INTO {t}schema_versions (version, min_program, name) VALUES (902, 902, 'breaking')");
        let known = if store.is_postgres() { "2" } else { "1" };
        for verb in [
            &["status"][..],
            &["publish", "orders", "order.placed"],
            &["tail"],
            &["migrate"],
        ] {
            on(store, verb)
                .exits(1)
                .says(&["902", known, "next: use a newer eventloom"]);
        }
    });
}
