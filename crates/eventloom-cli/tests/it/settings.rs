//! Where the store is, and what is said when it is not there. Passwords never are.

use crate::{
    program::{command, on, run},
    stores::{Folder, on_postgres},
};
use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

const SECRET: &str = "geheim";

#[test]
fn flags_before_the_environment_before_the_file() {
    let folder = Folder::new();
    let ask = |arguments: &[&str], variable: Option<&str>| {
        let mut command = command(folder.path(), arguments);
        if let Some(store) = variable {
            command.env("EVENTLOOM_STORE", store);
        }
        run(command)
    };
    ask(&["status"], None)
        .exits(2)
        .says(&["no store is given", "--store", "EVENTLOOM_STORE", "eventloom.toml"]);
    std::fs::write(folder.path().join("eventloom.toml"), "store = \"of-the-file.db\"\n").unwrap();
    ask(&["status"], None).exits(1).says(&["of-the-file.db"]);
    ask(&["status"], Some("of-the-environment.db"))
        .exits(1)
        .says(&["of-the-environment.db"]);
    ask(&["status", "--store", "of-the-flag.db"], Some("of-the-environment.db"))
        .exits(1)
        .says(&["of-the-flag.db"]);
    ask(&["status", "--config", "none.toml"], None)
        .exits(2)
        .says(&["none.toml"]);
}

/// Else the store of the file would be meant, and be dropped from or reset.
#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_not_passed_over() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let folder = Folder::new();
    std::fs::write(folder.path().join("eventloom.toml"), "store = \"of-the-file.db\"\n").unwrap();
    for name in ["EVENTLOOM_STORE", "EVENTLOOM_SCHEMA"] {
        let mut asked = command(folder.path(), &["status"]);
        asked.env(name, OsStr::from_bytes(b"of-\xff.db"));
        run(asked).exits(2).says(&[name, "UTF-8"]);
    }
    let mut asked = command(folder.path(), &["status", "--store", "of-the-flag.db"]);
    asked.env("EVENTLOOM_STORE", OsStr::from_bytes(b"of-\xff.db"));
    run(asked).exits(1).says(&["of-the-flag.db"]);
}

#[test]
fn a_settings_file_that_is_wrong() {
    let cases = [
        (
            "# mine\nstroe = \"a.db\"\n",
            &["eventloom.toml:2: ", "\"stroe\"", "\"store\""][..],
        ),
        ("lock_timeout = 5\n", &["eventloom.toml:1: ", "has no unit", "\"5s\""]),
        (
            "store = \"a.db\"\n\nlock_timeout = \"5\"\n",
            &["eventloom.toml:3: ", "has no unit"],
        ),
        ("store = postgres://shop:geheim@db/shop\n", &["eventloom.toml:1: "]),
        ("store = \"mysql://shop:geheim@db/shop\"\n", &["mysql"]),
    ];
    for (text, parts) in cases {
        let folder = Folder::new();
        std::fs::write(folder.path().join("eventloom.toml"), text).unwrap();
        run(command(folder.path(), &["status"]))
            .exits(2)
            .says(parts)
            .hides(SECRET);
    }
}

#[test]
fn a_store_that_is_not_there() {
    let folder = Folder::new();
    std::fs::write(
        folder.path().join("no-database.db"),
        "this is a text, and long enough not to be taken for less",
    )
    .unwrap();
    let cases = [
        ("missing.db", &["there is no database missing.db", "next: "][..]),
        ("no-database.db", &["no-database.db"]),
        (
            "postgres://shop:geheim@127.0.0.1:1/shop",
            &["127.0.0.1:1/shop", "refused", "next: "],
        ),
        (
            "postgres://shop:geheim@host.invalid/shop",
            &["host.invalid:5432/shop", "next: "],
        ),
        (
            "postgres://shop@127.0.0.1:1/shop?password=geheim",
            &["127.0.0.1:1/shop"],
        ),
    ];
    for (store, parts) in cases {
        run(command(folder.path(), &["status", "--store", store]))
            .exits(1)
            .says(parts)
            .hides(SECRET);
    }
    assert!(!folder.path().join("missing.db").exists(), "looking makes no file");
    let cases = [
        (&["status", "postgres://shop:geheim@db/shop"][..], "unexpected argument"),
        (
            &["status", "--store", "postgres://shop:geh#geheim@db/shop"],
            "no URL of Postgres",
        ),
        (&["status", "--store", "oracle://shop:geheim@db/shop"], "unknown scheme"),
        (
            &[
                "tail",
                "--schema",
                "Shop; --",
                "--store",
                "postgres://shop:geheim@db/shop",
            ],
            "not a legal name",
        ),
    ];
    for (arguments, part) in cases {
        run(command(folder.path(), arguments))
            .exits(2)
            .says(&[part])
            .hides(SECRET);
    }
    run(command(folder.path(), &["--help"]))
        .exits(0)
        .prints(&["Examples:", "Exit codes:"]);
}

