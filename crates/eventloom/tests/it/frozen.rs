//! An instance that is frozen between effect and commit: its successor works on its lanes within about one lease, and
//! what it does after the thaw touches nothing.

use crate::{
    database::{self, Database, POOLER, SERVER, with_database},
    folder::until,
    process::{Instance, LEASE, MOVES, Moved, Role, TABLES, key_of},
};
use eventloom::{Lane, NewEvent, OffsetDateTime, publish_rows};
use sqlx::{PgPool, Row};
use std::collections::HashMap;

const KEYS: usize = 4;
/// A key that was not used before, whatever lanes it is looked for in.
const NEW: usize = 50;
/// Looks, renewals and a loaded machine may cost the successor another lease, and not more.
const WITHIN: std::time::Duration = LEASE.saturating_mul(2);

/// Two instances that share the lanes, and how one waits for what they do.
struct Scene {
    pool: PgPool,
    owner: Instance,
    successor: Instance,
    /// Lanes of the owner, and of its successor.
    lanes: [Vec<Lane>; 2],
    published: Vec<Moved>,
}

impl Scene {
    async fn new(database: &Database, server: &str, owner: Role, successor: Role) -> Self {
        let pool = database.pool(2).await;
        sqlx::raw_sql(TABLES).execute(&pool).await.unwrap();
        let owner = Instance::start(owner, server, database);
        let successor = Instance::start(successor, server, database);
        let mut scene = Scene {
            pool,
            owner,
            successor,
            lanes: [vec![], vec![]],
            published: vec![],
        };
        scene.lanes = scene.shared().await;
        scene
    }

    /// Waits until each has half of the lanes.
    async fn shared(&self) -> [Vec<Lane>; 2] {
        until("the lanes to be shared", async || {
            let mut lanes = [vec![], vec![]];
            for (of, owner) in lanes.iter_mut().zip([&self.owner.owner, &self.successor.owner]) {
                let owned = sqlx::query_scalar("SELECT lane FROM eventloom.cursors WHERE owner = $1");
                let owned: Vec<i16> = owned.bind(owner).fetch_all(&self.pool).await.unwrap();
                of.extend(owned.into_iter().map(Lane));
            }
            lanes.iter().all(|lanes| lanes.len() == 32).then_some(lanes)
        })
        .await
    }

    async fn publish(&mut self, moves: Vec<Moved>) {
        let mut tx = self.pool.begin().await.unwrap();
        for moved in &moves {
            // ON CONFLICT would wait for whoever is moving the user.
            let user = "INSERT INTO users (name) SELECT $1 WHERE NOT EXISTS (SELECT FROM users WHERE name = $1)";
            let user = sqlx::query(user);
            user.bind(&moved.user).execute(&mut *tx).await.unwrap();
        }
        let rows: Vec<NewEvent> = moves.iter().map(|moved| NewEvent::of(MOVES, moved).unwrap()).collect();
        publish_rows(&mut *tx, &rows).await.unwrap();
        tx.commit().await.unwrap();
        self.published.extend(moves);
    }

    /// Freezes the owner after its effect, before its commit; returns until when its lease is good.
    async fn freeze(&mut self) -> OffsetDateTime {
        let owner = &mut self.owner;
        tokio::task::block_in_place(|| {
            assert_eq!(owner.hear(), "the effect is done");
            owner.freeze();
        });
        // What it does first when it is thawed.
        self.owner.tell("go on");
        let lease = sqlx::query_scalar("SELECT lease_until FROM eventloom.members WHERE owner = $1");
        lease.bind(&self.owner.owner).fetch_one(&self.pool).await.unwrap()
    }

    async fn until_all_done(&self) {
        let published = self.published.len() as i64;
        until("every effect", async || {
            let done = sqlx::query_scalar("SELECT count(DISTINCT (key, number)) FROM effects");
            let done: i64 = done.fetch_one(&self.pool).await.unwrap();
            (done == published).then_some(())
        })
        .await;
    }

    /// When the effect of a message was done, after all that it had to wait for; and by whom.
    async fn effect(&self, moved: &Moved) -> (OffsetDateTime, String) {
        let effect = sqlx::query("SELECT at, role FROM effects WHERE key = $1 AND number = $2");
        let row = effect.bind(&moved.key).bind(moved.number).fetch_one(&self.pool).await;
        let row = row.unwrap();
        (row.get(0), row.get(1))
    }

    /// Each message once, each key in order, and nothing set aside.
    async fn is_as_it_should_be(&self) {
        let effects = sqlx::query("SELECT key, number FROM effects ORDER BY seq");
        let mut of_key: HashMap<String, Vec<i32>> = HashMap::new();
        for row in effects.fetch_all(&self.pool).await.unwrap() {
            of_key.entry(row.get(0)).or_default().push(row.get(1));
        }
        let mut wanted: HashMap<String, Vec<i32>> = HashMap::new();
        for moved in &self.published {
            wanted.entry(moved.key.clone()).or_default().push(moved.number);
        }
        assert_eq!(of_key, wanted, "each once, in order");
        let number = async |sql| -> i64 { sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap() };
        assert_eq!(
            number("SELECT sum(moves) FROM users").await,
            self.published.len() as i64
        );
        assert_eq!(number("SELECT count(*) FROM eventloom.held").await, 0);
    }

