-- Turns that wait for a person: the questions they put, and the decisions.

-- The session's turn that waits, '' for none. It stands beside the lease, in the row that every begin reads.
ALTER TABLE sessions ADD COLUMN waiting_turn TEXT NOT NULL DEFAULT '';

-- `position` is the order in which questions were put. `decision`, `decided_by` and `decided_at` are NULL
-- together, until a person decides.
CREATE TABLE questions (
    position   INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    call_id    TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind = 'approval' OR kind = 'answer'),
    text       TEXT NOT NULL,
    choices    TEXT NOT NULL,
    asked_at   REAL NOT NULL,
    expires_at REAL NOT NULL,
    decision   TEXT,
    decided_by TEXT,
    decided_at REAL
) STRICT;

-- Open questions are found by the turns that wait, which are few and have an index by state.
CREATE INDEX questions_by_turn ON questions (turn_id);
