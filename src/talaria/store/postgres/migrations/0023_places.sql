-- Files and processes of chats in places: see core/cluster.py. With one gateway these stay empty.
-- `processes` are the background processes of a chat in its place, a JSON list of texts. `lost` is the place that a
-- chat was taken over from, and when, until the log of the chat tells of it.
ALTER TABLE chats ADD COLUMN processes TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE chats ADD COLUMN lost TEXT COLLATE "C" NOT NULL DEFAULT '';
