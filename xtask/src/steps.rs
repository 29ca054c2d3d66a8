//! The steps of `cargo xtask test`, in their order. A further step is one more line here.

/// What a step does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A command, words parted by blanks; `target/…` is a program in the target folder. It counts as one.
    Command(&'static str),
    /// A cargo test command: each of its tests counts.
    Tests(&'static str),
    /// The house rules.
    Tidy,
    /// Waits for the servers, which start in the background. Commands after it see their variables.
    Servers,
}

/// Whether `--quick` leaves it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Only without `--quick`.
    Full,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    pub(crate) what: What,
}

const fn step(name: &'static str, when: When, what: What) -> Step {
    Step { name, when, what }
}

const fn campaign(name: &'static str, line: &'static str) -> Step {
    step(name, When::Full, What::Command(line))
}

/// The cheap ones first. `cargo test` goes on after a failing crate, so that one run tells all.
pub(crate) const STEPS: &[Step] = &[
    step("fmt", When::Always, What::Command("cargo fmt --all --check")),
    step(
        "clippy",
        When::Always,
        What::Command("cargo clippy --workspace --all-targets --all-features -- -D warnings"),
    ),
    step("tidy", When::Always, What::Tidy),
    step("servers", When::Always, What::Servers),
    step(
        "tests",
        When::Always,
        What::Tests("cargo test --workspace --all-features --no-fail-fast"),
    ),
    // What the campaigns run; the tests have built everything below it.
    step(
        "programs",
        When::Full,
        What::Command("cargo build --workspace --all-features --bins"),
    ),
    campaign("kills on SQLite", "target/debug/harness kills --store sqlite"),
    campaign("kills on Postgres", "target/debug/harness kills --store postgres"),
    campaign("relays on SQLite", "target/debug/harness relay --store sqlite"),
    campaign("relays on Postgres", "target/debug/harness relay --store postgres"),
    campaign("failpoints on SQLite", "target/debug/harness failpoints --store sqlite"),
    campaign(
        "failpoints on Postgres",
        "target/debug/harness failpoints --store postgres",
    ),
    campaign("defects on SQLite", "target/debug/harness defects --store sqlite"),
    campaign("defects on Postgres", "target/debug/harness defects --store postgres"),
    campaign(
        "bench, in short",
        "target/debug/bench --short --json target/bench-short.json",
    ),
];
