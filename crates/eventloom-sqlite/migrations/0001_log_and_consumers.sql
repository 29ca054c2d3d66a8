-- The log, its readers, the inbox and held messages.
--
-- Whoever opens this file with another program must be able to insert, so nothing that is stored in the schema (defaults,
-- checks, triggers, partial indexes) uses a function younger than SQLite 3.31. Times are microseconds since 1970, UTC;
-- the database's own clock counts milliseconds.

CREATE TABLE eventloom_schema_versions (
    version     INTEGER PRIMARY KEY,
    min_program INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    applied_at  INTEGER NOT NULL
                DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)
);

CREATE TABLE eventloom_logs (
    name      TEXT    NOT NULL PRIMARY KEY,
    identity  TEXT    NOT NULL,
    lanes     INTEGER NOT NULL CHECK (lanes BETWEEN 1 AND 16384),
    pruned_to INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- A service in any language writes with INSERT INTO eventloom_outbox (topic, type, key, data) VALUES (…).
-- There is one writer at a time, so the order of AUTOINCREMENT is the order of commits: no fence and no horizon.
CREATE TABLE eventloom_outbox (
    position        INTEGER PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL
                    DEFAULT (lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
                             || '-' || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2)
                             || '-' || hex(randomblob(6)))),
    topic           TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    key             TEXT,
    source          TEXT,
    subject         TEXT,
    time            INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    data            TEXT,
    data_bytes      BLOB,
    datacontenttype TEXT,
    dataschema      TEXT,
    schemaversion   INTEGER NOT NULL DEFAULT 1,
    correlationid   TEXT,
    causationid     TEXT,
    traceparent     TEXT,
    tracestate      TEXT,
    headers         TEXT,
    origin          TEXT,
    recorded_at     INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    -- The largest position that there is would be the last one for ever: AUTOINCREMENT counts on from it.
    CONSTRAINT eventloom_position_leaves_room_for_others CHECK (position < 4611686018427387904),
    CONSTRAINT eventloom_id_is_a_uuid_in_lower_case CHECK (
        length(id) = 36 AND id GLOB '????????-????-????-????-????????????'
        AND length(replace(id, '-', '')) = 32 AND replace(id, '-', '') NOT GLOB '*[^0-9a-f]*'),
    CONSTRAINT eventloom_topic_is_1_to_249_of_a_z_0_9_dot_underscore_dash CHECK (
        length(topic) BETWEEN 1 AND 249 AND topic NOT GLOB '*[^a-zA-Z0-9._-]*'),
    CONSTRAINT eventloom_type_is_not_empty CHECK (trim(type) <> ''),
    CONSTRAINT eventloom_text_has_no_nul CHECK (
        instr(type, char(0)) = 0 AND instr(coalesce(key, ''), char(0)) = 0),
    CONSTRAINT eventloom_one_of_data_and_data_bytes CHECK (data IS NULL OR data_bytes IS NULL),
    CONSTRAINT eventloom_data_is_json CHECK (data IS NULL OR (typeof(data) = 'text' AND json_valid(data))),
    CONSTRAINT eventloom_data_bytes_is_a_blob CHECK (data_bytes IS NULL OR typeof(data_bytes) = 'blob'),
    CONSTRAINT eventloom_headers_is_a_json_object CHECK (
        headers IS NULL OR CASE WHEN json_valid(headers) THEN json_type(headers) = 'object' ELSE 0 END),
    CONSTRAINT eventloom_time_is_microseconds CHECK (
        typeof(time) = 'integer' AND time BETWEEN -62135596800000000 AND 253402300799999999
        AND typeof(recorded_at) = 'integer' AND recorded_at BETWEEN 0 AND 253402300799999999),
    CONSTRAINT eventloom_schemaversion_is_an_int CHECK (
        typeof(schemaversion) = 'integer' AND schemaversion BETWEEN -2147483648 AND 2147483647),
    CONSTRAINT eventloom_origin_is_a_uuid CHECK (
        origin IS NULL OR origin GLOB '????????-????-????-????-????????????')
);

-- One row. Open only inside the pruner's transaction: nobody else ever sees it so.
CREATE TABLE eventloom_pruning (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    open INTEGER NOT NULL DEFAULT 0
);
INSERT INTO eventloom_pruning (one) VALUES (1);

CREATE TRIGGER eventloom_outbox_no_update BEFORE UPDATE ON eventloom_outbox
BEGIN
    SELECT RAISE(ABORT, 'eventloom: UPDATE of eventloom_outbox is not possible, rows of a log are facts');
END;

CREATE TRIGGER eventloom_outbox_no_delete BEFORE DELETE ON eventloom_outbox
WHEN (SELECT open FROM eventloom_pruning WHERE one = 1) IS NOT 1
BEGIN
    SELECT RAISE(ABORT, 'eventloom: DELETE from eventloom_outbox is for the pruner alone, rows of a log are facts');
END;

