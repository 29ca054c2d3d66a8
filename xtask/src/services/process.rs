//! A process that can be recognised later: its id and the time at which the kernel started it.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// An orderly stop of Postgres with clients took 0.12 s when measured.
const ORDERLY_WITHIN: Duration = Duration::from_secs(20);

/// Ids are used again; the pair of id and start time within one boot is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks since the boot, field 22 of `/proc/<pid>/stat`.
    pub(crate) started: u64,
    /// Start times begin anew with each boot.
    pub(crate) boot: String,
}

impl Process {
    /// Starts `command` in a process group of its own, so that neither Ctrl-C nor the end of this program reaches it.
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        // The account may not be able to enter the caller's folder.
        command.process_group(0).current_dir("/");
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        let pid = i32::try_from(child.id())?;
        let (started, _) = stat(pid).context("the process ended at once")?;
        Ok(Self {
            pid,
            started,
            boot: boot()?,
        })
    }

    /// False for a zombie as well: it holds no port and no file.
    pub(crate) fn is_alive(&self) -> bool {
        let same_boot = boot().is_ok_and(|boot| boot == self.boot);
        same_boot
            && stat(self.pid).is_some_and(|(started, state)| started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// SIGINT, which is the fast and orderly stop of Postgres and PgBouncer; SIGKILL to the group if that is not enough.
    pub(crate) fn stop(&self) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
            return Ok(());
        };
        let _gone_meanwhile = kill_process(pid, Signal::INT);
        if self.gone_within(ORDERLY_WITHIN) {
            return Ok(());
        }
        let _gone_meanwhile = kill_process_group(pid, Signal::KILL);
        if self.gone_within(ORDERLY_WITHIN) {
            return Ok(());
        }
        bail!("process {} is still there after SIGKILL", self.pid)
    }

    fn gone_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

fn boot() -> Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .context("servers are recognised by their entry in /proc, which only Linux has")?;
    Ok(id.trim().to_owned())
}

fn stat(pid: i32) -> Option<(u64, char)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Start time and state. The program's name in parentheses may hold anything, blanks and parentheses too.
fn parse_stat(line: &str) -> Option<(u64, char)> {
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time field 22.
    let started = fields.nth(18)?.parse().ok()?;
    Some((started, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines() {
        let tail = "S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9 9";
        for name in ["postgres", "a b", "tricky) S 1 (x"] {
            assert_eq!(parse_stat(&format!("42 ({name}) {tail}")), Some((777, 'S')), "{name}");
        }
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn the_same_id_with_another_start_is_another_process() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let real = Process::spawn(command).unwrap();
        let other = Process {
            started: real.started + 1,
            ..real.clone()
        };
        assert!(real.is_alive() && !other.is_alive());
        other.stop().unwrap();
        assert!(real.is_alive(), "stopping the other one must not reach this one");
        real.stop().unwrap();
        assert!(!real.is_alive());
    }
}
