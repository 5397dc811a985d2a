-- People who were let in from outside the configuration.
CREATE TABLE paired (
    channel   TEXT NOT NULL,
    user_id   TEXT NOT NULL,
    name      TEXT NOT NULL,
    paired_at REAL NOT NULL,
    origin    TEXT NOT NULL CHECK (origin = 'approved' OR origin = 'invited'),
    PRIMARY KEY (channel, user_id)
) STRICT, WITHOUT ROWID;

-- Strangers who were given a code: one row for each, few for a channel. Of the code there is only its hash.
CREATE TABLE pairing_requests (
    channel    TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    name       TEXT NOT NULL,
    code       TEXT NOT NULL UNIQUE,
    asked_at   REAL NOT NULL,
    expires_at REAL NOT NULL,
    reminders  INTEGER NOT NULL DEFAULT 0,
    told_at    REAL NOT NULL,
    PRIMARY KEY (channel, user_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE invitations (
    channel    TEXT NOT NULL PRIMARY KEY,
    code       TEXT NOT NULL,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Wrong codes. `who` is empty for the count of everybody together.
CREATE TABLE wrong_codes (
    gate    TEXT NOT NULL,
    who     TEXT NOT NULL,
    count   INTEGER NOT NULL,
    last_at REAL NOT NULL,
    PRIMARY KEY (gate, who)
) STRICT, WITHOUT ROWID;
