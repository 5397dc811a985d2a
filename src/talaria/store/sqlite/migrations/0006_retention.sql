-- What `talaria why` tells of the latest attempt, and what retention looks for.
ALTER TABLE turns ADD COLUMN begun_at REAL;
ALTER TABLE turns ADD COLUMN begun_by TEXT NOT NULL DEFAULT '';

-- 1: only the row itself is left, for what a session's turns add up to.
ALTER TABLE turns ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;

CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL AND ephemeral = 0;
CREATE INDEX sessions_by_spec ON sessions (spec_id) WHERE spec_id IS NOT NULL;
CREATE INDEX specs_by_prefix ON specs (prefix_id);
