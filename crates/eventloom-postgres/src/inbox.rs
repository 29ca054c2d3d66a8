//! What a consumer has handled: claims before, results after, nothing of the payload.

use crate::{error::while_doing, once, prune::micros, store::Postgres, store::Tables};
use eventloom_core::{
    ConsumerName, OffsetDateTime, StoreError, faults,
    ports::{Claim, EffectClaim, EffectRequest, Inbox, OnceClaim},
};
use sqlx::{PgConnection, Row, postgres::PgRow};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// In the order given, which is sorted. An id that another transaction is claiming is waited for.
const CLAIM: &str = "
INSERT INTO eventloom.inbox (consumer, id, handled_at)
SELECT $1, c.id, coalesce($3, clock_timestamp()) FROM unnest($2::text[]) WITH ORDINALITY c (id, nth) ORDER BY c.nth
ON CONFLICT DO NOTHING RETURNING id";
/// Of those that were there: a claim for a call that never finished is no handling. (The consumer was in another mode.)
const RECLAIM: &str = "
WITH unfinished AS (SELECT id FROM eventloom.inbox
                     WHERE consumer = $1 AND id = ANY($2) AND handled_at IS NULL ORDER BY id FOR UPDATE)
UPDATE eventloom.inbox i SET handled_at = coalesce($3, clock_timestamp()), effect_lane = NULL, effect_epoch = NULL
  FROM unfinished u WHERE i.consumer = $1 AND i.id = u.id AND i.handled_at IS NULL RETURNING i.id";
const RECORD: &str = "
UPDATE eventloom.inbox i SET result = r.result FROM unnest($2::text[], $3::text[]) r (id, result)
 WHERE i.consumer = $1 AND i.id = r.id";
const UNCLAIM: &str = "DELETE FROM eventloom.inbox WHERE consumer = $1 AND id = ANY($2)";
const RESULT_OF: &str = "
SELECT coalesce(result, 'null') FROM eventloom.inbox WHERE consumer = $1 AND id = $2 AND handled_at IS NOT NULL";

const CLAIM_EFFECTS: &str = "
INSERT INTO eventloom.inbox (consumer, id, effect_lane, effect_epoch)
SELECT $1, c.id, c.lane, c.epoch
  FROM unnest($2::text[], $3::smallint[], $4::bigint[]) WITH ORDINALITY c (id, lane, epoch, nth) ORDER BY c.nth
ON CONFLICT DO NOTHING RETURNING id";
/// Of those that were there, in a later statement. A claim is over with its epoch, and when its lane was handed over.
const LOOK_AT_EFFECTS: &str = "
SELECT i.id, i.handled_at IS NOT NULL, i.effect_lane,
       NOT EXISTS (SELECT FROM eventloom.cursors c
                    WHERE c.reader = $1 AND c.lane = i.effect_lane AND c.epoch = i.effect_epoch AND c.owner IS NOT NULL)
  FROM eventloom.inbox i WHERE i.consumer = $1 AND i.id = ANY($2) ORDER BY i.id FOR UPDATE OF i";
const TAKE_EFFECTS: &str = "
UPDATE eventloom.inbox i SET effect_lane = c.lane, effect_epoch = c.epoch
  FROM unnest($2::text[], $3::smallint[], $4::bigint[]) c (id, lane, epoch) WHERE i.consumer = $1 AND i.id = c.id";
const GIVE_UP_EFFECTS: &str = "
WITH given_up AS (SELECT * FROM unnest($2::text[], $3::smallint[], $4::bigint[]) g (id, lane, epoch)),
     locked AS (SELECT i.id FROM eventloom.inbox i JOIN given_up g USING (id)
                 WHERE i.consumer = $1 AND i.handled_at IS NULL AND i.effect_lane = g.lane AND i.effect_epoch = g.epoch
                 ORDER BY i.id FOR UPDATE OF i)
UPDATE eventloom.inbox i SET effect_lane = NULL, effect_epoch = NULL
  FROM locked l WHERE i.consumer = $1 AND i.id = l.id";
const FINISH_EFFECTS: &str = "
WITH results AS (SELECT * FROM unnest($2::text[], $3::text[]) r (id, result)),
     locked AS (SELECT i.id FROM eventloom.inbox i JOIN results r USING (id)
                 WHERE i.consumer = $1 ORDER BY i.id FOR UPDATE OF i)
