//! Four processes that write as fast as they can share the file.

use crate::{
    child::Process,
    folder::{Folder, until},
};
use eventloom_core::ports::Log;

const WRITERS: usize = 4;
/// Enough for luck to even out.
const COMMITS: i64 = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn every_process_gets_its_share_of_commits() {
    let folder = Folder::new();
    let store = folder.store().await;
    let mut writers: Vec<Process> = (0..WRITERS)
        .map(|number| Process::start("eager writer", folder.path(), number))
        .collect();
    for writer in &mut writers {
        assert_eq!(writer.hear().as_deref(), Some("ready"));
    }
    for writer in &mut writers {
        writer.tell("go");
    }
    until("they have committed often enough", async || {
        store.horizon().await.unwrap().position.0 >= COMMITS
    })
    .await;
    for writer in &mut writers {
        writer.tell("stop");
    }
    let commits: Vec<i64> = writers
        .into_iter()
        .map(|writer| writer.rest()[0].parse().unwrap())
        .collect();
    let all: i64 = commits.iter().sum();
    println!("commits of {WRITERS} processes: {commits:?}");
    assert_eq!(store.horizon().await.unwrap().position.0, all);
    for own in &commits {
        assert!(
            own * 3 * WRITERS as i64 >= all,
            "at least a third of a fair share: {commits:?}"
        );
    }
}
