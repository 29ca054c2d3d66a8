//! A handler that ends the transaction that it was given, and says that all went well: its message is a failure, and
//! neither lost nor taken for handled.

use crate::{database::with_database, folder::until};
use eventloom::{
    Backoff, Consumer, Eventloom, LetterFilter,
    ports::{DeadLetters, HeldState},
    postgres::prelude::*,
    publish_all,
};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use std::{
    future::Future,
    pin::pin,
    task::{self, Waker},
    time::Duration,
};

const ORDERS: Topic = Topic::new("orders");

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Ending {
    None,
    /// As `timeout` and `select!` drop it.
    NestedBeginDropped,
    Rollback,
    SavepointLeaked,
}

#[derive(Serialize, Deserialize)]
struct Placed {
    ending: Ending,
}

impl Event for Placed {
    const TYPE: &'static str = "order.placed";
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Failure(#[from] sqlx::Error);
impl Classify for Failure {}

async fn book(placed: Placed, cx: &mut Context<'_>) -> Result<(), Failure> {
    let connection: &mut PgConnection = cx.connection();
    sqlx::query("INSERT INTO booked DEFAULT VALUES")
        .execute(&mut *connection)
        .await?;
    match placed.ending {
        Ending::None => {}
        // One that is answered at once is an ordinary one, and undone alone.
        Ending::NestedBeginDropped => {
            while {
                let polled = pin!(connection.begin()).poll(&mut task::Context::from_waker(Waker::noop()));
                polled.is_ready()
            } {}
        }
        Ending::Rollback => {
            sqlx::query("ROLLBACK").execute(connection).await?;
        }
        Ending::SavepointLeaked => std::mem::forget(connection.begin().await?),
    }
    Ok(())
}

/// Runs one message of each ending, and checks that those that end their transaction are dead and without effect.
async fn run(what: &str, endings: &[Ending], batch_max: u32) {
    with_database(what, async |database| {
        let pool = database.pool(1).await;
        sqlx::query("CREATE TABLE booked (number bigint GENERATED ALWAYS AS IDENTITY)")
            .execute(&pool)
            .await
            .unwrap();
        let store = database.store(4).await;
        let orders: Vec<Placed> = endings.iter().map(|ending| Placed { ending: *ending }).collect();
        let well = endings.iter().filter(|ending| **ending == Ending::None).count();
        let ended = endings.len() - well;
        let mut tx = pool.begin().await.unwrap();
        publish_all(&mut *tx, ORDERS, &orders).await.unwrap();
        tx.commit().await.unwrap();
        let wait = Duration::from_millis(10);
        let consumer = Consumer::new("books")
            .topic(ORDERS)
            .handle(book)
            .attempts(2)
            .batch_max(batch_max);
        let consumer = consumer.backoff(Backoff::default().first(wait).most(wait));
        let service = Eventloom::new(store.clone()).consumer(consumer).start().await.unwrap();
        let letters = until("the dead messages", async || {
            let letters = store.letters(&LetterFilter::default()).await.unwrap();
            let dead = letters.iter().filter(|letter| letter.state == HeldState::Dead);
            (dead.count() == ended).then_some(letters)
        })
        .await;
        assert_eq!(letters.len(), ended);
        for letter in letters {
            assert_eq!(letter.attempts, 2, "{letter:?}");
        }
        until("the others", async || {
            let health = service.health().await.consumers.remove(0);
            (health.handled == well as u64).then_some(())
        })
        .await;
        service.shutdown(Duration::from_secs(20)).await.unwrap();
        let booked: i64 = sqlx::query_scalar("SELECT count(*) FROM booked")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(booked, well as i64, "what ended its transaction left no effect");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_transaction_was_ended_is_a_failure() {
    let endings = [
        Ending::None,
        Ending::NestedBeginDropped,
        Ending::None,
        Ending::Rollback,
        Ending::SavepointLeaked,
        Ending::None,
    ];
    // One at a time: what runs in a batch behind a literal ROLLBACK runs outside of any transaction.
    run("a message whose transaction was ended", &endings, 1).await;
}

/// What the driver knows of is found out before the next handler runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_behind_a_transaction_that_was_ended() {
    let endings = [
        Ending::None,
        Ending::NestedBeginDropped,
        Ending::None,
        Ending::SavepointLeaked,
        Ending::None,
    ];
    run("a batch whose transaction was ended", &endings, 256).await;
}
