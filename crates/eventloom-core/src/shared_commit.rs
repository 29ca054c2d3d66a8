//! Publishers that commit together: the batch is whatever arrived while the previous commit was in flight.
//!
//! There is no timer and no task. Whoever finds nobody committing commits for all that wait; the others get their own
//! answer. One publisher alone pays nothing; sixty-four share the disk's flush.

use crate::{
    error::{PublishError, StoreError, StoreErrorKind},
    event::NewEvent,
};
use futures::{
    channel::oneshot,
    future::{Either, select},
    lock::Mutex as TurnMutex,
};
use std::{
    future::Future,
    pin::pin,
    sync::{Mutex, PoisonError},
};

/// Rows that share one commit at most.
const ROWS_MAX: usize = 512;
/// Payload bytes that share one commit, unless a single event is larger.
const PAYLOAD_BYTES_MAX: usize = 4 << 20;

struct Waiting {
    event: NewEvent,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

/// A queue of publishers and the turn to commit for them.
#[derive(Default)]
pub struct SharedCommit {
    waiting: Mutex<Vec<Waiting>>,
    turn: TurnMutex<()>,
}

impl SharedCommit {
    /// Publishes one event through `commit`, which inserts and commits a batch.
    ///
    /// # Errors
    /// Of this event alone: when a batch fails for a reason that lies in one of its events, each is committed by itself.
    ///
    /// # Cancel safety
    /// A dropped future may have published. When it was committing for others, they are told that theirs may have
    /// happened.
    pub async fn publish<F, Fut>(&self, event: NewEvent, commit: F) -> Result<(), PublishError>
    where
        F: Fn(Vec<NewEvent>) -> Fut,
        Fut: Future<Output = Result<(), StoreError>>,
    {
        let (answer, mut answered) = oneshot::channel();
        self.queue().push(Waiting { event, answer });
        loop {
            match select(&mut answered, pin!(self.turn.lock())).await {
                Either::Left((answer, _)) => {
                    return answer.unwrap_or_else(|_| Err(abandoned())).map_err(PublishError::from);
                }
                Either::Right((_turn, _)) => {
                    if let Ok(Some(answer)) = answered.try_recv() {
                        return answer.map_err(PublishError::from);
                    }
                    // Our own event may be behind a full batch: then the turn comes round again.
                    self.commit_for_all(&commit).await;
                }
            }
        }
    }

    async fn commit_for_all<F, Fut>(&self, commit: &F)
    where
        F: Fn(Vec<NewEvent>) -> Fut,
        Fut: Future<Output = Result<(), StoreError>>,
    {
        let batch = self.take_batch();
        if batch.is_empty() {
            return;
        }
        let events = batch.iter().map(|waiting| waiting.event.clone()).collect();
        match commit(events).await {
            Ok(()) => batch.into_iter().for_each(|waiting| waiting.tell(Ok(()))),
            Err(error) if batch.len() > 1 && blames_a_row(error.kind()) => commit_singly(batch, commit).await,
            Err(error) => tell_all(batch, &error),
        }
    }

