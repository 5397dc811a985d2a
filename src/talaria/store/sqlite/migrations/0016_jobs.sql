-- Jobs, and their slots: the times at which they run.

CREATE TABLE jobs (
    position   INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    owner      TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state = 'active' OR state = 'paused' OR state = 'done'),
    origin     TEXT NOT NULL,
    plan       TEXT NOT NULL,
    overlap    TEXT NOT NULL,
    session_id TEXT,               -- the session whose background process an active job waits for
    created_at REAL NOT NULL,
    ended_at   REAL,               -- when the job became done
    next_at    REAL,
    version    INTEGER NOT NULL,
    failures   INTEGER NOT NULL,
    reason     TEXT NOT NULL
) STRICT;

CREATE INDEX jobs_due ON jobs (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX jobs_by_owner ON jobs (owner, position);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE INDEX jobs_waiting ON jobs (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;

-- A slot exists once. `ended_at` is NULL while it is due or running.
CREATE TABLE slots (
    job_id     TEXT NOT NULL,
    instant    REAL NOT NULL,
    state      TEXT NOT NULL
               CHECK (state = 'due' OR state = 'running' OR state = 'done' OR state = 'failed' OR state = 'skipped'),
    due_at     REAL NOT NULL,
    reason     TEXT NOT NULL,
    turn_id    TEXT,
    attempts   INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    cost       INTEGER NOT NULL,
    claimed_by TEXT NOT NULL,
    claimed_at REAL,
    started_at REAL,
    ended_at   REAL,
    manual     INTEGER NOT NULL,
    PRIMARY KEY (job_id, instant)
) STRICT, WITHOUT ROWID;

CREATE INDEX slots_open ON slots (state, due_at) WHERE ended_at IS NULL;
CREATE INDEX slots_open_of_job ON slots (job_id, due_at) WHERE ended_at IS NULL;
-- Slots of the future: the clock was set back after they were written.
CREATE INDEX slots_by_instant ON slots (instant);
CREATE INDEX slots_ended ON slots (ended_at) WHERE ended_at IS NOT NULL;

-- The job whose slot the turn runs; NULL for most turns.
ALTER TABLE turns ADD COLUMN job_id TEXT;
