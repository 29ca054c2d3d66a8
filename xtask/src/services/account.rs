//! Under whose name a server runs: Postgres and PgBouncer refuse to be root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    /// We are not root: as we are.
    Own,
    /// We are root and drop to the postgres account.
    Drop { uid: u32, gid: u32 },
    /// We are root, but there is no such account, or it cannot enter the folder (a checkout below a private home):
    /// a user namespace shows root to the server as somebody else, and the files stay root's.
    Mapped,
}

impl Account {
    /// The account for a server that keeps its files in `folder`, which is made. Whoever owns an existing folder stays its owner.
    pub(super) fn for_folder(folder: &Path, program: &Path) -> Result<Self> {
        let new = !folder.exists();
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Own);
        }
        if !new {
            let owner = fs::metadata(folder)?;
            return Ok(match owner.uid() {
                0 => Self::Mapped,
                uid => Self::Drop { uid, gid: owner.gid() },
            });
        }
        let postgres = id("-u").zip(id("-g")).map(|(uid, gid)| Self::Drop { uid, gid });
        match postgres {
            Some(account) if account.can("-x", folder) && account.can("-x", program) => {
                account.own(folder)?;
                Ok(account)
            }
            _ => Ok(Self::Mapped),
        }
    }

    /// A command that runs `program` under this account; the process id stays that of the program.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Own => Command::new(program),
            Self::Drop { uid, gid } => {
                let mut command = Command::new(program);
                command.uid(uid).gid(gid);
                command
            }
            Self::Mapped => {
                let mut command = Command::new("unshare");
                command
                    .args(["--user", "--map-user=1000", "--map-group=1000", "--"])
                    .arg(program);
                command
            }
        }
    }

    /// Gives a file or folder that we wrote to the account.
    pub(super) fn own(self, path: &Path) -> Result<()> {
        if let Self::Drop { uid, gid } = self {
            chown(path, Some(uid), Some(gid)).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn can(self, what: &str, path: &Path) -> bool {
        let mut test = self.command("test");
        test.arg(what).arg(path).current_dir("/").stderr(Stdio::null());
        test.status().is_ok_and(|status| status.success())
    }
}

fn id(flag: &str) -> Option<u32> {
    let output = Command::new("id")
        .args([flag, "postgres"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
