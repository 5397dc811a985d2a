-- Gateways that serve this database together: see core/cluster.py. With one gateway these stay empty.
-- `chats.member` is the process that new turns of a chat are for, `chats.place` the home folder with its files and
-- processes, `turns.member` the process that a turn is for.
ALTER TABLE chats ADD COLUMN member TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN place TEXT COLLATE "C" NOT NULL DEFAULT '';

ALTER TABLE turns ADD COLUMN member TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX turns_for_member ON turns (member, chat_key)
WHERE member <> '' AND (state = 'accepted' OR state = 'running' OR state = 'waiting');

-- When a person asked for the turn to be stopped, and who it was.
ALTER TABLE turns ADD COLUMN stop_asked_at DOUBLE PRECISION;
ALTER TABLE turns ADD COLUMN stop_asked_by TEXT COLLATE "C";

CREATE TABLE members (
    owner        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    place        TEXT COLLATE "C" NOT NULL,
    boot         TEXT COLLATE "C" NOT NULL,
    host         TEXT COLLATE "C" NOT NULL,
    url          TEXT COLLATE "C" NOT NULL,
    version      TEXT COLLATE "C" NOT NULL,
    schema       BIGINT NOT NULL,
    started_at   DOUBLE PRECISION NOT NULL,
    expires_at   DOUBLE PRECISION NOT NULL,
    draining     BIGINT NOT NULL DEFAULT 0,
    shared_files BIGINT NOT NULL DEFAULT 0,
    figures      TEXT COLLATE "C" NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX members_place ON members (place);

CREATE TABLE roles (
    name       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner      TEXT COLLATE "C" NOT NULL,
    fence      BIGINT NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL
) WITH (fillfactor = 50);

-- The oldest program, by its schema, that can serve this database: see store/postgres/schema.py.
ALTER TABLE talaria_schema ADD COLUMN compatible_from BIGINT;
