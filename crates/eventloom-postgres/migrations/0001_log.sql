-- The log: what is inserted here is delivered, in one order, with nothing that was committed ever missing.
--
-- Sequence values are taken at INSERT and become visible at COMMIT, so "position > last" loses rows for ever. Here every
-- writer leaves a mark below the positions that it will take, for as long as its transaction lives; a reader goes no
-- further than the smallest mark. `eventloom` stands for the schema and 64 for the number of lanes wherever they occur.

CREATE TABLE eventloom.logs (
    name      text PRIMARY KEY,
    namespace int NOT NULL UNIQUE CHECK (namespace BETWEEN 1 AND 32767),
    identity  uuid NOT NULL DEFAULT gen_random_uuid(),
    lanes     int NOT NULL,
    pruned_to bigint NOT NULL DEFAULT 0
);
COMMENT ON COLUMN eventloom.logs.namespace IS 'upper 16 bits of the advisory locks that writers of this log hold; unique in the database';
COMMENT ON COLUMN eventloom.logs.identity IS 'renewed at restore or promotion';
COMMENT ON COLUMN eventloom.logs.pruned_to IS 'rows at or below are gone';

CREATE TABLE eventloom.outbox (
    position        bigint PRIMARY KEY DEFAULT 0,                           -- outbox_fence sets it, and the lane
    id              uuid NOT NULL DEFAULT gen_random_uuid(),
    topic           text NOT NULL,
    type            text NOT NULL,
    key             text,
    lane            smallint NOT NULL,
    source          text,
    subject         text,
    time            timestamptz NOT NULL DEFAULT now(),
    data            json,
    data_bytes      bytea,
    datacontenttype text,
    dataschema      text,
    schemaversion   int NOT NULL DEFAULT 1,
    correlationid   text,
    causationid     text,
    traceparent     text,
    tracestate      text,
    headers         json,
    origin          uuid,
    recorded_at     timestamptz NOT NULL DEFAULT now()                      -- outbox_fence sets it, too
) WITH (
    -- Rows are only ever inserted, and deleted at the far end. What vacuum has to do here is to freeze and to keep the
    -- visibility map, on a table of any size: so by rows inserted, not by a share of the table.
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000,
    autovacuum_analyze_scale_factor = 0.02
);
CREATE INDEX outbox_lane ON eventloom.outbox (lane, position);  -- for lanes that are far behind the others
CREATE SEQUENCE eventloom.outbox_position_seq OWNED BY eventloom.outbox.position;  -- CACHE 1: the fence counts on it
SELECT nextval('eventloom.outbox_position_seq');                -- burn one: a last value is then one that was handed out
CREATE SEQUENCE eventloom.outbox_asleep;                        -- its value: until when (epoch ms) some reader sleeps

-- Rows are facts: no UPDATE, no TRUNCATE, no position of one's own, and DELETE for the pruner alone.
CREATE FUNCTION eventloom.outbox_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'eventloom: % on % is not possible, rows of a log are facts', TG_OP, TG_TABLE_NAME USING ERRCODE = 'EV002';
END $$;
CREATE TRIGGER eventloom_facts BEFORE UPDATE OR TRUNCATE ON eventloom.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION eventloom.outbox_refuse();

-- The pruner says in a transaction-local setting that names its transaction that it is the pruner, so the permission
-- cannot be left behind in a session. It reads cursors in a later statement than its lock, which takes a later snapshot.
CREATE FUNCTION eventloom.outbox_guard_delete() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('eventloom_prune.t' || TG_ARGV[0], true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        RAISE EXCEPTION 'eventloom: DELETE on % is the pruner''s alone', TG_TABLE_NAME USING ERRCODE = 'EV002';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'eventloom: a log is pruned in READ COMMITTED' USING ERRCODE = 'EV001';
    END IF;
    RETURN NULL;
END $$;

-- The namespace is unique in the database, over all schemas. The triggers themselves are the register that every schema
-- can read; migrations run one at a time in a database (an advisory lock until their commit), so none is given twice.
--
-- outbox_fence runs for every row, so it is written for PL/pgSQL's cheap path: plain expressions and no SELECT (that goes
-- through the executor), few expressions (each is set up anew in every transaction), the namespace as a constant. A CHECK
-- or a generated column is read from its stored text anew in every statement; six and one of them cost more than twice of
-- all that this function does.
DO $do$
DECLARE
    free int;
