//! A folder with a migrated database in it, gone at the end; and waiting on a condition.

use eventloom::{
    Uuid,
    sqlite::{MigrateOptions, Sqlite, migrate},
};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Dropped last: declare it before what uses it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("eventloom-{}", Uuid::new_v4()));
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("shop.db")
    }

    /// A store on new tables.
    pub(crate) async fn store(&self) -> Sqlite {
        migrate(self.database(), MigrateOptions::default()).await.unwrap();
        Sqlite::connect(self.database()).await.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `look` finds something, and fails after half a minute.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await; // pacing: between two looks at the condition
    }
}
