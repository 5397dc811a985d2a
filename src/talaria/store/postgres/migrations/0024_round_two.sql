-- compatible_from: 23
-- Folders that untrusted content has entered: see turns/trust.py. `folder` is `chat:` with a chat's key, or
-- `project:` with the path of a project folder. `source` says what brought the content. Only a person removes a row.
CREATE TABLE tainted_folders (
    folder TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    since  DOUBLE PRECISION NOT NULL,
    source TEXT COLLATE "C" NOT NULL
);

-- Finds the approval requests that a person may still be reading, for `/approve` without an id.
CREATE INDEX questions_by_expiry ON questions (expires_at);
