//! Every shipped query at a million rows, under default planner settings.
//!
//! What is looked at is what the server did and not what EXPLAIN promises: each operation runs often enough that its
//! statements get their generic plans, then the server's own counters say whether a table was scanned and how many index
//! entries were read. `EVENTLOOM_TEST_QUICK` leaves it out.

use crate::servers::{Database, consumer, event, for_each_server, number, run, version};
use anyhow::{Context, Result};
use eventloom_core::{
    ConsumerName, Epoch, Lane, OffsetDateTime, OwnerId, Position, SchemaName,
    ports::{
        Attempted, Cursor, DeadLetters, EffectRequest, Failure, Held, HeldState, Inbox, Leases, LetterFilter, Log,
        Outbox, ReadLimits, Readers, Redrive, Scope, Start, Store, Transaction,
    },
};
use eventloom_postgres::{Postgres, PostgresTransaction};
use sqlx::PgConnection;
use std::time::Duration;

/// After five executions a prepared statement may get a generic plan.
const EXECUTIONS: usize = 8;

const FILL: &[&str] = &[
    "SET synchronous_commit = on",
    "INSERT INTO eventloom.outbox (topic, type, key, data)
     SELECT 'orders', 'order.placed', 'order-' || n % 50000, '{\"n\": 1}' FROM generate_series(1, 1000000) n",
    "INSERT INTO eventloom.inbox (consumer, id, handled_at)
     SELECT 'billing', 'id-' || n, now() - interval '1 day' + n * interval '1 ms' FROM generate_series(1, 1000000) n",
    // A tenth are heads with a due time, a tenth are dead, the rest queue behind.
    "INSERT INTO eventloom.held (consumer, id, position, lane, topic, type, key, time, schemaversion, queued, state, due_at,
            held_at, held_by, error, first_failed_at, last_failed_at)
     SELECT 'billing', 'held-' || n, n, k % 64, 'orders', 'order.placed', 'key-' || k, now(), 1, true,
            CASE WHEN n % 10 = 1 THEN 'dead' ELSE 'waiting' END, CASE WHEN n <= 100000 AND n % 10 <> 1 THEN now() END,
            now(), 'host', 'e', now(), now()
       FROM (SELECT n, n % 100000 AS k FROM generate_series(1, 1000000) n) m",
    "INSERT INTO eventloom.held_keys (consumer, key, lane)
     SELECT 'billing', 'key-' || k, k % 64 FROM generate_series(0, 99999) k",
    "ANALYZE eventloom.outbox, eventloom.inbox, eventloom.held, eventloom.held_keys",
];

struct Plans {
    store: Postgres,
    watch: PgConnection,
    reader: ConsumerName,
    owner: OwnerId,
    cursors: Vec<Cursor>,
    found: Vec<String>,
}

/// Of outbox, inbox, held and held_keys together: sequential scans, and entries read from indexes.
#[derive(Debug, Clone, Copy)]
struct Counted {
    scans: i64,
    entries: i64,
}

impl Plans {
    async fn new(database: &Database) -> Result<Self> {
        let mut watch = database.connect().await?;
        let (store, reader) = (database.store(1).await?, consumer("billing"));
        // First, or what stands under its name would be a former reader's.
        store.register(&reader, Start::Earliest, None).await?;
        for sql in FILL {
            run(&mut watch, sql).await.context(*sql)?;
        }
        let owner = OwnerId::new("host", 1);
        let cursors = store
            .keep(&reader, &owner, Duration::from_secs(600), &[], None)
            .await?
            .owned;
        Ok(Plans {
            store,
            watch,
            reader,
            owner,
            cursors,
            found: Vec::new(),
        })
    }

    async fn counted(&mut self) -> Result<Counted> {
        // The one connection of the store reports what it has counted, and does so before the next look.
        sqlx::query("SELECT pg_stat_force_next_flush()")
            .execute(self.store.pool())
            .await?;
        sqlx::query("SELECT 1").execute(self.store.pool()).await?;
        let tables = "relname IN ('outbox', 'inbox', 'held', 'held_keys') AND schemaname = 'eventloom'";
        let scans = format!("SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE {tables}");
        let entries = format!("SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE {tables}");
        Ok(Counted {
            scans: number(&mut self.watch, &scans).await?,
            entries: number(&mut self.watch, &entries).await?,
        })
    }

