-- For ending sessions that nobody uses any more: only those that have not ended, so it stays small.
CREATE INDEX sessions_open ON sessions (updated_at) WHERE ended_at IS NULL AND ephemeral = 0;
