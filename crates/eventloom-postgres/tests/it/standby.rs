//! A standby of the Postgres 15 under test, made and started with that server's own programs.

use crate::servers::{DIRECT, Database};
use eventloom_postgres::{MigrateOptions, migrate};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Stopped and removed when dropped.
pub(crate) struct Standby {
    bin: PathBuf,
    folder: PathBuf,
    account: Option<(u32, u32)>,
    port: u16,
    database: Database,
}

impl Standby {
    /// `None`, and a line that says why, where it cannot be made.
    pub(crate) fn start() -> Option<Self> {
        let primary = DIRECT[0].url()?;
        let Ok(bin) = std::env::var("EVENTLOOM_TEST_PG15_BIN") else {
            println!("left out: standby: EVENTLOOM_TEST_PG15_BIN is not set");
            return None;
        };
        let account = match id("-u")? {
            0 => None,
            uid => Some((uid, id("-g")?)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let database = runtime.block_on(async {
            let database = Database::create(&primary, &primary).await.unwrap();
            migrate(&database.pool(1).await.unwrap(), MigrateOptions::default())
                .await
                .unwrap();
            database
        });
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standby-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        if let Some((uid, gid)) = account {
            chown(&folder, Some(uid), Some(gid)).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let standby = Standby {
            bin: bin.into(),
            folder,
            account,
            port,
            database,
        };
        standby.copy(&primary);
        standby.serve();
        runtime
            .block_on(crate::servers::until("the standby answers", async || {
                Ok(PgConnection::connect_with(&standby.options()).await.is_ok())
            }))
            .unwrap();
        Some(standby)
    }

    /// The test's database on the standby.
    pub(crate) fn options(&self) -> PgConnectOptions {
        self.database.direct().port(self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        if let Some((uid, gid)) = self.account {
            command.uid(uid).gid(gid);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn copy(&self, primary: &PgConnectOptions) {
        let mut copy = self.program("pg_basebackup");
        copy.args([
            "--checkpoint=fast",
            "--write-recovery-conf",
            "--no-sync",
            "--username",
            primary.get_username(),
        ]);
        copy.args(["--host", primary.get_host(), "--port", &primary.get_port().to_string()]);
        let output = copy.arg("--pgdata").arg(self.data()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn serve(&self) {
        let mut start = self.program("pg_ctl");
        start
            .arg("--pgdata")
            .arg(self.data())
            .arg("--log")
            .arg(self.folder.join("log"));
        let options = format!(
            "-c port={} -c unix_socket_directories= -c shared_buffers=16MB",
            self.port
        );
        let status = start
            .args(["--wait", "start", "--options", &options])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(
            status.success(),
            "{}",
            fs::read_to_string(self.folder.join("log")).unwrap_or_default()
        );
    }
}

/// Of the account under which a server runs when we are root; of our own otherwise.
fn id(what: &str) -> Option<u32> {
    let ask = |arguments: &[&str]| {
        let output = Command::new("id").args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
    };
    if ask(&["-u"])? != 0 {
        return Some(0);
    }
    let found = ask(&[what, "postgres"]);
    if found.is_none() {
        println!("left out: standby: this is root, and there is no account named postgres to serve under");
    }
    found
}

impl Drop for Standby {
    fn drop(&mut self) {
        let mut stop = self.program("pg_ctl");
        let _ = stop
            .arg("--pgdata")
            .arg(self.data())
            .args(["--mode=immediate", "stop"])
            .stdout(Stdio::null())
            .status();
        let _ = fs::remove_dir_all(&self.folder);
        let database = self.database.clone();
        // Not on the thread of the test, which may be inside of a runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(database.drop())
        });
        let _ = dropped.join();
    }
}
