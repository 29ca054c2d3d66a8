//! The errands of the workspace: `cargo xtask services`, `cargo xtask test`, `cargo xtask bench`, `cargo xtask tidy`.

mod bench;
mod places;
mod services;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask services up [pg15] [pg18] [pgbouncer]   install what is missing and start it (all without a name)
cargo xtask services down                           stop what was started
cargo xtask services env                            print the variables that the tests read
cargo xtask test [--quick]                          everything that must hold before a commit; --quick without the campaigns
cargo xtask bench [--list] [--short] [--rounds N] [--only ROW]   the figures, against work by hand in the same run
cargo xtask tidy                                    the house rules that a program can check";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["services", "up", names @ ..] => services::up_command(names),
        ["services", "down"] => services::down_command(),
        ["services", "env"] => services::env_command(),
        ["test"] => test::command(false),
        ["test", "--quick"] => test::command(true),
        ["bench", arguments @ ..] => bench::command(arguments),
        ["tidy"] => tidy::command(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
