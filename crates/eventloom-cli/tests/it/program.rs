//! Running the program as an operator does, in a folder of its own and with a clean environment.

use crate::stores::TestStore;
use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

/// What the program answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// Checks the exit code, and shows everything when it is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn prints(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(
                self.stdout.contains(part),
                "{part:?} is missing in stdout:\n{}",
                self.stdout
            );
        }
        self
    }

    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "{part:?} is missing in stderr:\n{}",
                self.stderr
            );
        }
        self
    }

    /// Nothing secret, and no trace of a panic, in anything that was printed.
    #[track_caller]
    pub(crate) fn hides(self, secret: &str) -> Self {
        let all = format!("{}{}", self.stdout, self.stderr);
        assert!(!all.contains(secret) && !all.contains("panicked"), "{all}");
        self
    }
}

/// The program in a folder, without what the caller's environment says.
pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eventloom"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENTLOOM_") || name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
pub(crate) fn run(mut command: Command) -> Answer {
    let output = command.output().unwrap();
    Answer {
        code: output.status.code().expect("it ended by itself"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs it on a store.
pub(crate) fn on(store: &TestStore, arguments: &[&str]) -> Answer {
    run(command_on(store, arguments))
}

/// Runs it on a store with something on stdin.
pub(crate) fn on_with_stdin(store: &TestStore, arguments: &[&str], stdin: &str) -> Answer {
    let mut child = command_on(store, arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Answer {
        code: output.status.code().expect("it ended by itself"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Starts it on a store and lets it run.
pub(crate) fn start(store: &TestStore, arguments: &[&str]) -> Child {
    command_on(store, arguments).stderr(Stdio::inherit()).spawn().unwrap()
}

fn command_on(store: &TestStore, arguments: &[&str]) -> Command {
    let mut command = command(store.folder(), arguments);
    command.env("EVENTLOOM_STORE", store.url());
    command
}
