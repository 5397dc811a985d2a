-- Sent messages that wait for a running turn of their session to end before its log gets them.
CREATE TABLE announcements (
    turn_id    TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL,
    at         REAL NOT NULL,
    body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX announcements_by_session ON announcements (session_id, at);
