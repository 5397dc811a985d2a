-- Responses that callers can fetch and continue. Input: the entries first_seq to last_seq of the session's log;
-- output: the entry behind them.
CREATE TABLE responses (
    turn_id    TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    previous   TEXT,
    request    TEXT NOT NULL
) STRICT;

CREATE INDEX responses_by_session ON responses (session_id);
CREATE INDEX responses_by_age ON responses (created_at);

-- 1: the session is deleted with the last of its responses, and not by its age.
ALTER TABLE sessions ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sessions_passing ON sessions (updated_at) WHERE ephemeral = 1 AND stored = 0;
