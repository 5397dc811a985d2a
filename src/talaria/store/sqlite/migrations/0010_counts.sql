-- Numbers that operators read, so that reading them does not take longer as the database grows. Unsettled turns
-- are few and are counted by their index.
CREATE TABLE counts (
    name TEXT NOT NULL PRIMARY KEY,
    n    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counts
SELECT 'sessions', count(*) FROM sessions WHERE ephemeral = 0
UNION ALL SELECT 'done', count(*) FROM turns WHERE state = 'done'
UNION ALL SELECT 'failed', count(*) FROM turns WHERE state = 'failed'
UNION ALL SELECT 'cancelled', count(*) FROM turns WHERE state = 'cancelled';

CREATE TRIGGER sessions_made AFTER INSERT ON sessions WHEN NEW.ephemeral = 0
BEGIN UPDATE counts SET n = n + 1 WHERE name = 'sessions'; END;

CREATE TRIGGER sessions_deleted AFTER DELETE ON sessions WHEN OLD.ephemeral = 0
BEGIN UPDATE counts SET n = n - 1 WHERE name = 'sessions'; END;

CREATE TRIGGER turns_settled AFTER UPDATE OF state ON turns
WHEN NEW.state = 'done' OR NEW.state = 'failed' OR NEW.state = 'cancelled'
BEGIN UPDATE counts SET n = n + 1 WHERE name = NEW.state; END;

CREATE TRIGGER turns_deleted AFTER DELETE ON turns
WHEN OLD.state = 'done' OR OLD.state = 'failed' OR OLD.state = 'cancelled'
BEGIN UPDATE counts SET n = n - 1 WHERE name = OLD.state; END;

-- The recent sessions of a chat, without sorting all of them.
DROP INDEX sessions_by_chat;
CREATE INDEX sessions_by_chat ON sessions (chat_key, ephemeral, updated_at);