    /// Runs an operation, and holds it to no scan and at most `entries_max` index entries each time.
    async fn check(
        &mut self,
        what: &str,
        entries_max: i64,
        operation: impl AsyncFn(&Plans) -> Result<()>,
    ) -> Result<()> {
        let before = self.counted().await?;
        for _ in 0..EXECUTIONS {
            operation(self).await.context(what.to_owned())?;
        }
        let after = self.counted().await?;
        if after.scans != before.scans {
            self.found.push(format!("{what}: a table was scanned"));
        }
        let each = (after.entries - before.entries) / EXECUTIONS as i64;
        if each > entries_max {
            self.found.push(format!(
                "{what}: read {each} index entries, at most {entries_max} were expected"
            ));
        }
        Ok(())
    }

    /// The same for what runs in the caller's transaction, which is rolled back.
    async fn check_in(
        &mut self,
        what: &str,
        entries_max: i64,
        operation: impl AsyncFn(&Plans, &mut PgConnection) -> Result<()>,
    ) -> Result<()> {
        self.check(what, entries_max, async |plans| {
            let mut tx = plans.begin().await?;
            operation(plans, &mut tx).await?;
            Ok(tx.rollback().await?)
        })
        .await
    }

    async fn begin(&self) -> Result<PostgresTransaction> {
        let limit = Duration::from_secs(60);
        Ok(self
            .store
            .begin(Scope {
                reader: &self.reader,
                owner: &self.owner,
                limit,
            })
            .await?)
    }
}

#[test]
fn nothing_scans_a_million_rows() {
    if std::env::var_os("EVENTLOOM_TEST_QUICK").is_some() {
        println!("left out: plans at a million rows: EVENTLOOM_TEST_QUICK is set");
        return;
    }
    for_each_server(async |database| {
        if version(&mut database.connect().await?).await? < 150_000 {
            println!("left out: plans at a million rows: Postgres 14 does not tell what a statement read when asked");
            return Ok(());
        }
        let mut plans = Plans::new(&database).await?;
        log(&mut plans).await?;
        inbox(&mut plans).await?;
        held(&mut plans).await?;
        letters(&mut plans).await?;
        operators(&mut plans).await?;
        assert!(plans.found.is_empty(), "{:#?}", plans.found);
        Ok(())
    });
}

async fn log(plans: &mut Plans) -> Result<()> {
    let limits = ReadLimits::default().rows_max(1000);
    for after in [0, 1, 500_000, 999_500, 1_000_001, 2_000_000] {
        plans
            .check(&format!("read_after {after}"), 2200, async |plans| {
                plans.store.read_after(Position(after), limits).await?;
                Ok(())
            })
            .await?;
        plans
            .check(&format!("read_lane after {after}"), 2200, async |plans| {
                plans
                    .store
                    .read_lane(Lane(7), Position(after), Position(1_000_000), limits)
                    .await?;
                Ok(())
            })
            .await?;
    }
    plans
        .check("doze at the head", 20, async |plans| {
            Ok(plans.store.doze(Position(1_000_001), Duration::from_millis(1)).await?)
        })
        .await?;
    plans
        .check("doze far behind", 20, async |plans| {
            Ok(plans.store.doze(Position::START, Duration::from_millis(1)).await?)
        })
        .await?;
    plans
        .check("append", 10, async |plans| {
            Ok(plans.store.publish_alone(event("k")).await?)
        })
        .await?;
    // Before the first row, and after the last.
    for time in [
        OffsetDateTime::UNIX_EPOCH,
        OffsetDateTime::now_utc() + Duration::from_secs(3600),
    ] {
        plans
            .check("position_at", 200, async |plans| {
                plans.store.position_at(time).await?;
                plans.store.log_status().await?;
                Ok(())
            })
            .await?;
    }
    plans
        .check("prune without anything to prune", 20, async |plans| {
            plans.store.prune(Duration::ZERO, 1000, None).await?;
            Ok(())
        })
        .await?;
    run(&mut plans.watch, "UPDATE eventloom.cursors SET position = 100000").await?;
    // A thousand and one looked at, a thousand deleted, and what the planner itself reads when it asks the index for its
    // least entry: rows just deleted, of at most a hundred pages.
    plans
        .check("prune", 6000, async |plans| {
            assert_eq!(plans.store.prune(Duration::ZERO, 1000, None).await?.rows, 1000);
            Ok(())
        })
        .await
}

