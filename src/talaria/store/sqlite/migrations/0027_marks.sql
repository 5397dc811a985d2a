-- A person pins a session to the top of the list, or archives it: '', 'pinned' or 'archived'.
ALTER TABLE sessions ADD COLUMN mark TEXT NOT NULL DEFAULT '';

CREATE INDEX sessions_marked ON sessions (mark) WHERE mark <> '';
