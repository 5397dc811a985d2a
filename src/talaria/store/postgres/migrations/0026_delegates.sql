-- compatible_from: 24
-- Tasks that turns have handed out to child sessions: see core/delegates.py. `outcome` is written by the commit
-- that ends the child's turn. `report` is 1 while a delegate in the background owes its report, and then 2.
CREATE TABLE delegates (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    turn_id    TEXT COLLATE "C" NOT NULL,
    n          BIGINT NOT NULL,
    call_id    TEXT COLLATE "C" NOT NULL,
    task       TEXT COLLATE "C" NOT NULL,
    asked_at   DOUBLE PRECISION NOT NULL,
    expires_at DOUBLE PRECISION NOT NULL,
    outcome    TEXT COLLATE "C",
    ended_at   DOUBLE PRECISION,
    report     BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX delegates_by_turn ON delegates (turn_id);
CREATE INDEX delegates_owed ON delegates (asked_at, id) WHERE report = 1;
