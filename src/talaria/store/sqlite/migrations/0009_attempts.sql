-- Money of calls that did not end. A reservation belongs to one attempt, and has what is needed to charge it.
CREATE TABLE new_reservations (
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    owner      TEXT NOT NULL,
    provider   TEXT NOT NULL,
    model      TEXT NOT NULL,
    input      INTEGER NOT NULL,
    output     INTEGER NOT NULL,
    amount     INTEGER NOT NULL CHECK (amount >= 0),
    PRIMARY KEY (turn_id, n, attempt)
) STRICT, WITHOUT ROWID;

INSERT INTO new_reservations
SELECT turn_id, n, 1, session_id, user_id, owner, '', '', 0, 0, min(amount, 1000000000000000) FROM reservations;
DROP TABLE reservations;
ALTER TABLE new_reservations RENAME TO reservations;

-- `estimated` counts the calls whose usage is an estimate. Numbers beyond 10^15 are lies of a provider; sums of
-- them would not fit into 64 bits.
ALTER TABLE usage ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
UPDATE usage SET
    input = min(input, 1000000000000000), cached = min(cached, 1000000000000000),
    output = min(output, 1000000000000000), reasoning = min(reasoning, 1000000000000000),
    stored = min(stored, 1000000000000000), cost = min(cost, 1000000000000000)
WHERE max(input, cached, output, reasoning, stored, coalesce(cost, 0)) > 1000000000000000;
UPDATE sessions SET spent = 1000000000000000 WHERE spent > 1000000000000000;

-- The user '*' is everyone. A cap for a day reads at most a hundred rows of one user.
CREATE TABLE new_spending (
    user_id   TEXT NOT NULL,
    quarter   INTEGER NOT NULL,
    calls     INTEGER NOT NULL,
    input     INTEGER NOT NULL,
    cached    INTEGER NOT NULL,
    output    INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    stored    INTEGER NOT NULL,
    cost      INTEGER NOT NULL,
    unpriced  INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    PRIMARY KEY (user_id, quarter)
) STRICT, WITHOUT ROWID;

INSERT INTO new_spending
SELECT user_id, quarter, calls, min(input, 1000000000000000), min(cached, 1000000000000000),
    min(output, 1000000000000000), min(reasoning, 1000000000000000), min(stored, 1000000000000000),
    min(cost, 1000000000000000), unpriced, 0
FROM spending;
INSERT INTO new_spending
SELECT '*', quarter, sum(calls), sum(input), sum(cached), sum(output), sum(reasoning), sum(stored), sum(cost),
    sum(unpriced), 0
FROM new_spending GROUP BY quarter;
DROP TABLE spending;
ALTER TABLE new_spending RENAME TO spending;
