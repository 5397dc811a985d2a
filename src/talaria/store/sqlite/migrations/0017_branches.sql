-- Where branches were made: a session and the place in its parent's log up to which it knows that log. The
-- row of a deleted session stays while there are branches of it, and so do the entries that they know.
CREATE TABLE branches (
    session_id TEXT NOT NULL PRIMARY KEY,
    parent_id  TEXT NOT NULL,
    known_seq  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX branches_by_parent ON branches (parent_id, known_seq);
