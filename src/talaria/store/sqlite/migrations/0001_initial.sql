-- Sessions, their logs, and the answer ledger.
--
-- Rows refer to each other by id. Foreign keys are not declared: every order checks what it names in the
-- same transaction, and says which thing is missing. Checks are chains of OR: for IN with a list, SQLite
-- builds a temporary table at every write.

CREATE TABLE chats (
    chat_key   TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The lease stands in the session's row, so that a commit finds its fence and moves the head in one place.
-- `lease_fence` counts acquisitions and only grows; `lease_expires` is 0 for a lease given back.
CREATE TABLE sessions (
    id            TEXT NOT NULL PRIMARY KEY,
    chat_key      TEXT NOT NULL,
    created_at    REAL NOT NULL,
    updated_at    REAL NOT NULL,
    epoch         INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    spec_id       TEXT,
    title         TEXT NOT NULL,
    ephemeral     INTEGER NOT NULL CHECK (ephemeral = 0 OR ephemeral = 1),
    ended_at      REAL,
    lease_owner   TEXT NOT NULL DEFAULT '',
    lease_fence   INTEGER NOT NULL DEFAULT 0,
    lease_expires REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_activity ON sessions (ephemeral, updated_at);
CREATE INDEX sessions_by_chat ON sessions (chat_key);

-- Bodies can be large, so the table keeps its rowid and the key is an index beside it.
CREATE TABLE entries (
    session_id TEXT NOT NULL,
    seq        INTEGER NOT NULL CHECK (seq > 0),
    epoch      INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    turn_id    TEXT,
    at         REAL NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (session_id, seq)
) STRICT;

-- Content-addressed: specs that render to the same bytes share one row.
CREATE TABLE prefixes (
    id     TEXT NOT NULL PRIMARY KEY,
    system BLOB NOT NULL,
    tools  BLOB NOT NULL
) STRICT;

CREATE TABLE specs (
    id        TEXT NOT NULL PRIMARY KEY,
    spec      TEXT NOT NULL,
    prefix_id TEXT NOT NULL
) STRICT;

-- The inbox. `position` is the order of arrival, which is the order of each lane.
CREATE TABLE turns (
    position    INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    chat_key    TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    state       TEXT NOT NULL
                CHECK (state = 'done' OR state = 'running' OR state = 'accepted' OR state = 'waiting'
                       OR state = 'failed' OR state = 'cancelled'),
    inbound     TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    command     TEXT NOT NULL,
    started_at  REAL,
    ended_at    REAL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    reply       TEXT,
    error       TEXT,
    usage       TEXT,
    merged_into TEXT,
    scope       TEXT NOT NULL,
    key         TEXT,
    digest      TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX turns_by_key ON turns (scope, key) WHERE key IS NOT NULL;
CREATE INDEX turns_by_session ON turns (session_id);
CREATE INDEX turns_by_state ON turns (state);

CREATE TABLE steps (
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    kind       TEXT NOT NULL CHECK (kind = 'model' OR kind = 'tool'),
    name       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state = 'ended' OR state = 'pending' OR state = 'started'),
    call_id    TEXT NOT NULL,
    result     TEXT,
    started_at REAL,
    ended_at   REAL,
    PRIMARY KEY (turn_id, n)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a sender may hold the id of a row that was pruned, and must not mark another.
CREATE TABLE outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id     TEXT NOT NULL,
    channel     TEXT NOT NULL,
    address     TEXT NOT NULL,
    body        TEXT NOT NULL,
    nonce       TEXT NOT NULL,
    edits       TEXT,
    state       TEXT NOT NULL
                CHECK (state = 'pending' OR state = 'sending' OR state = 'sent' OR state = 'failed'),
    attempts    INTEGER NOT NULL DEFAULT 0,
    due_at      REAL NOT NULL,
    platform_id TEXT
) STRICT;

CREATE INDEX outbox_unsent ON outbox (channel, id) WHERE state IN ('pending', 'sending');
CREATE INDEX outbox_by_turn ON outbox (turn_id);

-- What the model calls of a step used: one row for a step, however often it was tried.
CREATE TABLE usage (
    turn_id   TEXT NOT NULL,
    n         INTEGER NOT NULL,
    provider  TEXT NOT NULL,
    model     TEXT NOT NULL,
    calls     INTEGER NOT NULL DEFAULT 1,
    input     INTEGER NOT NULL,
    cached    INTEGER NOT NULL,
    output    INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    at        REAL NOT NULL,
    PRIMARY KEY (turn_id, n, provider, model)
) STRICT, WITHOUT ROWID;