async fn inbox(plans: &mut Plans) -> Result<()> {
    let ids: Vec<String> = (0..100).map(|n| format!("id-{}", n * 9999 + 1)).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let fresh: Vec<String> = (0..100).map(|n| format!("new-{n}")).collect();
    let fresh: Vec<&str> = fresh.iter().map(String::as_str).collect();
    let results: Vec<(&str, &str)> = fresh.iter().map(|id| (*id, "1")).collect();
    plans
        .check_in("claim and record", 2000, async |plans, tx| {
            plans.store.claim(tx, &plans.reader, &ids, None).await?;
            plans.store.claim(tx, &plans.reader, &fresh, None).await?;
            plans.store.record(tx, &plans.reader, &results).await?;
            Ok(plans.store.unclaim(tx, &plans.reader, &fresh).await?)
        })
        .await?;
    plans
        .check("marking alone", 200, async |plans| {
            let marks: Vec<_> = plans.cursors.iter().map(|cursor| (*cursor, Position(1))).collect();
            Ok(plans.store.mark_alone(&plans.reader, &marks, false).await?)
        })
        .await?;
    plans
        .check_in("effects", 2000, async |plans, tx| {
            let cursor = plans.cursors[0];
            for ids in [&ids, &fresh, &fresh] {
                let requests: Vec<_> = ids.iter().map(|id| EffectRequest { id, cursor }).collect();
                plans.store.claim_effects(tx, &plans.reader, &requests, None).await?;
            }
            plans.store.finish_effects(tx, &plans.reader, &results, None).await?;
            let fresh: Vec<_> = fresh.iter().map(|id| EffectRequest { id, cursor }).collect();
            Ok(plans.store.give_up_effects(tx, &plans.reader, &fresh).await?)
        })
        .await?;
    plans
        .check_in("once", 20, async |plans, tx| {
            let tables = plans.store.tables().clone();
            Postgres::once_claim(&tables, tx, &plans.reader, "order-1", b"digest").await?;
            Ok(Postgres::once_record(&tables, tx, &plans.reader, "order-1", "1").await?)
        })
        .await?;
    plans
        .check("result and forgetting", 6000, async |plans| {
            plans.store.result_of(&plans.reader, "id-500000").await?;
            let forgotten = plans
                .store
                .forget_handled(&plans.reader, Duration::ZERO, 1000, None)
                .await?;
            assert_eq!(forgotten, 1000);
            Ok(())
        })
        .await?;
    plans
        .check("forgetting keys of requests", 6000, async |plans| {
            plans.store.forget_once(Duration::ZERO, 1000, None).await?;
            Ok(())
        })
        .await?;
    plans
        .check("forgetting nothing", 1500, async |plans| {
            plans
                .store
                .forget_once(Duration::from_secs(864_000), 1000, None)
                .await?;
            let forgotten = plans
                .store
                .forget_handled(&plans.reader, Duration::from_secs(864_000), 1000, None)
                .await?;
            assert_eq!(forgotten, 0);
            Ok(())
        })
        .await
}

async fn held(plans: &mut Plans) -> Result<()> {
    let keys: Vec<String> = (0..50).map(|n| format!("key-{}", n * 1777)).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let ids: Vec<String> = (0..50).map(|n| format!("held-{}", n * 17_777 + 2)).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let failure = Failure {
        error: "e".to_owned(),
        fingerprint: "e".to_owned(),
    };
    plans
        .check_in("asking and locking", 1000, async |plans, tx| {
            plans.store.ask(tx, &plans.reader, &keys, &ids).await?;
            plans.store.share_keys(tx, &plans.reader, &keys).await?;
            plans.store.lock_key(tx, &plans.reader, "key-5", Lane(5)).await?;
            plans
                .store
                .holds_at_least(tx, &plans.reader, Some("key-5"), 100)
                .await?;
            plans.store.holds_at_least(tx, &plans.reader, None, 100).await?;
            Ok(())
        })
        .await?;
    plans
        .check_in("draining", 2000, async |plans, tx| {
            plans.store.mark_taken(tx, &plans.reader, &ids, Epoch(1)).await?;
            plans.store.count_held_attempt(tx, &plans.reader, "held-2").await?;
            plans
                .store
                .put_off(tx, &plans.reader, &ids, Duration::from_secs(1), None)
                .await?;
            let then = Attempted::Again(Duration::from_secs(1));
            plans
                .store
                .fail(tx, &plans.reader, "held-2", &failure, 2, then, None)
                .await?;
            plans.store.remove(tx, &plans.reader, &ids).await?;
            plans.store.let_go(tx, &plans.reader, "key-5", None).await?;
            Ok(())
        })
        .await?;
    let lanes: Vec<Lane> = plans.store.lanes().all().collect();
    plans
        .check("due", 64 * 110, async |plans| {
            assert_eq!(plans.store.due(&plans.reader, &lanes, 100, None).await?.0.len(), 100);
            Ok(())
        })
        .await?;
    plans
        .check("when the next is due", 300, async |plans| {
            let early = OffsetDateTime::UNIX_EPOCH;
            assert!(
                plans
                    .store
                    .due(&plans.reader, &lanes, 100, Some(early))
                    .await?
                    .1
                    .is_some()
            );
            Ok(())
        })
        .await?;
    plans
        .check("a queue, a message, a lane", 400, async |plans| {
            plans.store.queue_of(&plans.reader, "key-7", 100).await?;
            plans.store.held_message(&plans.reader, "held-7").await?;
            plans.store.lane_holds(&plans.reader, Lane(7)).await?;
            plans.store.keys_of_lane(&plans.reader, Lane(7), "key-3", 100).await?;
            Ok(())
        })
        .await
}

