//! What a consumer has handled. A claim is a row that its transaction's rollback takes away.

use crate::{
    Sqlite, Tables,
    error::failed,
    once,
    rows::{array, bound, now, span},
};
use eventloom_core::{
    ConsumerName, OffsetDateTime, StoreError, faults,
    ports::{Claim, EffectClaim, EffectRequest, Inbox, OnceClaim},
};
use serde_json::json;
use sqlx::SqliteConnection;
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// A claim of effect mode that was never finished is no handling: it is taken over.
const CLAIM: &str = concat!(
    "INSERT INTO eventloom_inbox (consumer, id, handled_at) SELECT ?1, value, ",
    now!("?3"),
    " FROM json_each(?2) WHERE true ON CONFLICT (consumer, id) DO UPDATE \
      SET handled_at = excluded.handled_at, effect_lane = NULL, effect_epoch = NULL \
      WHERE eventloom_inbox.handled_at IS NULL RETURNING id"
);
/// An UPDATE with these rows in its FROM goes through all that the consumer has handled; an upsert goes by the key.
const RECORD: &str = concat!(
    "INSERT INTO eventloom_inbox (consumer, id, handled_at, result) SELECT ?1, value ->> 0, ",
    now!("NULL"),
    ", value ->> 1 FROM json_each(?2) WHERE true ON CONFLICT (consumer, id) DO UPDATE SET result = excluded.result"
);
const UNCLAIM: &str = "DELETE FROM eventloom_inbox WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))";
const RESULT: &str = "SELECT coalesce(result, 'null') FROM eventloom_inbox \
                      WHERE consumer = ?1 AND id = ?2 AND handled_at IS NOT NULL";
/// Whether a claim that was not finished stands: it is over with its epoch, and when its lane was handed over.
const EFFECTS: &str = "SELECT i.id, i.handled_at IS NOT NULL, i.effect_lane, EXISTS ( \
         SELECT 1 FROM eventloom_cursors c \
         WHERE c.reader = i.consumer AND c.lane = i.effect_lane AND c.epoch = i.effect_epoch AND c.owner IS NOT NULL \
     ) FROM eventloom_inbox i WHERE i.consumer = ?1 AND i.id IN (SELECT value FROM json_each(?2))";
const CLAIM_EFFECTS: &str = "INSERT INTO eventloom_inbox (consumer, id, effect_lane, effect_epoch) \
                             SELECT ?1, value ->> 0, value ->> 1, value ->> 2 FROM json_each(?2) WHERE true \
                             ON CONFLICT (consumer, id) DO UPDATE \
                             SET effect_lane = excluded.effect_lane, effect_epoch = excluded.effect_epoch";
const GIVE_UP_EFFECTS: &str = "UPDATE eventloom_inbox SET effect_lane = NULL, effect_epoch = NULL \
     WHERE consumer = ?1 AND id IN (SELECT value ->> 0 FROM json_each(?2)) AND handled_at IS NULL \
       AND EXISTS (SELECT 1 FROM json_each(?2) WHERE value ->> 0 = eventloom_inbox.id AND value ->> 1 = effect_lane \
                                                 AND value ->> 2 = effect_epoch)";
const FINISH_EFFECTS: &str = concat!(
    "INSERT INTO eventloom_inbox (consumer, id, handled_at, result) SELECT ?1, value ->> 0, ",
    now!("?3"),
    ", value ->> 1 FROM json_each(?2) WHERE true ON CONFLICT (consumer, id) DO UPDATE \
      SET handled_at = excluded.handled_at, result = excluded.result, effect_lane = NULL, effect_epoch = NULL"
);
const FORGET: &str = concat!(
    "DELETE FROM eventloom_inbox WHERE consumer = ?1 AND id IN ( \
         SELECT id FROM eventloom_inbox WHERE consumer = ?1 AND handled_at IS NOT NULL AND handled_at < ",
    now!("?4"),
    " - ?2 ORDER BY handled_at LIMIT ?3)"
);

pub(crate) const STATEMENTS: &[(&str, &str)] = &[
    ("inbox.claim", CLAIM),
    ("inbox.record", RECORD),
    ("inbox.unclaim", UNCLAIM),
    ("inbox.result", RESULT),
    ("inbox.effects", EFFECTS),
    ("inbox.claim_effects", CLAIM_EFFECTS),
    ("inbox.give_up_effects", GIVE_UP_EFFECTS),
    ("inbox.finish_effects", FINISH_EFFECTS),
    ("inbox.forget", FORGET),
    ("inbox.once_claim", once::CLAIM),
    ("inbox.once_look", once::LOOK),
    ("inbox.once_record", once::RECORD),
    ("inbox.once_forget", once::FORGET),
];

