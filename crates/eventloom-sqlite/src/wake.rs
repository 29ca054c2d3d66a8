//! Sleeping until somebody has committed, without asking the database meanwhile.
//!
//! A commit of this process tells its sleepers. One of another process changes the `-wal` file, and the kernel tells us. But
//! that change comes *before* its commit can be seen: the log file is written, flushed to the disk, and only then is the
//! commit published. A sleeper that looks once when the file changes finds nothing and sleeps through it. So after each
//! change it looks again, at growing intervals: each time as long after the last look as the file has been still by then.
//! A flush of 8 ms is seen after 16 at the latest, and a file at rest costs a dozen looks and then nothing.

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::{
    ffi::OsString,
    future::Future,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::Notify;

/// The shortest time between a change and the look that follows.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// How often the file is looked at where the kernel does not tell of changes.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Who sleeps, and what wakes them.
#[derive(Debug)]
pub(crate) struct Wake {
    wal: PathBuf,
    committed: Notify,
    changes: Arc<Changes>,
    /// Made by the first sleeper; `None` inside: the file has to be polled.
    watcher: OnceLock<Option<RecommendedWatcher>>,
}

#[derive(Debug)]
struct Changes {
    changed: Notify,
    last: Mutex<Instant>,
}

impl Changes {
    fn happened(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.changed.notify_waiters();
    }

    fn still_for(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

impl Wake {
    /// For the database at this path. Watches nothing before somebody sleeps.
    pub(crate) fn beside(database: &Path) -> Self {
        let mut wal = database.as_os_str().to_owned();
        wal.push("-wal");
        let changes = Changes {
            changed: Notify::new(),
            last: Mutex::new(Instant::now()),
        };
        Wake {
            wal: wal.into(),
            committed: Notify::new(),
            changes: Arc::new(changes),
            watcher: OnceLock::new(),
        }
    }

    /// A transaction of this process has committed, and can be seen.
    pub(crate) fn committed(&self) {
        self.committed.notify_waiters();
    }

    /// Sleeps until `look` finds something, for `at_most`.
    pub(crate) async fn doze<E, F, Fut>(&self, at_most: Duration, look: F) -> Result<(), E>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<bool, E>>,
    {
        let deadline = Instant::now() + at_most;
        let watched = self.watcher.get_or_init(|| self.watch()).is_some();
        loop {
            // First listen, then look, then sleep: what commits in between is either seen or heard.
            let (mut committed, mut changed) = (pin!(self.committed.notified()), pin!(self.changes.changed.notified()));
            committed.as_mut().enable();
            changed.as_mut().enable();
            if look().await? {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let nap = self.changes.still_for().max(LOOK_AFTER).min(left);
            tokio::select! {
                () = committed => {}
                () = changed => tokio::time::sleep(LOOK_AFTER).await,
                () = self.poll(), if !watched => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    /// Watches the folder, since the file comes and goes.
    fn watch(&self) -> Option<RecommendedWatcher> {
        let folder = self.wal.parent()?;
        let name: OsString = self.wal.file_name()?.to_owned();
        let changes = Arc::clone(&self.changes);
        let heard = move |event: notify::Result<Event>| {
            let relevant = match event {
                Ok(event) if event.need_rescan() => true,
                Ok(Event {
                    kind: EventKind::Access(_),
                    ..
                }) => false,
                Ok(event) => event
                    .paths
                    .iter()
                    .any(|path| path.file_name() == Some(name.as_os_str())),
                Err(_) => true,
            };
            if relevant {
                changes.happened();
            }
        };
        let watcher = notify::recommended_watcher(heard).and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        // What was written before is a change of now, for all we know.
        self.changes.happened();
        watcher
            .inspect_err(
                |error| tracing::warn!(%error, "the folder of the database cannot be watched; polling the file"),
            )
            .ok()
    }

    /// Completes when the file has changed. A change within the resolution of the file's clock is missed here, and found
    /// by the looks that follow the change before it.
    async fn poll(&self) {
        let before = stamp(&self.wal);
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            if stamp(&self.wal) != before {
                return self.changes.happened();
            }
        }
    }
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