UPDATE eventloom.inbox i SET result = r.result, handled_at = coalesce($4, clock_timestamp())
  FROM results r JOIN locked l USING (id) WHERE i.consumer = $1 AND i.id = r.id";

/// The time of the statement: that of the clock is no index condition.
const FORGET: &str = "
DELETE FROM eventloom.inbox i USING (
       SELECT id FROM eventloom.inbox
        WHERE consumer = $1 AND handled_at < coalesce($4, statement_timestamp()) - $2 * interval '1 microsecond'
        ORDER BY handled_at LIMIT $3 FOR UPDATE SKIP LOCKED) old
 WHERE i.consumer = $1 AND i.id = old.id";

impl Inbox for Postgres {
    async fn claim(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
        now: Option<OffsetDateTime>,
    ) -> Result<Vec<Claim>, StoreError> {
        let doing = while_doing("claiming messages");
        let query = self.query(CLAIM).bind(consumer.as_str()).bind(ids).bind(now);
        let mut new = ids_of(&query.fetch_all(&mut *connection).await.map_err(&doing)?).map_err(&doing)?;
        if new.len() < ids.len() {
            let known: Vec<&str> = ids.iter().copied().filter(|id| !new.contains(*id)).collect();
            let query = self.query(RECLAIM).bind(consumer.as_str()).bind(known).bind(now);
            new.extend(ids_of(&query.fetch_all(connection).await.map_err(&doing)?).map_err(&doing)?);
        }
        let claim = |id: &&str| if new.contains(*id) { Claim::New } else { Claim::Handled };
        Ok(ids.iter().map(claim).collect())
    }

    async fn record(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
    ) -> Result<(), StoreError> {
        // Locks nothing new: these rows were inserted by this transaction.
        let (ids, results): (Vec<&str>, Vec<&str>) = results.iter().copied().unzip();
        let query = self.query(RECORD).bind(consumer.as_str()).bind(ids).bind(results);
        query
            .execute(connection)
            .await
            .map_err(while_doing("storing results"))?;
        Ok(())
    }