impl Inbox for Sqlite {
    async fn claim(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> Result<Vec<Claim>, StoreError> {
        let claim = sqlx::query_scalar(CLAIM)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()));
        let new: Vec<String> = claim
            .bind(bound(now))
            .fetch_all(connection)
            .await
            .map_err(failed("claiming messages"))?;
        let new: HashSet<String> = new.into_iter().collect();
        Ok(ids
            .iter()
            .map(|id| if new.contains(*id) { Claim::New } else { Claim::Handled })
            .collect())
    }

    async fn record(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
    ) -> Result<(), StoreError> {
        if results.is_empty() {
            return Ok(());
        }
        let record = sqlx::query(RECORD).bind(consumer.as_str()).bind(pairs(results));
        record.execute(connection).await.map_err(failed("storing results"))?;
        Ok(())
    }

    async fn unclaim(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<(), StoreError> {
        let unclaim = sqlx::query(UNCLAIM)
            .bind(consumer.as_str())
            .bind(array(ids.iter().copied()));
        unclaim
            .execute(connection)
            .await
            .map_err(failed("taking claims back"))?;
        Ok(())
    }

    async fn result_of(&self, consumer: &ConsumerName, id: &str) -> Result<Option<String>, StoreError> {
        let result = sqlx::query_scalar(RESULT).bind(consumer.as_str()).bind(id);
        result
            .fetch_optional(&self.0.pool)
            .await
            .map_err(failed("looking for a stored result"))
    }

    async fn claim_effects(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
        _now: Option<OffsetDateTime>,
    ) -> Result<Vec<EffectClaim>, StoreError> {
        let claiming = failed("claiming calls");
        let ids = array(requests.iter().map(|request| request.id));
        let look = sqlx::query_as(EFFECTS).bind(consumer.as_str()).bind(ids);
        let rows: Vec<(String, bool, Option<i16>, bool)> = look.fetch_all(&mut *connection).await.map_err(claiming)?;
        let there: HashMap<&str, _> = rows
            .iter()
            .map(|(id, handled, lane, live)| (&**id, (*handled, *lane, *live)))
            .collect();
        let claims: Vec<EffectClaim> = requests
            .iter()
            .map(|request| match there.get(request.id) {
                None => EffectClaim::Call { again: false },
                Some((true, ..)) => EffectClaim::Handled,
                Some((_, lane, true)) if *lane != Some(request.cursor.lane.0) => EffectClaim::InProgress,
                Some(_) => EffectClaim::Call { again: true },
            })
            .collect();
        let called = requests
            .iter()
            .zip(&claims)
            .filter(|(_, claim)| matches!(claim, EffectClaim::Call { .. }));
        let called = requested(called.map(|(request, _)| request));
        let claim = sqlx::query(CLAIM_EFFECTS).bind(consumer.as_str()).bind(called);
        claim.execute(connection).await.map_err(claiming)?;
        Ok(claims)
    }

    async fn give_up_effects(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
    ) -> Result<(), StoreError> {
        let give_up = sqlx::query(GIVE_UP_EFFECTS)
            .bind(consumer.as_str())
            .bind(requested(requests));
        give_up.execute(connection).await.map_err(failed("giving calls up"))?;
        Ok(())
    }

    async fn finish_effects(
        &self,
        connection: &mut SqliteConnection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
        now: Option<OffsetDateTime>,
    ) -> Result<(), StoreError> {
        if results.is_empty() || faults::defect("effect_result_not_stored") {
            return Ok(());
        }
        let finish = sqlx::query(FINISH_EFFECTS)
            .bind(consumer.as_str())
            .bind(pairs(results))
            .bind(bound(now));
        finish
            .execute(connection)
            .await
            .map_err(failed("storing results of calls"))?;
        Ok(())
    }

    async fn forget_handled(
        &self,
        consumer: &ConsumerName,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut tx = self.begin_write().await?;
        let forget = sqlx::query(FORGET)
            .bind(consumer.as_str())
            .bind(span(window))
            .bind(rows_max)
            .bind(bound(now));
        let forgotten = forget
            .execute(&mut *tx)
            .await
            .map_err(failed("forgetting handled messages"))?
            .rows_affected();
        tx.commit().await?;
        Ok(forgotten)
    }

    async fn forget_once(
        &self,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut tx = self.begin_write().await?;
        let forgotten = once::forget(&mut tx, window, rows_max, now).await?;
        tx.commit().await?;
        Ok(forgotten)
    }

    async fn once_claim(
        _tables: &Tables,
        connection: &mut SqliteConnection,
        scope: &ConsumerName,
        key: &str,
        fingerprint: &[u8],
    ) -> Result<OnceClaim, StoreError> {
        once::claim(connection, scope, key, fingerprint).await
    }

    async fn once_record(
        _tables: &Tables,
        connection: &mut SqliteConnection,
        scope: &ConsumerName,
        key: &str,
        result: &str,
    ) -> Result<(), StoreError> {
        once::record(connection, scope, key, result).await
    }
}

fn requested<'a, 'b: 'a>(requests: impl IntoIterator<Item = &'a EffectRequest<'b>>) -> String {
    let requests = requests.into_iter();
    array(requests.map(|EffectRequest { id, cursor }| json!([id, cursor.lane.0, cursor.epoch.0])))
}

fn pairs(pairs: &[(&str, &str)]) -> String {
    array(pairs.iter().map(|(id, result)| json!([id, result])))
}