    fn take_batch(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        // Who was dropped while it waited does not publish any more: hours later would be worse than not at all.
        queue.retain(|waiting| !waiting.answer.is_canceled());
        let mut payload_bytes = 0;
        let end = queue.iter().take(ROWS_MAX).position(|waiting| {
            payload_bytes += waiting.event.payload().map_or(0, |payload| payload.bytes().len());
            payload_bytes > PAYLOAD_BYTES_MAX
        });
        let end = end.unwrap_or(queue.len().min(ROWS_MAX)).max(1).min(queue.len());
        queue.drain(..end).collect()
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn tell(self, answer: Result<(), StoreError>) {
        // A publisher that has gone away does not want to know.
        let _ = self.answer.send(answer);
    }
}

/// Commits each by itself, while others wait for the turn: not for those who have gone, and not beyond the first that does
/// not reach the store.
async fn commit_singly<F, Fut>(batch: Vec<Waiting>, commit: &F)
where
    F: Fn(Vec<NewEvent>) -> Fut,
    Fut: Future<Output = Result<(), StoreError>>,
{
    let mut batch = batch.into_iter();
    while let Some(waiting) = batch.next() {
        if waiting.answer.is_canceled() {
            continue;
        }
        match commit(vec![waiting.event.clone()]).await {
            Err(error) if error.kind() == StoreErrorKind::Unreachable => {
                return tell_all([waiting].into_iter().chain(batch), &error);
            }
            alone => waiting.tell(alone),
        }
    }
}

fn tell_all(batch: impl IntoIterator<Item = Waiting>, error: &StoreError) {
    let (kind, text) = (error.kind(), error.to_string());
    for waiting in batch {
        waiting.tell(Err(StoreError::new(kind, "publishing", text.clone())));
    }
}

/// Whether a batch may have failed because of one of its rows, so that the others deserve a commit without it.
fn blames_a_row(kind: StoreErrorKind) -> bool {
    matches!(
        kind,
        StoreErrorKind::Constraint | StoreErrorKind::Other | StoreErrorKind::Conflict
    )
}

fn abandoned() -> StoreError {
    let why = "the publisher that was committing for this one was dropped";
    StoreError::new(StoreErrorKind::Indeterminate, "publishing", why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Topic;
    use futures::{FutureExt, executor::block_on, future::join_all};
    use std::cell::RefCell;

    fn event(key: &str) -> NewEvent {
        NewEvent::untyped(Topic::new("t"), "t").with_key(key)
    }

    /// Yields once, so that others arrive while a commit is in flight.
    async fn flight() {
        let mut first = true;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::take(&mut first) {
                std::task::Poll::Pending
            } else {
                std::task::Poll::Ready(())
            }
        })
        .await;
    }

    #[test]
    fn those_who_arrive_during_a_commit_share_the_next() {
        let (shared, commits) = (SharedCommit::default(), RefCell::new(Vec::new()));
        let publish = |key: &'static str| {
            shared.publish(event(key), |events| {
                commits.borrow_mut().push(events.len());
                flight().map(|()| Ok(()))
            })
        };
        let answers = block_on(join_all(["a", "b", "c", "d"].map(publish)));
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(*commits.borrow(), [1, 3], "the first alone, the others together");
    }

