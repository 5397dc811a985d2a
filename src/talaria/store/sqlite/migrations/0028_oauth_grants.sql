-- What OAuth logins gave the gateway: see access/oauth.py. `client` is JSON: how the tokens are renewed. The process
-- that renews them has `fence` until `claimed_until`.
CREATE TABLE oauth_grants (
    name          TEXT NOT NULL PRIMARY KEY,
    client        TEXT NOT NULL,
    access        TEXT NOT NULL,
    refresh       TEXT NOT NULL,
    expires_at    REAL,
    problem       TEXT NOT NULL DEFAULT '',
    fence         INTEGER NOT NULL DEFAULT 0,
    claimed_until REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
