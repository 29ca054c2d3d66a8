-- Who follows the log, how far each has come, what it has handled, and what it has set aside.
--
-- Keys and ids are compared by bytes (COLLATE "C"): that is the order in which our programs sort before they lock, and
-- the cheaper comparison.

CREATE TABLE eventloom.readers (
    name       text COLLATE "C" PRIMARY KEY,
    log        text NOT NULL DEFAULT 'outbox' REFERENCES eventloom.logs (name),
    paused     boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The lease: one for each instance and reader, renewed a few times a second at most by each. Few rows, ever rewritten:
-- room for HOT updates, and vacuum by count, since a share of a few rows is less than one.
CREATE TABLE eventloom.members (
    reader      text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (reader, owner)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- One row for each reader and lane, rewritten by every batch: half of each page is left free so that a new version fits
-- beside the old one (HOT), where the next update of the page prunes it. No index but the key, or no update would be HOT.
CREATE TABLE eventloom.cursors (
    reader    text COLLATE "C" NOT NULL,
    lane      smallint NOT NULL,
    position  bigint NOT NULL,
    owner     text COLLATE "C",
    epoch     bigint NOT NULL DEFAULT 0,
    batch_end bigint NOT NULL DEFAULT 0,
    confirmed bigint,                                               -- of a relay: the last that its broker has confirmed
    PRIMARY KEY (reader, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What a consumer has handled. Grows with every message and is forgotten at the far end of its window, so vacuum goes by
-- rows and not by a share of a table that may be large. The free tenth is for stored results, which rewrite a row once.
CREATE TABLE eventloom.inbox (
    consumer     text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    handled_at   timestamptz,
    result       text,
    effect_lane  smallint,
    effect_epoch bigint,
    request      bytea,
    PRIMARY KEY (consumer, id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
        autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX inbox_handled ON eventloom.inbox (consumer, handled_at) WHERE handled_at IS NOT NULL;  -- for forgetting
CREATE INDEX inbox_once ON eventloom.inbox (handled_at) WHERE request IS NOT NULL;  -- the same for keys of requests

-- Both ends of relays: which broker has confirmed what cursors say, and what has come here from other logs. Rewritten by
-- every batch, as cursors are.
CREATE TABLE eventloom.relays (
    reader text COLLATE "C" PRIMARY KEY,
    broker uuid NOT NULL
);
CREATE TABLE eventloom.relayed (
    origin   uuid NOT NULL,
    reader   text COLLATE "C" NOT NULL,
    lane     smallint NOT NULL,
    epoch    bigint NOT NULL,
    position bigint NOT NULL,
    id       text COLLATE "C" NOT NULL,
    PRIMARY KEY (origin, reader, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE eventloom.attempts (
    consumer text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    attempts int NOT NULL,
    PRIMARY KEY (consumer, id)
);

CREATE TABLE eventloom.held_keys (
    consumer text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    source   text COLLATE "C" NOT NULL DEFAULT 'outbox',
    lane     smallint NOT NULL,
    held_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, source, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX held_keys_lane ON eventloom.held_keys (consumer, lane, key);

-- Messages set aside, raw. During an outage rows come and go by the thousand and each is rewritten at every attempt, so
-- pages keep room, and vacuum goes by rows.
CREATE TABLE eventloom.held (
    consumer        text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,
    source          text COLLATE "C" NOT NULL DEFAULT 'outbox',
    position        bigint NOT NULL,
    lane            smallint NOT NULL,
    topic           text NOT NULL,
    type            text NOT NULL,
    key             text COLLATE "C",
    event_source    text,
    subject         text,
    time            timestamptz NOT NULL,
    data            text,
    data_bytes      bytea,
    datacontenttype text,
    dataschema      text,
    schemaversion   int NOT NULL,
    correlationid   text,
    causationid     text,
    traceparent     text,
    tracestate      text,
    headers         text,
    origin          uuid,
    queued          boolean NOT NULL,
    state           text COLLATE "C" NOT NULL CHECK (state IN ('waiting', 'dead')),
    attempts        int NOT NULL DEFAULT 0,
    due_at          timestamptz,
    taken_epoch     bigint,
    redrives        int NOT NULL DEFAULT 0,
    error           text,
    fingerprint     text,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    held_at         timestamptz NOT NULL,
    held_by         text NOT NULL,
    PRIMARY KEY (consumer, id),
    CHECK (NOT queued OR key IS NOT NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        autovacuum_analyze_scale_factor = 0.05);
COMMENT ON COLUMN eventloom.held.due_at IS 'null behind the head of a key''s queue, and for the dead';
CREATE INDEX held_due ON eventloom.held (consumer, lane, due_at) WHERE state = 'waiting' AND due_at IS NOT NULL;
CREATE INDEX held_key ON eventloom.held (consumer, key, queued, position);
CREATE INDEX held_lane ON eventloom.held (consumer, lane);
CREATE INDEX held_state ON eventloom.held (consumer, state, id);
CREATE INDEX held_first_dead ON eventloom.held (consumer, first_failed_at) WHERE state = 'dead';
CREATE INDEX held_last_failed ON eventloom.held (consumer, state, last_failed_at) WHERE last_failed_at IS NOT NULL;
