-- Identities on chat platforms that `/link` has joined to one person: see access/people.py. `root` is the identity
-- that created the code, or the one to which that identity is joined itself.
CREATE TABLE linked_identities (
    identity  TEXT NOT NULL PRIMARY KEY,
    root      TEXT NOT NULL,
    linked_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX linked_identities_by_root ON linked_identities (root);

-- Codes of `/link`, as hashes. An identity has at most one.
CREATE TABLE link_codes (
    identity   TEXT NOT NULL PRIMARY KEY,
    code       TEXT NOT NULL UNIQUE,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- The inbox lists replies that failed.
CREATE INDEX outbox_failed ON outbox (id) WHERE state = 'failed';
