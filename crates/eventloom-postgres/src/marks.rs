//! Marks before a batch whose marks have not ridden on the commit before it: one round trip between a message and its handler.

use crate::{
    error::{while_committing, while_doing},
    leases::arrays,
    store::Postgres,
};
use eventloom_core::{
    ConsumerName, Position, faults,
    ports::{Cursor, FenceError},
};

/// One round trip, which begins no transaction and so has to bring its settings along. Unflushed it is lost only
/// with the server.
const MARK_ALONE: &str = "
WITH set AS MATERIALIZED
     (SELECT set_config('synchronous_commit', CASE WHEN NOT $5 THEN 'off' WHEN current_setting('synchronous_commit') = 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true),
             set_config('lock_timeout', coalesce($6, current_setting('lock_timeout')), true)),
     marks AS (SELECT m.* FROM set, unnest($2::smallint[], $3::bigint[], $4::bigint[]) m (lane, epoch, batch_end)),
     locked AS (SELECT c.lane FROM eventloom.cursors c JOIN marks m USING (lane)
                 WHERE c.reader = $1 AND c.epoch = m.epoch ORDER BY c.lane FOR UPDATE OF c)
UPDATE eventloom.cursors c SET batch_end = greatest(c.batch_end, m.batch_end)
  FROM marks m JOIN locked l USING (lane)
 WHERE c.reader = $1 AND c.lane = m.lane AND c.epoch = m.epoch AND (SELECT count(*) FROM locked) = cardinality($2)";
/// The same for a single lane, which is planned once and for all.
const MARK_ONE_ALONE: &str = "
UPDATE eventloom.cursors SET batch_end = greatest(batch_end, $4)
 WHERE reader = $1 AND lane = $2 AND epoch = $3
   AND set_config('synchronous_commit', CASE WHEN NOT $5 THEN 'off' WHEN current_setting('synchronous_commit') = 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) <> ''";
impl Postgres {
    pub(crate) async fn mark_at_once(
        &self,
        reader: &ConsumerName,
        marks: &[(Cursor, Position)],
        flushed: bool,
    ) -> Result<(), FenceError> {
        let query = if let ([(cursor, end)], None) = (marks, self.lock_timeout_setting()) {
            let query = self.query(MARK_ONE_ALONE).bind(reader.as_str());
            query.bind(cursor.lane.0).bind(cursor.epoch.0).bind(end.0).bind(flushed)
        } else {
            let (lanes, epochs) = arrays(marks.iter().map(|(cursor, _)| cursor));
            let ends: Vec<i64> = marks.iter().map(|(_, end)| end.0).collect();
            let query = self.query(MARK_ALONE).bind(reader.as_str()).bind(lanes).bind(epochs);
            query.bind(ends).bind(flushed).bind(self.lock_timeout_setting())
        };
        let connection = self.pool().acquire().await;
        let mut connection = connection.map_err(while_doing("recording the end of a batch"))?;
        let marked = query.execute(&mut *connection).await.map_err(while_committing)?;
        match marked.rows_affected() == marks.len() as u64 || faults::defect("no_epoch_check") {
            true => Ok(()),
            false => Err(FenceError::Fenced),
        }
    }
}
