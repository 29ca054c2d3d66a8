//! Runs the command of a step in a process group of its own, and passes its output on while it comes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Pid;

use super::count::Count;
use super::interrupt;
use crate::places;

/// How long the output may stay open after the command has ended.
const REST_OF_OUTPUT_WITHIN: Duration = Duration::from_secs(5);

/// True if the command succeeds.
pub(super) fn run(line: &str, variables: &[(&'static str, String)]) -> Result<bool> {
    let child = spawn(command(line, variables)?, line)?;
    Ok(wait(child)?.success())
}

/// Counts the tests of a cargo test command. What fails without a failed test, such as a crate that does not
/// compile, counts as one failure.
pub(super) fn run_tests(line: &str, variables: &[(&'static str, String)]) -> Result<Count> {
    let mut command = command(line, variables)?;
    command.stdout(Stdio::piped());
    let mut child = spawn(command, line)?;
    let output = child.stdout.take().context("no output")?;
    let counted = Arc::new(Mutex::new(Count::default()));
    let reader = thread::spawn({
        let counted = Arc::clone(&counted);
        move || pass_on(output, &counted)
    });
    let status = wait(child)?;
    // A process that a test left behind holds the pipe open: waiting for its end would wait for ever.
    let deadline = Instant::now() + REST_OF_OUTPUT_WITHIN;
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    let mut count = counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !reader.is_finished() {
        println!("a process that a test started is still there and holds the output");
        count.failed += 1;
    } else if !status.success() && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

fn command(line: &str, variables: &[(&'static str, String)]) -> Result<Command> {
    let mut words = line.split_whitespace();
    let program = match words.next().context("a step without a command")? {
        // The cargo that runs us, whatever the PATH says.
        "cargo" => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
        program => match program.strip_prefix("target/") {
            Some(built) => places::target().join(built).into(),
            None => program.into(),
        },
    };
    let mut command = Command::new(program);
    command
        .args(words)
        .envs(variables.iter().map(|(name, value)| (*name, value)));
    command
        .current_dir(places::root())
        .stdin(Stdio::null())
        .process_group(0);
    Ok(command)
}

fn spawn(mut command: Command, line: &str) -> Result<Child> {
    let child = command.spawn().with_context(|| format!("cannot run `{line}`"))?;
    interrupt::set_running(i32::try_from(child.id()).ok().and_then(Pid::from_raw));
    Ok(child)
}

fn wait(mut child: Child) -> Result<ExitStatus> {
    let status = child.wait();
    interrupt::set_running(None);
    Ok(status?)
}

fn pass_on(output: impl Read, counted: &Mutex<Count>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let mut out = std::io::stdout().lock();
        let _closed = out.write_all(&line).and_then(|()| out.flush());
        counted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(&String::from_utf8_lossy(&line));
        line.clear();
    }
}