BEGIN
    SELECT min(n) INTO free FROM generate_series(29801, 32767) n
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t
                        WHERE t.tgname = 'zz_eventloom_fence' AND t.tgargs = convert_to(n::text, 'UTF8') || decode('00', 'hex'));
    INSERT INTO eventloom.logs (name, namespace, lanes) VALUES ('outbox', free, 64 /* lanes */);
    EXECUTE replace(replace($row$
        CREATE FUNCTION eventloom.outbox_fence() RETURNS trigger
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
        DECLARE
            mark bigint;
            failed text;
            reason text;
        BEGIN
            -- The fence: before the first nextval a shared lock whose key says "every position that I take is above this".
            -- A transaction keeps its mark in a setting, so that all of its rows go under one lock; a rolled-back savepoint
            -- takes both along. What stands in the setting is not trusted: each row asks for the lock (which is had already,
            -- so that nothing but a look into a local table follows) and compares its position. The namespace is part of
            -- the name, or a transaction that writes to two logs would take no fence in the second.
            -- pg_sequence_last_value takes the buffer lock (a SELECT from a sequence can see a value up to 32 ahead: rows
            -- lost).
            mark := nullif(current_setting('eventloom_fence.m<namespace>', true), '')::bigint;
            IF mark IS NULL THEN
                mark := pg_sequence_last_value('eventloom.outbox_position_seq'::regclass);
                -- From left to right. The look for sleepers comes after the lock: a reader that falls asleep later than
                -- this look sees the lock and stays awake.
                IF pg_advisory_xact_lock_shared(<upper> | mark) IS NULL
                   OR set_config('eventloom_fence.m<namespace>', mark::text, true) IS NULL
                   OR pg_sequence_last_value('eventloom.outbox_asleep'::regclass)
                      > date_part('epoch', clock_timestamp()) * 1000 THEN
                    IF mark IS NULL THEN
                        RAISE EXCEPTION 'eventloom: the outbox has no fence' USING ERRCODE = 'EV005';
                    END IF;
                    -- NOTIFY serialises commits, so only while somebody sleeps.
                    PERFORM pg_notify(TG_TABLE_SCHEMA || '_' || TG_TABLE_NAME, '');
                END IF;
            END IF;
            IF (pg_advisory_xact_lock_shared(<upper> | mark) IS NOT NULL
                AND current_setting('synchronous_commit') <> 'off'
                AND NEW.position = 0
                AND octet_length(NEW.topic) BETWEEN 1 AND 249 AND NEW.topic !~ '[^a-zA-Z0-9._-]'
                AND NEW.type <> ''
                AND (NEW.key IS NULL OR octet_length(NEW.key) <= 2048)
                AND NEW.time BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59.999999Z'
                AND (NEW.headers IS NULL OR json_typeof(NEW.headers) = 'object')
                AND (NEW.data IS NULL OR NEW.data_bytes IS NULL)) IS NOT TRUE THEN
                -- A row of a log must not be visible before it is durable.
                IF current_setting('synchronous_commit') = 'off' THEN
                    PERFORM set_config('synchronous_commit', 'on', true);
                END IF;
                -- What readers cannot read, or keys not be held by (an index of held keys takes 2048 octets), stops here.
                IF octet_length(NEW.topic) NOT BETWEEN 1 AND 249 OR NEW.topic ~ '[^a-zA-Z0-9._-]' THEN
                    failed := 'topic';
                    reason := format('the topic %L is not 1 to 249 of the characters A-Z a-z 0-9 . _ -',
                                     left(NEW.topic, 100));
                ELSIF NEW.type = '' THEN
                    failed := 'type';
                    reason := 'the type is empty';
                ELSIF octet_length(NEW.key) > 2048 THEN
                    failed := 'key';
                    reason := format('the key has %s bytes, at most 2048 are possible', octet_length(NEW.key));
                ELSIF NEW.time NOT BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59.999999Z' THEN
                    failed := 'time';
                    reason := format('the time %s is not between the years 1 and 9999', NEW.time);
                ELSIF json_typeof(NEW.headers) <> 'object' THEN
                    failed := 'headers';
                    reason := format('headers is a JSON %s, not an object', json_typeof(NEW.headers));
                ELSIF NEW.data IS NOT NULL AND NEW.data_bytes IS NOT NULL THEN
                    failed := 'data';
                    reason := 'both data and data_bytes are given';
                ELSIF NEW.position <> 0 THEN
                    IF current_setting('session_replication_role') <> 'replica' THEN
                        RAISE EXCEPTION 'eventloom: position % is not handed out to you; leave the column out', NEW.position
                            USING ERRCODE = 'EV003';
                    END IF;
                    -- A restore keeps its positions and times.
                    NEW.lane := ('x' || left(md5(coalesce(nullif(NEW.key, ''), NEW.id::text)), 8))::bit(32)::bigint
                                % 64 /* lanes */;
                    RETURN NEW;
                END IF;
                IF failed IS NOT NULL THEN
                    RAISE EXCEPTION 'eventloom: %', reason USING ERRCODE = 'check_violation',
                        SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = failed,
                        CONSTRAINT = format('%s_%s_check', TG_TABLE_NAME, failed);
                END IF;
                -- Else the position is NULL, which is as good as not given, or a column is missing, which NOT NULL will name.
            END IF;
            NEW.position := nextval('eventloom.outbox_position_seq'::regclass);
            IF NEW.position <= mark OR mark < 0 THEN
                RAISE EXCEPTION 'eventloom: the fence of this transaction was meddled with' USING ERRCODE = 'EV005';
            END IF;
            NEW.lane := ('x' || left(md5(coalesce(nullif(NEW.key, ''), NEW.id::text)), 8))::bit(32)::bigint % 64 /* lanes */;
            NEW.recorded_at := clock_timestamp();
            RETURN NEW;
        END $$ $row$, '<namespace>', free::text), '<upper>', (free::bigint << 48)::text);

    -- BEFORE triggers run in the order of their names: this one last, so that the lane is that of the key as it is stored.
    EXECUTE format('CREATE TRIGGER zz_eventloom_fence BEFORE INSERT ON eventloom.outbox '
                   'FOR EACH ROW EXECUTE FUNCTION eventloom.outbox_fence(%L)', free);
    EXECUTE format('CREATE TRIGGER eventloom_prune BEFORE DELETE ON eventloom.outbox '
                   'FOR EACH STATEMENT EXECUTE FUNCTION eventloom.outbox_guard_delete(%L)', free);