#[test]
fn a_url_that_was_mistyped() {
    let cases = [
        ("postgres:/shop:geheim@h/x", "\"postgres:/shop:***@h/x\""),
        ("postgres//shop:geheim@h/x", "\"postgres//shop:***@h/x\""),
        ("postgresql:shop:geheim@h/x", "\"postgresql:shop:***@h/x\""),
        ("shop:geheim@host/db", "\"shop:***@host/db\""),
        ("shop:geheim/geheim@host", "\"shop:***@host\""),
        (
            "postgres://shop:p@geheim/w@127.0.0.1",
            "\"postgres://shop:***@127.0.0.1\"",
        ),
        ("postgres://shop:5432?geheim@h/x", "\"postgres://shop:***@h/x\""),
        ("postgres://shop@h:1/x?password=a@geheim", "percent-encoded (@ is %40"),
        ("postgres://shop:geheim@h/x?foo=bar", "unknown parameter \"foo\""),
        ("postgres://shop:geheim@h/x?sslmdoe=require", "did you mean sslmode?"),
        ("postgres://shop:geheim@h/x?sslmode=reqiure", "did you mean require?"),
    ];
    let folder = Folder::new();
    for (store, part) in cases {
        for verb in ["status", "migrate"] {
            run(command(folder.path(), &[verb, "--store", store]))
                .exits(2)
                .says(&[part, "next: "])
                .hides(SECRET);
        }
        run(command(folder.path(), &["status", store])).exits(2).hides(SECRET);
    }
    let made = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(made, 0, "no file is made of a URL");
}

#[test]
fn a_wrong_password() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let refusing = thread::spawn(move || refuse(&server));
    let store = format!("postgres://shop:{SECRET}@127.0.0.1:{port}/shop");
    let folder = Folder::new();
    run(command(folder.path(), &["status", "--store", &store]))
        .exits(1)
        .says(&[
            &format!("127.0.0.1:{port}/shop"),
            "password authentication failed",
            "next: ",
        ])
        .hides(SECRET);
    refusing.join().unwrap();
}

#[test]
fn behind_a_pooler() {
    const POOLER: &str = "EVENTLOOM_TEST_PGBOUNCER";
    let Ok(pooler) = std::env::var(POOLER) else {
        println!("left out: behind_a_pooler: {POOLER} is not set");
        return;
    };
    on_postgres("behind_a_pooler", |store| {
        let url = store.url_through(&pooler);
        let pooled = |arguments: &[&str]| on(store, &[arguments, &["--store", &url, "--pooled"]].concat());
        pooled(&["migrate"]).exits(0).prints(&["is migrated"]);
        for _ in 0..5 {
            pooled(&["publish", "orders", "order.placed", "-q"]).exits(0);
        }
        assert_eq!(pooled(&["tail", "--json"]).exits(0).stdout.lines().count(), 5);
        pooled(&["status"]).exits(0).prints(&["0 held back"]);
        pooled(&["consumer", "list"]).exits(0);
        pooled(&["dlq", "list"]).exits(0);
    });
}

/// As much of a Postgres server as it takes to refuse a login, whatever the one of the tests trusts.
fn refuse(server: &TcpListener) {
    const SSL_REQUEST: u32 = 80_877_103;
    let (mut client, _) = server.accept().unwrap();
    loop {
        let mut head = [0; 8];
        client.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes(head[..4].try_into().unwrap());
        let code = u32::from_be_bytes(head[4..].try_into().unwrap());
        let mut rest = vec![0; length as usize - 8];
        client.read_exact(&mut rest).unwrap();
        if code != SSL_REQUEST {
            break;
        }
        client.write_all(b"N").unwrap();
    }
    let fields = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user \"shop\"\0\0";
    let mut message = vec![b'E'];
    message.extend((fields.len() as u32 + 4).to_be_bytes());
    message.extend(fields);
    client.write_all(&message).unwrap();
}
