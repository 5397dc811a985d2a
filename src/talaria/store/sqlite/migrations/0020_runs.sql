-- The job whose runs a session has; the list of sessions leaves those of jobs out.
ALTER TABLE sessions ADD COLUMN job_id TEXT;
DROP INDEX sessions_by_activity;
CREATE INDEX sessions_by_activity ON sessions (ephemeral, updated_at, job_id);
CREATE INDEX sessions_of_jobs ON sessions (updated_at) WHERE job_id IS NOT NULL;

-- What a person granted to a job, as long as its plan is the same. An empty digest: a run has asked.
CREATE TABLE job_grants (
    job_id     TEXT NOT NULL,
    plan       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at REAL NOT NULL,
    PRIMARY KEY (job_id, plan, digest)
) STRICT, WITHOUT ROWID;