END $do$;
ALTER TABLE eventloom.outbox ENABLE ALWAYS TRIGGER zz_eventloom_fence;  -- also under session_replication_role = replica

-- The reader. Everything at or below the horizon is either visible to the next snapshot or will never exist: a writer that
-- (2) does not see has either ended, and is visible to a later snapshot, or takes its positions after (1).
-- classid carries the namespace (upper 16 bits) and the upper half of the mark, objid the lower half.
CREATE FUNCTION eventloom.outbox_horizon(OUT horizon bigint, OUT handed_out bigint, OUT in_flight boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    log_namespace bigint;
    lowest_mark bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'eventloom: a log is read on the primary, this is a standby' USING ERRCODE = 'EV001';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'eventloom: a log is read in READ COMMITTED, this transaction is %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'EV001';
    END IF;
    SELECT namespace INTO log_namespace FROM eventloom.logs WHERE name = 'outbox';
    handed_out := pg_sequence_last_value('eventloom.outbox_position_seq'::regclass);                     -- (1)
    IF handed_out IS NULL OR log_namespace IS NULL THEN
        RAISE EXCEPTION 'eventloom: the outbox has no fence' USING ERRCODE = 'EV005';
    END IF;
    SELECT min(((classid::bigint << 32) | objid::bigint) & ((1::bigint << 48) - 1)) INTO lowest_mark     -- (2)
      FROM pg_locks
     WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint >> 16) = log_namespace AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    horizon := least(handed_out, lowest_mark);
    in_flight := lowest_mark IS NOT NULL;
