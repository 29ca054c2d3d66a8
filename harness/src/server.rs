//! A Postgres server of the harness's own, in a folder of its own, so that it can be killed.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const BIN: &str = "EVENTLOOM_TEST_PG15_BIN";
const BIN_DEFAULT: &str = "/usr/lib/postgresql/15/bin";
const READY_WITHIN: Duration = Duration::from_secs(60);
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Under whose name the server runs: it refuses to be root.
#[derive(Debug, Clone, Copy)]
enum Account {
    Own,
    Drop {
        uid: u32,
        gid: u32,
    },
    /// No account that could enter the folder: a user namespace shows root to the server as somebody else.
    Mapped,
}

impl Account {
    fn for_folder(folder: &Path) -> Result<Self> {
        if !geteuid().is_root() {
            return Ok(Account::Own);
        }
        let Some((uid, gid)) = id("-u").zip(id("-g")) else {
            return Ok(Account::Mapped);
        };
        let dropped = Account::Drop { uid, gid };
        let mut test = dropped.command("test");
        test.arg("-x").arg(folder).current_dir("/").stderr(Stdio::null());
        if test.status().is_ok_and(|status| status.success()) {
            chown(folder, Some(uid), Some(gid))?;
            Ok(dropped)
        } else {
            Ok(Account::Mapped)
        }
    }

    fn command(self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        match self {
            Account::Own => Command::new(program),
            Account::Drop { uid, gid } => {
                let mut command = Command::new(program);
                command.uid(uid).gid(gid);
                command
            }
            Account::Mapped => {
                let mut command = Command::new("unshare");
                command
                    .args(["--user", "--map-user=1000", "--map-group=1000", "--"])
                    .arg(program);
                command
            }
        }
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

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    bin: PathBuf,
    data: PathBuf,
    account: Account,
    pub(crate) port: u16,
    process: Option<Child>,
}

impl Server {
    /// Makes a cluster in `folder` and starts it. `durable`: commits are flushed to the disk.
    pub(crate) async fn start(folder: &Path, durable: bool) -> Result<Self> {
        let bin = PathBuf::from(std::env::var(BIN).unwrap_or_else(|_| BIN_DEFAULT.to_owned()));
        if !bin.join("initdb").exists() {
            bail!(
                "there is no initdb in {}; set {BIN} to the folder of Postgres' programs",
                bin.display()
            );
        }
        let data = folder.join("postgres");
        fs::create_dir_all(&data)?;
        let data = data.canonicalize()?;
        let account = Account::for_folder(&data)?;
        let mut initdb = account.command(bin.join("initdb"));
        initdb.arg("-D").arg(&data).current_dir("/").stdin(Stdio::null());
        initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        let output = initdb.output().context("initdb")?;
        if !output.status.success() {
            bail!("initdb: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let flush = if durable { "on" } else { "off" };
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 150\n\
             shared_buffers = 64MB\nfsync = {flush}\nfull_page_writes = {flush}\ndeadlock_timeout = 100ms\n\
             timezone = 'UTC'\nlog_timezone = 'UTC'\nlog_line_prefix = '%m [%p] %a '\n"
        );
        let mut file = fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        std::io::Write::write_all(&mut file, settings.as_bytes())?;
        let mut server = Server {
            bin,
            data,
            account,
            port,
            process: None,
        };
        server.launch().await?;
        Ok(server)
    }

    /// A database's URL, with the server reached at `port`.
    pub(crate) fn url(port: u16, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable")
    }

    /// Starts it (again) and waits until it answers.
    pub(crate) async fn launch(&mut self) -> Result<()> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.data.with_extension("log"))?;
        let mut postgres = self.account.command(self.bin.join("postgres"));
        postgres.arg("-D").arg(&self.data).current_dir("/").process_group(0);
        postgres.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.process = Some(postgres.spawn().context("starting postgres")?);
        let url = Server::url(self.port, "postgres");
        let ready = crate::wait::until(READY_WITHIN, || async {
            sqlx::Connection::close(<sqlx::PgConnection as sqlx::Connection>::connect(&url).await.ok()?)
                .await
                .ok()
        });
        ready.await.with_context(|| {
            format!(
                "postgres does not answer; see {}",
                self.data.with_extension("log").display()
            )
        })
    }

    /// SIGKILL to the server and all its backends, as a crash of the machine would end them.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        // Stopped first: otherwise it would begin to mend, and start backends anew.
        signal(i32::try_from(process.id())?, Signal::STOP);
        process.kill()?;
        process.wait()?;
        // A backend that was just being started counts, too: the shared memory must be nobody's.
        let deadline = Instant::now() + GONE_WITHIN;
        loop {
            let left = inhabitants(&self.data);
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("processes {left:?} of the killed server are still there");
            }
            left.into_iter().for_each(|pid| signal(pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The orderly stop.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            signal(i32::try_from(process.id())?, Signal::INT);
            process.wait()?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Processes that have the data folder as their working folder, as each process of a server has. Not those that have ended.
fn inhabitants(data: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == data))
        .collect()
}
