//! A cluster of its own whose disks are small: tables on one file system, the write-ahead log on another.
//!
//! Mounting needs no rights here: a user namespace makes us root of mounts that nobody else sees, and one within it makes
//! the server somebody else again, since Postgres refuses to be root. Everything is gone with the shell that holds it.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use sqlx::postgres::PgConnectOptions;

/// Does one thing for each line that it is told, and answers `ok` or `failed`. Its arguments: folder, programs, port.
const HOLDER: &str = r#"
mount -t tmpfs -o size=96m tmpfs "$1/data" && mount -t tmpfs -o size=48m tmpfs "$1/wal" || exit 1
echo mounted
server="unshare --user --map-user=1000 --map-group=1000 -- $2"
make() {
    $server/initdb -D "$1/data/cluster" -X "$1/wal/cluster" --wal-segsize=1 -U postgres -A trust -E UTF8 --locale=C &&
    cat >>"$1/data/cluster/postgresql.conf" <<END
listen_addresses = '127.0.0.1'
port = $3
unix_socket_directories = ''
shared_buffers = 16MB
min_wal_size = 2MB
max_wal_size = 4MB
# Nothing of it is recycled, or its disk would never be full.
wal_keep_size = 1GB
END
}
while read -r what where; do
    case "$what" in
        make) make "$@" ;;
        start) $server/pg_ctl -D "$1/data/cluster" status || $server/pg_ctl -D "$1/data/cluster" -l "$1/log" -w start ;;
        fill) # All but 4 MiB.
            left=$(($(df -Pm "$1/$where" | awk 'END { print $4 }') - 4))
            dd if=/dev/zero of="$1/$where/ballast" bs=1M count="$left" ;;
        forget)
            find "$1/data/cluster" -name pg_internal.init -delete
            ! dd if=/dev/zero of="$1/data/ballast" oflag=append conv=notrunc bs=4k ;;
        free) rm "$1/$where/ballast" ;;
    esac >>"$1/said" 2>&1 </dev/null && echo ok || echo failed
done
$server/pg_ctl -D "$1/data/cluster" -m immediate stop >>"$1/said" 2>&1
"#;

/// Which of its two disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Tables,
    Log,
}

impl Disk {
    fn folder(self) -> &'static str {
        match self {
            Disk::Tables => "data",
            Disk::Log => "wal",
        }
    }
}

/// Stopped and gone when dropped, also when this process is killed.
pub(crate) struct Cluster {
    holder: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
    port: u16,
}

impl Cluster {
    /// `None` where it cannot be made, and a line that says why: past the capture of the test harness, which would keep
    /// the line of a test that passes.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let left_out = |why: &str| {
            let _ = writeln!(std::io::stderr(), "left out: {test}: {why}");
            None
        };
        let Ok(bin) = std::env::var("EVENTLOOM_TEST_PG15_BIN") else {
            // Without servers nothing that needs one is run: whoever starts them says so.
            println!("left out: {test}: EVENTLOOM_TEST_PG15_BIN is not set");
            return None;
        };
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("full-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::SeqCst));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for disk in [Disk::Tables, Disk::Log] {
            fs::create_dir_all(folder.join(disk.folder())).unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut holder = Command::new("unshare");
        holder.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--",
            "sh",
            "-c",
            HOLDER,
            "holder",
        ]);
        holder.arg(&folder).arg(bin).arg(port.to_string()).current_dir("/");
        let said = fs::File::create(folder.join("said")).unwrap();
        let holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said).spawn();
        let Ok(mut holder) = holder else {
            return left_out("there is no program unshare");
        };
        let (input, output) = (holder.stdin.take(), BufReader::new(holder.stdout.take().unwrap()));
        let mut cluster = Cluster {
            holder,
            input,
            output,
            folder,
            port,
        };
        if cluster.hear() != "mounted" {
            let why = cluster.said();
            return left_out(&format!("no file system can be mounted here: {}", why.trim()));
        }
        cluster.tell("make");
        cluster.go_on();
        Some(cluster)
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .database("postgres")
    }

    /// Starts the server, unless it runs.
    pub(crate) fn go_on(&mut self) {
        self.tell("start");
    }

    /// Leaves 4 MiB of a disk.
    pub(crate) fn fill(&mut self, disk: Disk) {
        self.tell(&format!("fill {}", disk.folder()));
    }

    /// Gives back what [`Self::fill`] took.
    pub(crate) fn free(&mut self, disk: Disk) {
        self.tell(&format!("free {}", disk.folder()));
    }

    /// Removes what the server prepared for new connections, so that the next one writes it anew, and takes the last space
    /// of a full disk of tables.
    pub(crate) fn forget_prepared(&mut self) {
        self.tell("forget");
    }

    /// What the server has written to its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("said")).unwrap_or_default()
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
        assert_eq!(self.hear(), "ok", "{what}: {}\n{}", self.said(), self.log());
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The holder ends with its input.
        self.input = None;
        let _ = self.holder.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