    #[test]
    fn a_bad_row_fails_for_its_own_publisher_only() {
        let shared = SharedCommit::default();
        let publish = |key: &'static str| {
            shared.publish(event(key), |events| {
                let bad = events.iter().any(|event| event.key() == Some("bad"));
                flight().map(move |()| match bad {
                    true => Err(StoreError::new(StoreErrorKind::Constraint, "testing", "bad row")),
                    false => Ok(()),
                })
            })
        };
        let answers = block_on(join_all(["a", "b", "bad", "d"].map(publish)));
        assert_eq!(
            answers.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, true, false, true]
        );
    }

    #[test]
    fn who_was_dropped_while_it_waited_does_not_publish_later() {
        let (shared, keys) = (SharedCommit::default(), RefCell::new(Vec::new()));
        let publish = |key: &'static str| {
            shared.publish(event(key), |events| {
                keys.borrow_mut()
                    .extend(events.iter().filter_map(|event| event.key().map(str::to_owned)));
                flight().map(|()| Ok(()))
            })
        };
        block_on(async {
            let mut committing = Box::pin(publish("a"));
            assert!(committing.as_mut().now_or_never().is_none());
            let mut waiting = Box::pin(publish("b"));
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(waiting);
            assert!(committing.await.is_ok() && publish("c").await.is_ok());
        });
        assert_eq!(*keys.borrow(), ["a", "c"]);
    }

    #[test]
    fn a_store_that_dies_after_a_bad_row_is_asked_no_more() {
        let (shared, commits) = (SharedCommit::default(), RefCell::new(Vec::new()));
        let publish = |key: &'static str| {
            shared.publish(event(key), |events| {
                let key = events[0].key().unwrap_or_default().to_owned();
                let answer = match (events.len(), key.as_str()) {
                    (1, "a" | "b") => Ok(()),
                    (1, _) => Err(StoreError::new(StoreErrorKind::Unreachable, "testing", "gone")),
                    _ => Err(StoreError::new(StoreErrorKind::Constraint, "testing", "bad row")),
                };
                commits.borrow_mut().push((events.len(), key));
                flight().map(move |()| answer)
            })
        };
        let answers = block_on(join_all(["a", "b", "c", "d", "e"].map(publish)));
        assert_eq!(
            answers.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, true, false, false, false]
        );
        for answer in &answers[2..] {
            let unreachable = |error: &StoreError| error.kind() == StoreErrorKind::Unreachable;
            assert!(
                matches!(answer, Err(PublishError::Store(error)) if unreachable(error)),
                "{answer:?}"
            );
        }
        let once = |key: &str| (1, key.to_owned());
        assert_eq!(
            *commits.borrow(),
            [once("a"), (4, "b".to_owned()), once("b"), once("c")],
            "after c nobody is tried"
        );
    }

    #[test]
    fn who_has_gone_is_not_committed_singly() {
        let (shared, keys) = (SharedCommit::default(), RefCell::new(Vec::new()));
        let publish = |key: &'static str| {
            shared.publish(event(key), |events| {
                let answer = match events.as_slice() {
                    [event] => {
                        keys.borrow_mut().extend(event.key().map(str::to_owned));
                        Ok(())
                    }
                    _ => Err(StoreError::new(StoreErrorKind::Constraint, "testing", "bad row")),
                };
                flight().map(move |()| answer)
            })
        };
        block_on(async {
            let mut first = Box::pin(publish("a"));
            assert!(first.as_mut().now_or_never().is_none());
            let mut second = Box::pin(publish("b"));
            assert!(second.as_mut().now_or_never().is_none());
            let mut third = Box::pin(publish("c"));
            assert!(third.as_mut().now_or_never().is_none());
            assert!(first.await.is_ok());
            assert!(second.as_mut().now_or_never().is_none(), "it commits for both");
            drop(third);
            assert!(second.await.is_ok());
        });
        assert_eq!(*keys.borrow(), ["a", "b"]);
    }

    #[test]
    fn a_dropped_committer_leaves_the_others_informed() {
        let shared = SharedCommit::default();
        block_on(async {
            let mut first = Box::pin(shared.publish(event("a"), |_| flight().map(|()| Ok(()))));
            assert!(first.as_mut().now_or_never().is_none());
            let never = |_| std::future::pending();
            let mut second = Box::pin(shared.publish(event("b"), never));
            assert!(second.as_mut().now_or_never().is_none());
            let mut third = Box::pin(shared.publish(event("c"), |_| async { Ok(()) }));
            assert!(third.as_mut().now_or_never().is_none());
            assert!(first.await.is_ok());
            assert!(second.as_mut().now_or_never().is_none(), "it commits for both");
            drop(second);
            let told = third.await;
            assert!(
                matches!(&told, Err(PublishError::Store(error)) if error.may_have_happened()),
                "{told:?}"
            );
        });
    }

    #[test]
    fn a_dropped_committer_gives_the_turn_back() {
        let shared = SharedCommit::default();
        block_on(async {
            let never = |_| std::future::pending();
            let mut first = Box::pin(shared.publish(event("a"), never));
            assert!(first.as_mut().now_or_never().is_none());
            let mut second = Box::pin(shared.publish(event("b"), |_| async { Ok(()) }));
            assert!(second.as_mut().now_or_never().is_none(), "it waits for its turn");
            drop(first);
            assert!(second.await.is_ok(), "the turn was given back");
        });
    }
}
