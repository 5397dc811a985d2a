-- compatible_from: 24
-- Identities on chat platforms that `/link` has joined to one person: see access/people.py. `root` is the identity
-- that created the code, or the one to which that identity is joined itself.
CREATE TABLE linked_identities (
    identity  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    root      TEXT COLLATE "C" NOT NULL,
    linked_at DOUBLE PRECISION NOT NULL
);

CREATE INDEX linked_identities_by_root ON linked_identities (root);

-- Codes of `/link`, as hashes. An identity has at most one.
CREATE TABLE link_codes (
    identity   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    code       TEXT COLLATE "C" NOT NULL UNIQUE,
    expires_at DOUBLE PRECISION NOT NULL
);

-- The inbox lists replies that failed.
CREATE INDEX outbox_failed ON outbox (id) WHERE state = 'failed';