    fn moves(&self, of: usize, numbers: std::ops::Range<i32>, stand_still: Option<i32>) -> Vec<Moved> {
        let keys = (0..KEYS).map(|nth| key_of(&self.lanes[of], nth));
        let all = keys.enumerate().flat_map(|(nth, key)| {
            numbers.clone().map(move |number| Moved {
                key: key.clone(),
                number,
                user: key.clone(),
                stand_still: nth == 0 && Some(number) == stand_still,
            })
        });
        all.collect()
    }
}

/// Nobody waits for its locks: its lanes are taken when its lease has run out, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_process_is_succeeded_and_its_commit_fails() {
    with_database("a frozen process", async |database| {
        let server = std::env::var(SERVER).unwrap();
        let mut scene = Scene::new(&database, &server, Role::Owner, Role::Successor).await;
        let mut moves = scene.moves(0, 0..8, Some(4));
        moves.extend(scene.moves(1, 0..8, None));
        let frozen_in = moves[4].clone();
        scene.publish(moves).await;
        let lease_until = scene.freeze().await;
        scene.until_all_done().await;
        let (at, by) = scene.effect(&frozen_in).await;
        assert_eq!(by, "Successor");
        assert!(at >= lease_until, "taken {} before the lease ended", lease_until - at);
        assert!(at <= lease_until + WITHIN, "taken {} after it", at - lease_until);

        scene.owner.thaw();
        // It comes back, gets lanes again, and works on them.
        scene.lanes = scene.shared().await;
        let mut more = scene.published.clone();
        more.retain(|moved| moved.number < 4);
        more.iter_mut().for_each(|moved| moved.number += 8);
        let key = key_of(&scene.lanes[0], NEW);
        more.push(Moved {
            user: key.clone(),
            key,
            number: 0,
            stand_still: false,
        });
        scene.publish(more).await;
        scene.until_all_done().await;
        scene.is_as_it_should_be().await;
        let worked = sqlx::query_scalar("SELECT count(*) FROM effects WHERE role = 'Owner' AND at > $1");
        let worked: i64 = worked.bind(at).fetch_one(&scene.pool).await.unwrap();
        assert!(worked > 0, "the thawed one works again");
        assert!(scene.owner.stop(), "its work was dropped");
        scene.successor.stop();
    })
    .await;
}

/// The frozen one holds a row that its successor's handlers need, for a key that was the successor's all along.
async fn a_shared_row_is_free_within(database: Database, server: &str, owner: Role, successor: Role) {
    let mut scene = Scene::new(&database, server, owner, successor).await;
    let [mut frozen_in, mut waits] =
        [scene.moves(0, 0..1, Some(0)), scene.moves(1, 0..1, None)].map(|moves| moves[0].clone());
    frozen_in.user = "shared".to_owned();
    waits.user = "shared".to_owned();
    scene.publish(vec![frozen_in.clone()]).await;
    let lease_until = scene.freeze().await;
    scene.publish(vec![waits.clone()]).await;
    scene.until_all_done().await;
    for moved in [&frozen_in, &waits] {
        let (at, by) = scene.effect(moved).await;
        assert_eq!(by, format!("{successor:?}"));
        assert!(at >= lease_until - LEASE / 2, "{moved:?}: it did not wait");
        assert!(
            at <= lease_until + WITHIN,
            "{moved:?}: {} after the lease",
            at - lease_until
        );
    }
    scene.owner.thaw();
    scene.lanes = scene.shared().await;
    until("nothing to be held", async || {
        let held = sqlx::query_scalar("SELECT count(*) FROM eventloom.held");
        let held: i64 = held.fetch_one(&scene.pool).await.unwrap();
        (held == 0).then_some(())
    })
    .await;
    scene.is_as_it_should_be().await;
    assert!(scene.owner.stop(), "its work was dropped");
    scene.successor.stop();
}

/// No time limit of the server does it here: the successor ends the frozen one's transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_a_frozen_process_is_freed_by_its_successor() {
    with_database("a frozen process with a row", async |database| {
        let server = std::env::var(SERVER).unwrap();
        a_shared_row_is_free_within(database, &server, Role::OwnerWithoutLimit, Role::Successor).await;
    })
    .await;
}

/// Behind a pooler no successor ends a transaction that is not its own: the server does, when it has stood idle for the
/// length of a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_a_frozen_process_is_freed_behind_a_pooler() {
    if database::url("a frozen process behind a pooler", POOLER).is_none() {
        return;
    }
    with_database("a frozen process behind a pooler", async |database| {
        let server = std::env::var(POOLER).unwrap();
        a_shared_row_is_free_within(database, &server, Role::OwnerPooled, Role::SuccessorPooled).await;
    })
    .await;
}