async fn letters(plans: &mut Plans) -> Result<()> {
    let one = Some(plans.reader.clone());
    let after = Some(("billing".to_owned(), "held-5".to_owned()));
    for (consumer, state, key) in [
        (None, None, None),
        (one.clone(), None, None),
        (one.clone(), Some(HeldState::Dead), None),
        (one.clone(), Some(HeldState::Waiting), None),
    ] {
        let mut filter = LetterFilter::default().limit(100);
        (filter.consumer, filter.state, filter.key, filter.after) = (consumer, state, key, after.clone());
        plans
            .check(&format!("{filter:?}"), 200, async |plans| {
                assert_eq!(plans.store.letters(&filter).await?.len(), 100);
                Ok(())
            })
            .await?;
    }
    let mut dead = 1;
    for _ in 0..EXECUTIONS * 2 {
        dead += 10;
        let (id, next) = (format!("held-{dead}"), format!("held-{}", dead + 100_000));
        assert_eq!(plans.store.redrive(&plans.reader, &Redrive::One(id), None).await?, 1);
        assert_eq!(plans.store.delete_letters(&plans.reader, &[&next], None).await?, 1);
    }
    plans
        .check("verbs that find nothing", 50, async |plans| {
            plans.store.letter(&plans.reader, "held-1").await?;
            plans
                .store
                .redrive(&plans.reader, &Redrive::One("held-2".to_owned()), None)
                .await?;
            plans.store.delete_letters(&plans.reader, &["held-2"], None).await?;
            Ok(())
        })
        .await?;
    plans
        .check("a key in order", 2000, async |plans| {
            let key = format!("key-{}", fastrand::u32(5000..9000) * 10 + 1);
            plans.store.redrive(&plans.reader, &Redrive::Key(key), None).await?;
            Ok(())
        })
        .await
}

async fn operators(plans: &mut Plans) -> Result<()> {
    // What the letters above deleted would be read as well, until somebody finds out that it is gone.
    run(
        &mut plans.watch,
        "VACUUM (INDEX_CLEANUP ON) eventloom.outbox, eventloom.held, eventloom.held_keys",
    )
    .await?;
    // Counts end at 100,000: of the log, the keys, the waiting and the dead.
    plans
        .check("readers", 4 * 100_000 + 1000, async |plans| {
            let readers = plans.store.readers(None).await?;
            assert_eq!((readers[0].lag_messages, readers[0].waiting), (100_000, 100_000));
            Ok(())
        })
        .await?;
    plans
        .check("a reader that begins at a time", 300, async |plans| {
            let name = consumer(&format!("late{}", fastrand::u32(..)));
            plans
                .store
                .register(&name, Start::Since(OffsetDateTime::now_utc()), None)
                .await?;
            Ok(())
        })
        .await?;
    plans
        .check("what a dropped reader has left", 300, async |plans| {
            assert!(!plans.store.drop_reader(&consumer("nobody")).await?);
            Ok(())
        })
        .await?;
    assert_eq!(plans.store.tables().schema(), &SchemaName::default());
    Ok(())
}