-- sqlite_sequence is written at the end of a statement, so here it still holds the last position before the statement.
-- A position at or below it is one that readers may have passed. INSERT OR REPLACE fires no DELETE trigger and ends here.
-- What cannot be refused: a position above the last one, which leaves a hole and harms no reader.
CREATE TRIGGER eventloom_outbox_position AFTER INSERT ON eventloom_outbox
WHEN NEW.position <= coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'eventloom_outbox'), 0)
  OR NEW.position <= coalesce((SELECT pruned_to FROM eventloom_logs WHERE name = 'outbox'), 0)
BEGIN
    SELECT RAISE(ABORT, 'eventloom: this position was handed out before; leave position out of the INSERT');
END;

CREATE TABLE eventloom_readers (
    name       TEXT    NOT NULL PRIMARY KEY,
    log        TEXT    NOT NULL DEFAULT 'outbox',
    paused     INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE eventloom_members (
    reader      TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    lease_until INTEGER NOT NULL,
    PRIMARY KEY (reader, owner)
) WITHOUT ROWID;

CREATE TABLE eventloom_cursors (
    reader    TEXT    NOT NULL,
    lane      INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    owner     TEXT,
    epoch     INTEGER NOT NULL DEFAULT 0,
    batch_end INTEGER NOT NULL DEFAULT 0,
    confirmed INTEGER,
    PRIMARY KEY (reader, lane)
) WITHOUT ROWID;

-- Both ends of relays: which broker has confirmed what cursors say, and what has come here from other logs.
CREATE TABLE eventloom_relays (
    reader TEXT NOT NULL PRIMARY KEY,
    broker TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE eventloom_relayed (
    origin   TEXT    NOT NULL,
    reader   TEXT    NOT NULL,
    lane     INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    position INTEGER NOT NULL,
    id       TEXT    NOT NULL,
    PRIMARY KEY (origin, reader, lane)
) WITHOUT ROWID;

CREATE TABLE eventloom_inbox (
    consumer     TEXT NOT NULL,
    id           TEXT NOT NULL,
    handled_at   INTEGER,
    result       TEXT,
    effect_lane  INTEGER,
    effect_epoch INTEGER,
    request      BLOB,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX eventloom_inbox_handled ON eventloom_inbox (consumer, handled_at) WHERE handled_at IS NOT NULL;
CREATE INDEX eventloom_inbox_once ON eventloom_inbox (handled_at) WHERE request IS NOT NULL;

CREATE TABLE eventloom_attempts (
    consumer TEXT    NOT NULL,
    id       TEXT    NOT NULL,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;

CREATE TABLE eventloom_held_keys (
    consumer TEXT    NOT NULL,
    source   TEXT    NOT NULL DEFAULT 'outbox',
    key      TEXT    NOT NULL,
    lane     INTEGER NOT NULL,
    held_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, source, key)
) WITHOUT ROWID;
CREATE INDEX eventloom_held_keys_lane ON eventloom_held_keys (consumer, lane, key);

-- data is kept as it came, also when it is no JSON.
CREATE TABLE eventloom_held (
    consumer        TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    source          TEXT    NOT NULL DEFAULT 'outbox',
    position        INTEGER NOT NULL,
    lane            INTEGER NOT NULL,
    topic           TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    key             TEXT,
    event_source    TEXT,
    subject         TEXT,
    time            INTEGER NOT NULL,
    data            TEXT,
    data_bytes      BLOB,
    datacontenttype TEXT,
    dataschema      TEXT,
    schemaversion   INTEGER NOT NULL,
    correlationid   TEXT,
    causationid     TEXT,
    traceparent     TEXT,
    tracestate      TEXT,
    headers         TEXT,
    origin          TEXT,
    queued          INTEGER NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('waiting', 'dead')),
    attempts        INTEGER NOT NULL,
    due_at          INTEGER,
    taken_epoch     INTEGER,
    redrives        INTEGER NOT NULL DEFAULT 0,
    error           TEXT,
    fingerprint     TEXT,
    first_failed_at INTEGER,
    last_failed_at  INTEGER,
    held_at         INTEGER NOT NULL,
    held_by         TEXT    NOT NULL,
    PRIMARY KEY (consumer, id)
);
CREATE INDEX eventloom_held_due ON eventloom_held (consumer, lane, due_at) WHERE state = 'waiting' AND due_at IS NOT NULL;
CREATE INDEX eventloom_held_queue ON eventloom_held (consumer, key, queued, position);
CREATE INDEX eventloom_held_state ON eventloom_held (consumer, state, id);
CREATE INDEX eventloom_held_lane ON eventloom_held (consumer, lane);
CREATE INDEX eventloom_held_first_dead ON eventloom_held (consumer, first_failed_at) WHERE state = 'dead';
CREATE INDEX eventloom_held_last_failed ON eventloom_held (consumer, state, last_failed_at)
    WHERE last_failed_at IS NOT NULL;

INSERT INTO eventloom_logs (name, identity, lanes)
VALUES ('outbox',
        lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)
              || '-' || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
        {lanes});
