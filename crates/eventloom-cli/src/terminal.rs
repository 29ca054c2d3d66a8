//! What stands at the other end: a terminal with its width and colours, or a pipe that somebody may have closed.

use std::{
    env,
    io::{self, IsTerminal},
};
use tracing_subscriber::EnvFilter;

/// Whether escape sequences may be written there.
pub(crate) fn is_coloured(to_stderr: bool) -> bool {
    let terminal = if to_stderr {
        io::stderr().is_terminal()
    } else {
        io::stdout().is_terminal()
    };
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    terminal && !refused && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns of the terminal on stdout, when there is one.
#[cfg(unix)]
pub(crate) fn width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Columns of the terminal on stdout, when there is one.
#[cfg(not(unix))]
pub(crate) fn width() -> Option<usize> {
    None
}

/// Whether nobody reads stdout any more. A write would say so too, but there may be nothing to write for long.
#[cfg(unix)]
pub(crate) fn is_closed() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().contains(PollFlags::ERR)
}

/// Whether nobody reads stdout any more.
#[cfg(not(unix))]
pub(crate) fn is_closed() -> bool {
    false
}

/// What the library traces goes to stderr; `EVENTLOOM_LOG` says how much, as `RUST_LOG` does elsewhere.
pub(crate) fn trace() {
    let wanted = env::var("EVENTLOOM_LOG").unwrap_or_else(|_| "error".to_owned());
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|_| EnvFilter::new("error"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    // Nobody else has set one before.
    let _ = subscriber.with_ansi(is_coloured(true)).try_init();
}
