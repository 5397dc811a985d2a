-- Gateways that serve this database together: see core/cluster.py. With one gateway these stay empty.
-- `chats.member` is the process that new turns of a chat are for, `chats.place` the home folder with its files and
-- processes, `turns.member` the process that a turn is for.
ALTER TABLE chats ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN place TEXT NOT NULL DEFAULT '';

ALTER TABLE turns ADD COLUMN member TEXT NOT NULL DEFAULT '';
CREATE INDEX turns_for_member ON turns (member, chat_key)
WHERE member <> '' AND (state = 'accepted' OR state = 'running' OR state = 'waiting');

-- When a person asked for the turn to be stopped, and who it was.
ALTER TABLE turns ADD COLUMN stop_asked_at REAL;
ALTER TABLE turns ADD COLUMN stop_asked_by TEXT;

CREATE TABLE members (
    owner        TEXT NOT NULL PRIMARY KEY,
    place        TEXT NOT NULL,
    boot         TEXT NOT NULL,
    host         TEXT NOT NULL,
    url          TEXT NOT NULL,
    version      TEXT NOT NULL,
    schema       INTEGER NOT NULL,
    started_at   REAL NOT NULL,
    expires_at   REAL NOT NULL,
    draining     INTEGER NOT NULL DEFAULT 0,
    shared_files INTEGER NOT NULL DEFAULT 0,
    figures      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX members_place ON members (place);

CREATE TABLE roles (
    name       TEXT NOT NULL PRIMARY KEY,
    owner      TEXT NOT NULL,
    fence      INTEGER NOT NULL,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
