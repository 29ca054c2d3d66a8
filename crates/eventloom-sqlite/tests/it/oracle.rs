//! Delivered is what was committed, in strictly increasing order, whoever writes and however readers restart.

use crate::{child::Process, folder::Folder};
use eventloom_core::{
    Position,
    ports::{Log, ReadLimits},
};
use eventloom_sqlite::Sqlite;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const WRITERS: usize = 4;

/// Follows the log; opens it anew now and then, going on from its place.
async fn follow(folder: std::path::PathBuf, rows_max: u32, written: Arc<AtomicBool>) -> Vec<(i64, String)> {
    let (mut delivered, mut place) = (Vec::new(), Position::START);
    let mut pages = 0;
    let mut store = Sqlite::connect(&folder).await.unwrap();
    loop {
        // Asked before the read: what was committed by then is in it.
        let last = written.load(Ordering::SeqCst);
        let page = store
            .read_after(place, ReadLimits::default().rows_max(rows_max).payload_bytes_max(700))
            .await
            .unwrap();
        delivered.extend(page.rows.iter().map(|row| (row.position.0, row.envelope.id.clone())));
        assert!(page.scanned_to >= place && page.scanned_to <= page.horizon.max(place));
        place = page.scanned_to;
        pages += 1;
        if pages % 50 == 0 {
            store.close().await;
            store = Sqlite::connect(&folder).await.unwrap();
        }
        if page.rows.is_empty() {
            if last {
                return delivered;
            }
            store.doze(place, Duration::from_millis(200)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_is_what_was_committed() {
    let folder = Folder::new();
    let store = folder.store().await;
    let written = Arc::new(AtomicBool::new(false));
    let readers = [3, 1000].map(|rows_max| tokio::spawn(follow(folder.database(), rows_max, Arc::clone(&written))));

    let mut writers: Vec<Process> = (0..WRITERS)
        .map(|number| Process::start("hostile writer", folder.path(), number))
        .collect();
    let committed = tokio::task::spawn_blocking(move || {
        for writer in &mut writers {
            assert_eq!(writer.hear().as_deref(), Some("ready"));
        }
        for writer in &mut writers {
            writer.tell("go");
        }
        writers.into_iter().flat_map(Process::rest).collect::<Vec<String>>()
    });
    let committed = committed.await.unwrap();
    written.store(true, Ordering::SeqCst);

    let expected: HashSet<&str> = committed.iter().map(String::as_str).collect();
    assert!(expected.len() > 1000, "the writers have written: {}", expected.len());
    for reader in readers {
        let delivered = reader.await.unwrap();
        assert!(
            delivered.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "strictly increasing"
        );
        let found: HashSet<&str> = delivered.iter().map(|(_, id)| id.as_str()).collect();
        assert_eq!(delivered.len(), found.len(), "nothing twice");
        assert_eq!(found, expected, "delivered is what was committed");
    }
    store.close().await;
}
