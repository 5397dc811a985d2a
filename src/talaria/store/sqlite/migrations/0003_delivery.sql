-- Delivery, steering and orderly restarts. No release has written to the first outbox.
ALTER TABLE turns ADD COLUMN address TEXT;
ALTER TABLE turns ADD COLUMN shown_id TEXT;
ALTER TABLE turns ADD COLUMN forgiven INTEGER NOT NULL DEFAULT 0;
CREATE INDEX turns_by_host ON turns (merged_into) WHERE merged_into IS NOT NULL;

DROP TABLE outbox;

-- AUTOINCREMENT: a sender may hold the id of a row that was pruned, and must not mark another.
CREATE TABLE outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id     TEXT NOT NULL,
    chat_key    TEXT NOT NULL,
    channel     TEXT NOT NULL,
    address     TEXT NOT NULL,
    body        TEXT NOT NULL,
    state       TEXT NOT NULL
                CHECK (state = 'pending' OR state = 'sending' OR state = 'sent' OR state = 'failed'),
    written_at  REAL NOT NULL,
    due_at      REAL NOT NULL,
    head        INTEGER NOT NULL,
    part        INTEGER NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    edits       TEXT,
    buttons     TEXT NOT NULL DEFAULT '[]',
    file        TEXT,
    platform_id TEXT,
    sent_at     REAL,
    error       TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX outbox_unsent ON outbox (channel, address, head, part)
    WHERE state = 'pending' OR state = 'sending';
CREATE INDEX outbox_by_turn ON outbox (turn_id);

-- How far each channel has read its platform's queue.
CREATE TABLE cursors (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
