-- compatible_from: 24
-- What OAuth logins gave the gateway: see access/oauth.py. `client` is JSON: how the tokens are renewed. The process
-- that renews them has `fence` until `claimed_until`.
CREATE TABLE oauth_grants (
    name          TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    client        TEXT COLLATE "C" NOT NULL,
    access        TEXT COLLATE "C" NOT NULL,
    refresh       TEXT COLLATE "C" NOT NULL,
    expires_at    DOUBLE PRECISION,
    problem       TEXT COLLATE "C" NOT NULL DEFAULT '',
    fence         BIGINT NOT NULL DEFAULT 0,
    claimed_until DOUBLE PRECISION NOT NULL DEFAULT 0
);
