-- 1: a client has been sent the whole answer. Written a moment later, and only for requests that a client may
-- send again without a key; they have a digest.
ALTER TABLE turns ADD COLUMN answered INTEGER NOT NULL DEFAULT 0;
