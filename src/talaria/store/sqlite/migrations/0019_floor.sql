-- The entries of a session up to its floor are not shown to the model: the summary in force stands for them.
ALTER TABLE sessions ADD COLUMN floor INTEGER NOT NULL DEFAULT 0;
