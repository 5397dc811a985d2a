-- Approvals: what a question is bound to, how far a decision reaches, and grants that outlast one call.

-- `name` is the tool, `digest` what the question is bound to (see `access/approvals.py`), `span` how far the
-- decision reaches, `shown_id` the platform's message that shows the question. The table is made anew, because
-- a check cannot be changed: a question of the kind `host` is about a host that a command wants to reach, and
-- its turn does not wait.
CREATE TABLE new_questions (
    position   INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    call_id    TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind = 'approval' OR kind = 'answer' OR kind = 'host'),
    text       TEXT NOT NULL,
    choices    TEXT NOT NULL,
    asked_at   REAL NOT NULL,
    expires_at REAL NOT NULL,
    decision   TEXT,
    decided_by TEXT,
    decided_at REAL,
    name       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    span       TEXT NOT NULL,
    shown_id   TEXT
) STRICT;
INSERT INTO new_questions
SELECT position, id, turn_id, n, call_id, kind, text, choices, asked_at, expires_at, decision, decided_by,
       decided_at, '', '', 'once', NULL
FROM questions;
DROP TABLE questions;
ALTER TABLE new_questions RENAME TO questions;
CREATE INDEX questions_by_turn ON questions (turn_id);

-- Open questions: few, because the others have a decision or are past their expiry.
CREATE INDEX questions_undecided ON questions (expires_at) WHERE decided_at IS NULL;

-- What a person has granted to a session. The rows go when the session ends.
CREATE TABLE grants (
    session_id TEXT NOT NULL,
    digest     TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at REAL NOT NULL,
    PRIMARY KEY (session_id, digest)
) STRICT;
