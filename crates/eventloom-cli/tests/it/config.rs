//! `config show`, and what a package puts beside the program.

use crate::{
    program::{Answer, command, run},
    stores::Folder,
};
use serde_json::Value;

fn show(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Answer {
    let mut command = command(folder.path(), &[&["config", "show"], arguments].concat());
    command.envs(variables.iter().copied());
    run(command)
}

#[test]
fn each_setting_tells_where_it_came_from() {
    let folder = Folder::new();
    let text = "store = \"postgres://shop:geheim@db/shop\"\n\n[relay]\nto = \"hub.db\"\ntopics = [\"orders\", \"payments\"]\n\
                batch = 500\nlease = \"30s\"\nkeep_log = \"forever\"\n";
    std::fs::write(folder.path().join("eventloom.toml"), text).unwrap();
    let variables = [
        ("EVENTLOOM_RELAY_BATCH", "200"),
        ("EVENTLOOM_RELAY_TO", "postgres://u:geheim@hub/x"),
    ];
    let answer = show(&folder, &["--schema", "shop", "--json"], &variables)
        .exits(0)
        .hides("geheim");
    let settings: Vec<Value> = answer
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let cases = [
        ("store", "postgres://shop:***@db/shop", "file", 1),
        ("schema", "shop", "flag", 0),
        ("pooled", "false", "default", 0),
        ("lock_timeout", "5s", "default", 0),
        ("relay.name", "relay", "default", 0),
        ("relay.to", "postgres://u:***@hub/x", "environment", 0),
        ("relay.topics", "orders,payments", "file", 5),
        ("relay.batch", "200", "environment", 0),
        ("relay.lease", "30s", "file", 7),
        ("relay.keep_log", "forever", "file", 8),
    ];
    for (name, value, from, line) in cases {
        let setting = settings.iter().find(|setting| setting["name"] == name).unwrap();
        let found = (
            setting["value"].as_str(),
            setting["from"].as_str(),
            setting["line"].as_u64().unwrap_or(0),
        );
        assert_eq!(found, (Some(value), Some(from), line), "{name}");
    }
    show(&folder, &[], &variables)
        .exits(0)
        .prints(&[
            "SETTING",
            "eventloom.toml:5",
            "EVENTLOOM_RELAY_BATCH",
            "(half of the lease)",
        ])
        .hides("geheim");
    let names = show(&folder, &["-q"], &[]).exits(0).stdout;
    assert_eq!(
        names,
        "store\nrelay.to\nrelay.topics\nrelay.batch\nrelay.lease\nrelay.keep_log\n"
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let cases = [
        (
            "[relay]\nlaese = \"5s\"\n",
            &[][..],
            &["eventloom.toml:2: ", "\"laese\"", "\"lease\""][..],
        ),
        ("\n[relay]\nlease = 5\n", &[], &["eventloom.toml:3: ", "has no unit"]),
        (
            "[relay]\nlease = \"2h\"\n",
            &[],
            &["eventloom.toml:2: relay.lease: ", "not between"],
        ),
        ("batch = 5\n", &[], &["eventloom.toml:1: ", "under [relay]"]),
        (
            "[relay]\nto = \"b.db\"\nbatch = 0\n",
            &[],
            &["eventloom.toml:3: ", "not between"],
        ),
        (
            "",
            &[("EVENTLOOM_RELAY_LEASE", "5")],
            &["EVENTLOOM_RELAY_LEASE: ", "has no unit"],
        ),
        (
            "",
            &[("EVENTLOOM_RELAY_BATCH", "many")],
            &["EVENTLOOM_RELAY_BATCH: ", "no whole number"],
        ),
        (
            "",
            &[("EVENTLOOM_POOLED", "perhaps")],
            &["EVENTLOOM_POOLED: ", "neither true nor false"],
        ),
    ];
    for (text, variables, parts) in cases {
        let folder = Folder::new();
        std::fs::write(folder.path().join("eventloom.toml"), text).unwrap();
        show(&folder, &[], variables).exits(2).says(parts);
    }
}

#[test]
fn completions_and_man_pages() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let answer = run(command(folder.path(), &["completions", shell])).exits(0);
        answer.prints(&["eventloom", "redrive", "keep-log"]);
    }
    run(command(folder.path(), &["man", "pages"]))
        .exits(0)
        .says(&["man pages are in pages"]);
    let page = |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(page("eventloom.1").contains("eventloom\\-relay(1)"));
    assert!(page("eventloom-relay.1").contains("EVENTLOOM_RELAY_TO"));
    assert!(page("eventloom-dlq-redrive.1").contains("redrive"));
}
