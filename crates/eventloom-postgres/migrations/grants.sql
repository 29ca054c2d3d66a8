-- Roles of a log, to be given to the accounts of services.
-- Making roles needs CREATEROLE. What exists already is kept.

DO $do$ BEGIN
    IF to_regrole('eventloom_writer') IS NULL THEN
        CREATE ROLE eventloom_writer NOLOGIN;
    END IF;
    IF to_regrole('eventloom_reader') IS NULL THEN
        CREATE ROLE eventloom_reader NOLOGIN;
    END IF;
    IF to_regrole('eventloom_operator') IS NULL THEN
        CREATE ROLE eventloom_operator NOLOGIN;
    END IF;
END $do$;

-- A writer inserts. Sequences, functions and the other tables stay hidden from it.
GRANT USAGE ON SCHEMA eventloom TO eventloom_writer;
GRANT INSERT ON eventloom.outbox TO eventloom_writer;

-- A reader runs consumers: it follows the log, keeps its cursors, inbox and held messages, and prunes behind itself.
GRANT USAGE ON SCHEMA eventloom TO eventloom_reader;
GRANT SELECT, INSERT, DELETE ON eventloom.outbox TO eventloom_reader;
GRANT SELECT, UPDATE (pruned_to) ON eventloom.logs TO eventloom_reader;
GRANT SELECT ON eventloom.schema_versions TO eventloom_reader;
GRANT SELECT, INSERT, UPDATE, DELETE
    ON eventloom.readers, eventloom.members, eventloom.cursors, eventloom.inbox, eventloom.attempts,
       eventloom.held_keys, eventloom.held, eventloom.relays, eventloom.relayed
    TO eventloom_reader;
GRANT EXECUTE ON FUNCTION eventloom.outbox_doze(bigint, int) TO eventloom_reader;

-- An operator does what a reader does, and sees whose transaction holds the log back.
GRANT eventloom_reader TO eventloom_operator;
DO $do$ BEGIN
    GRANT pg_read_all_stats TO eventloom_operator;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'eventloom: an administrator must GRANT pg_read_all_stats, or operators see no foreign statements';
END $do$;
