-- Tokens with a name and a role. Of a token there is only its hash.
CREATE TABLE tokens (
    name       TEXT NOT NULL PRIMARY KEY,
    hash       TEXT NOT NULL UNIQUE,
    role       TEXT NOT NULL CHECK (role = 'read' OR role = 'chat' OR role = 'operate'),
    created_at REAL NOT NULL,
    expires_at REAL,
    used_at    REAL
) STRICT, WITHOUT ROWID;