    async fn unclaim(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<(), StoreError> {
        let query = self.query(UNCLAIM).bind(consumer.as_str()).bind(ids);
        query
            .execute(connection)
            .await
            .map_err(while_doing("taking claims back"))?;
        Ok(())
    }

    async fn result_of(&self, consumer: &ConsumerName, id: &str) -> Result<Option<String>, StoreError> {
        let doing = while_doing("looking for a stored result");
        let mut tx = self.own("looking for a stored result").await?;
        let query = self.query(RESULT_OF).bind(consumer.as_str()).bind(id);
        let row = query.fetch_optional(&mut *tx).await.map_err(&doing)?;
        row.map(|row| row.try_get(0)).transpose().map_err(doing)
    }

    async fn claim_effects(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
        _now: Option<OffsetDateTime>,
    ) -> Result<Vec<EffectClaim>, StoreError> {
        let doing = while_doing("claiming calls");
        let (ids, lanes, epochs) = effect_arrays(requests.iter());
        let query = self
            .query(CLAIM_EFFECTS)
            .bind(consumer.as_str())
            .bind(ids)
            .bind(lanes)
            .bind(epochs);
        let new = ids_of(&query.fetch_all(&mut *connection).await.map_err(&doing)?).map_err(&doing)?;
        let known: Vec<&str> = requests
            .iter()
            .map(|request| request.id)
            .filter(|id| !new.contains(*id))
            .collect();
        let mut found: HashMap<String, (bool, Option<i16>, bool)> = HashMap::new();
        if !known.is_empty() {
            let query = self.query(LOOK_AT_EFFECTS).bind(consumer.as_str()).bind(known);
            for row in query.fetch_all(&mut *connection).await.map_err(&doing)? {
                let effect = || Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)));
                let (id, state) = effect().map_err(&doing)?;
                found.insert(id, state);
            }
        }
        let claim = |request: &EffectRequest<'_>| match found.get(request.id) {
            None if new.contains(request.id) => EffectClaim::Call { again: false },
            Some((true, ..)) => EffectClaim::Handled,
            Some((_, lane, over)) if *over || *lane == Some(request.cursor.lane.0) => EffectClaim::Call { again: true },
            // Somebody else's, or forgotten between two statements: asked for again.
            _ => EffectClaim::InProgress,
        };
        let claims: Vec<EffectClaim> = requests.iter().map(claim).collect();
        let again = requests
            .iter()
            .zip(&claims)
            .filter(|(_, claim)| **claim == EffectClaim::Call { again: true });
        let (ids, lanes, epochs) = effect_arrays(again.map(|(request, _)| request));
        if !ids.is_empty() {
            let query = self
                .query(TAKE_EFFECTS)
                .bind(consumer.as_str())
                .bind(ids)
                .bind(lanes)
                .bind(epochs);
            query.execute(connection).await.map_err(doing)?;
        }
        Ok(claims)
    }

    async fn give_up_effects(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        requests: &[EffectRequest<'_>],
    ) -> Result<(), StoreError> {
        let (ids, lanes, epochs) = effect_arrays(requests.iter());
        let query = self.query(GIVE_UP_EFFECTS).bind(consumer.as_str()).bind(ids);
        query
            .bind(lanes)
            .bind(epochs)
            .execute(connection)
            .await
            .map_err(while_doing("giving calls up"))?;
        Ok(())
    }

    async fn finish_effects(
        &self,
        connection: &mut PgConnection,
        consumer: &ConsumerName,
        results: &[(&str, &str)],
        now: Option<OffsetDateTime>,
    ) -> Result<(), StoreError> {
        if faults::defect("effect_result_not_stored") {
            return Ok(());
        }
        let (ids, results): (Vec<&str>, Vec<&str>) = results.iter().copied().unzip();
        let query = self
            .query(FINISH_EFFECTS)
            .bind(consumer.as_str())
            .bind(ids)
            .bind(results)
            .bind(now);
        query
            .execute(connection)
            .await
            .map_err(while_doing("storing results of calls"))?;
        Ok(())
    }

    async fn forget_handled(
        &self,
        consumer: &ConsumerName,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut tx = self.own("forgetting handled messages").await?;
        let query = self
            .query(FORGET)
            .bind(consumer.as_str())
            .bind(micros(window))
            .bind(i64::from(rows_max))
            .bind(now);
        let forgotten = query
            .execute(&mut *tx)
            .await
            .map_err(while_doing("forgetting handled messages"))?;
        tx.commit_own().await?;
        Ok(forgotten.rows_affected())
    }

    async fn forget_once(
        &self,
        window: Duration,
        rows_max: u32,
        now: Option<OffsetDateTime>,
    ) -> Result<u64, StoreError> {
        let mut tx = self.own("forgetting keys of requests").await?;
        let forgotten = once::forget(
            eventloom_core::ports::Store::tables(self),
            &mut tx,
            window,
            rows_max,
            now,
        )
        .await
        .map_err(while_doing("forgetting keys of requests"))?;
        tx.commit_own().await?;
        Ok(forgotten)
    }

    async fn once_claim(
        tables: &Tables,
        connection: &mut PgConnection,
        scope: &ConsumerName,
        key: &str,
        fingerprint: &[u8],
    ) -> Result<OnceClaim, StoreError> {
        once::claim(tables, connection, scope, key, fingerprint)
            .await
            .map_err(while_doing("claiming a key"))
    }

    async fn once_record(
        tables: &Tables,
        connection: &mut PgConnection,
        scope: &ConsumerName,
        key: &str,
        result: &str,
    ) -> Result<(), StoreError> {
        once::record(tables, connection, scope, key, result)
            .await
            .map_err(while_doing("storing the result of a key"))
    }
}

fn ids_of(rows: &[PgRow]) -> Result<HashSet<String>, sqlx::Error> {
    rows.iter().map(|row| row.try_get(0)).collect()
}

fn effect_arrays<'a, 'b: 'a>(
    requests: impl Iterator<Item = &'a EffectRequest<'b>>,
) -> (Vec<&'a str>, Vec<i16>, Vec<i64>) {
    let mut arrays = (Vec::new(), Vec::new(), Vec::new());
    for request in requests {
        arrays.0.push(request.id);
        arrays.1.push(request.cursor.lane.0);
        arrays.2.push(request.cursor.epoch.0);
    }
    arrays
}
