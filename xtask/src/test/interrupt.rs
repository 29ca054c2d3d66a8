//! SIGINT, SIGTERM and SIGHUP end the running step instead of this program, so that it still stops the servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static CAME: AtomicBool = AtomicBool::new(false);
/// The process group of the running step.
static RUNNING: Mutex<Option<Pid>> = Mutex::new(None);

pub(super) fn listen() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        for _signal in signals.forever() {
            // Whoever asks twice does not want to wait for an orderly end.
            let again = CAME.swap(true, Ordering::SeqCst);
            end_running(if again { Signal::KILL } else { Signal::TERM });
        }
    });
    Ok(())
}

pub(super) fn came() -> bool {
    CAME.load(Ordering::SeqCst)
}

/// Names the group that a signal ends from now on. A signal that came just before counts too.
pub(super) fn set_running(group: Option<Pid>) {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = group;
    if came() {
        end_running(Signal::TERM);
    }
}

fn end_running(signal: Signal) {
    if let Some(group) = *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) {
        let _gone_meanwhile = kill_process_group(group, signal);
    }
}
