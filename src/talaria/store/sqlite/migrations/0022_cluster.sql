-- Gateways that serve this database together: see core/cluster.py. With one gateway these stay empty.
-- `member` is the process that a chat's turns are for, `place` the home folder with its files and processes.
ALTER TABLE chats ADD COLUMN member TEXT NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN place TEXT NOT NULL DEFAULT '';
CREATE INDEX chats_member ON chats (member) WHERE member <> '';

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
