-- What callers of webhooks have sent lately: by the sender's id of the event, and by the digest of its body.
CREATE TABLE repeats (
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    until   REAL NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX repeats_until ON repeats (until);
