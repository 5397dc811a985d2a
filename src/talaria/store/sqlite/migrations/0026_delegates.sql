-- Tasks that turns have handed out to child sessions: see core/delegates.py. `outcome` is written by the commit
-- that ends the child's turn. `report` is 1 while a delegate in the background owes its report, and then 2.
CREATE TABLE delegates (
    id         TEXT NOT NULL PRIMARY KEY,
    turn_id    TEXT NOT NULL,
    n          INTEGER NOT NULL,
    call_id    TEXT NOT NULL,
    task       TEXT NOT NULL,
    asked_at   REAL NOT NULL,
    expires_at REAL NOT NULL,
    outcome    TEXT,
    ended_at   REAL,
    report     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX delegates_by_turn ON delegates (turn_id);
CREATE INDEX delegates_owed ON delegates (asked_at, id) WHERE report = 1;
