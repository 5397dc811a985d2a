-- Money: what each call cost, what is spent by whom, and what is set aside for calls under way.
-- All amounts are nanodollars.

-- NULL: the price was not known. `stored` is the part of the input that the provider wrote to its cache.
ALTER TABLE usage ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN cost INTEGER;

-- What the session's calls cost so far, so that a cap is checked without adding them up.
ALTER TABLE sessions ADD COLUMN spent INTEGER NOT NULL DEFAULT 0;

-- Totals by quarter of an hour (the number of it since 1970) and user. They stay when sessions are pruned.
CREATE TABLE spending (
    quarter   INTEGER NOT NULL,
    user      TEXT NOT NULL,
    calls     INTEGER NOT NULL,
    input     INTEGER NOT NULL,
    cached    INTEGER NOT NULL,
    output    INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    stored    INTEGER NOT NULL,
    cost      INTEGER NOT NULL,
    unpriced  INTEGER NOT NULL,
    PRIMARY KEY (quarter, user)
) STRICT, WITHOUT ROWID;

-- One row for a model call under way, while there are caps; gone when the call is settled or its turn ends.
CREATE TABLE reservations (
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    user       TEXT NOT NULL,
    owner      TEXT NOT NULL,
    amount     INTEGER NOT NULL CHECK (amount >= 0),
    PRIMARY KEY (turn_id, n)
) STRICT, WITHOUT ROWID;
