-- The files that a turn sent, as JSON; NULL for most turns.
ALTER TABLE turns ADD COLUMN files TEXT;
CREATE INDEX turns_with_files ON turns (session_id, position) WHERE files IS NOT NULL;

-- Sessions that were deleted and whose rows are not all gone yet. Turns that were accepted since `keys_since`
-- keep their keys, so that a message that comes again is not answered again.
CREATE TABLE deletions (
    session_id TEXT NOT NULL PRIMARY KEY,
    chat_key   TEXT NOT NULL,
    keys_since REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Files of deleted sessions that may still be in the folder of their chat.
CREATE TABLE removals (
    id       INTEGER PRIMARY KEY,
    chat_key TEXT NOT NULL,
    path     TEXT NOT NULL
) STRICT;