END $$;

-- Asks writers to notify for a while, then says whether it is safe to sleep: 0 yes, 1 rows are there, 2 a writer is
-- in flight. Nobody takes the request back, so several readers share it and it dies with the last of them. No commit is
-- slept through: a writer that locks after (2) above looks at the request after it was made; one that locked before is seen
-- in flight, or has ended and its rows are seen; and one that did all of it in between has moved the last value.
CREATE FUNCTION eventloom.outbox_doze(seen bigint, milliseconds int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state record;
BEGIN
    -- Never back: somebody else may have asked for longer. One at a time, or the lesser of two could come last.
    PERFORM pg_advisory_xact_lock(29800, 'eventloom.outbox_asleep'::regclass::oid::int);
    PERFORM setval('eventloom.outbox_asleep'::regclass,
        greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint + least(greatest(milliseconds, 0), 60000),
                 pg_sequence_last_value('eventloom.outbox_asleep'::regclass)));
    state := eventloom.outbox_horizon();
    IF EXISTS (SELECT FROM eventloom.outbox WHERE position > seen AND position <= state.horizon) THEN
        RETURN 1;
    END IF;
    IF state.in_flight OR pg_sequence_last_value('eventloom.outbox_position_seq'::regclass) <> state.handed_out THEN
        RETURN 2;
    END IF;
    RETURN 0;
END $$;

-- The reader for other languages: no more than our own, and with its refusals.
CREATE FUNCTION eventloom.read_after(log text, after bigint, max_rows int DEFAULT 1000) RETURNS SETOF eventloom.outbox
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state record;
    gone bigint;
BEGIN
    IF log IS DISTINCT FROM 'outbox' THEN
        RAISE EXCEPTION 'eventloom: no log is named %', log USING ERRCODE = 'EV006';
    END IF;
    IF after IS NULL OR max_rows IS NULL THEN
        RAISE EXCEPTION 'eventloom: read_after needs a position and a number of rows' USING ERRCODE = 'EV006';
    END IF;
    state := eventloom.outbox_horizon();
    RETURN QUERY                                                     -- only now, with a later snapshot
        SELECT * FROM eventloom.outbox o
         WHERE o.position > after AND o.position <= state.horizon ORDER BY o.position LIMIT max_rows;
    SELECT l.pruned_to INTO gone FROM eventloom.logs l WHERE l.name = 'outbox';     -- after the rows, or a gap is silent
    IF after < gone THEN
        RAISE EXCEPTION 'eventloom: position % lies below %, up to which this log was pruned', after, gone
            USING ERRCODE = 'EV004';
    END IF;
END $$;

-- The position before the first row inserted at or after a time. Insert times follow positions but for writers that
-- overlap, so the halving looks for a second earlier and the rest is read forward. Never above the horizon: what is in
-- flight below the first row that is visible may be as young.
CREATE FUNCTION eventloom.outbox_position_at(at timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state record;
    low bigint;
    high bigint;
    middle bigint;
    probe record;
BEGIN
    state := eventloom.outbox_horizon();
    SELECT l.pruned_to INTO low FROM eventloom.logs l WHERE l.name = 'outbox';
    high := state.horizon;
    WHILE low < high LOOP                                            -- at most 48 times
        middle := low + (high - low) / 2;
        SELECT o.position, o.recorded_at INTO probe FROM eventloom.outbox o
         WHERE o.position > middle AND o.position <= high ORDER BY o.position LIMIT 1;
        IF FOUND AND probe.recorded_at < at - interval '1 second' THEN
            low := probe.position;
        ELSE
            high := middle;
        END IF;
    END LOOP;
    SELECT o.position INTO probe FROM eventloom.outbox o
     WHERE o.position > low AND o.position <= state.horizon AND o.recorded_at >= at ORDER BY o.position LIMIT 1;
    RETURN CASE WHEN FOUND THEN probe.position - 1 ELSE state.horizon END;
END $$;

REVOKE EXECUTE ON FUNCTION eventloom.outbox_doze(bigint, int) FROM PUBLIC;
