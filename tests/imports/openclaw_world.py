"""State folders of openclaw as a generator writes them: tables of 2026.9.6 with the columns that matter."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import zstandard

NOON = 1_790_000_000_000  # in 2026
_AGENT = """
CREATE TABLE session_nodes (session_key TEXT PRIMARY KEY, current_session_id TEXT, entry_json TEXT,
  label TEXT) STRICT;
CREATE TABLE session_windows (session_id TEXT PRIMARY KEY, session_key TEXT, session_scope TEXT,
  created_at INTEGER, updated_at INTEGER, primary_conversation_id TEXT, spawned_by TEXT,
  display_name TEXT) STRICT;
CREATE TABLE conversations (conversation_id TEXT PRIMARY KEY, channel TEXT, kind TEXT, peer_id TEXT,
  thread_id TEXT, native_channel_id TEXT, native_direct_user_id TEXT) STRICT;
CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, created_at INTEGER,
  event_zstd BLOB, PRIMARY KEY (session_id, seq)) STRICT;
CREATE TABLE session_transcript_active_events (session_id TEXT, active_position INTEGER,
  event_seq INTEGER, PRIMARY KEY (session_id, active_position)) STRICT;
CREATE TABLE session_transcript_cold_archives (session_id TEXT PRIMARY KEY, event_count INTEGER) STRICT;
CREATE TABLE auth_profile_store (store_key TEXT PRIMARY KEY, store_json TEXT) STRICT;
"""
_STATE = """
CREATE TABLE cron_jobs (store_key TEXT, job_id TEXT, name TEXT, job_json TEXT,
  PRIMARY KEY (store_key, job_id)) STRICT;
CREATE TABLE channel_pairing_allow_entries (channel_key TEXT, account_id TEXT, entry TEXT) STRICT;
"""


class OpenclawHome:
    """A state folder that is written. Close it before it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.write("openclaw.json", "{}")
        self.state = self._database("state/openclaw.sqlite", _STATE)
        self.agents = {"main": self.agent("main")}

    def agent(self, name: str) -> sqlite3.Connection:
        return self._database(f"agents/{name}/agent/openclaw-agent.sqlite", _AGENT)

    def _database(self, name: str, tables: str) -> sqlite3.Connection:
        path = self.write(name, "")
        path.unlink()
        database = sqlite3.connect(path, isolation_level=None)
        database.executescript(f"PRAGMA journal_mode = wal;{tables}")
        return database

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def session(
        self, session: str, key: str, *, agent: str = "main", scope: str = "conversation", **more: Any
    ) -> None:
        self.count += 1
        database, at = self.agents[agent], NOON + self.count * 1_000_000
        row = {
            "session_id": session,
            "session_key": key,
            "session_scope": scope,
            "created_at": at,
            "updated_at": at,
        }
        row |= more
        database.execute(
            f"INSERT INTO session_windows ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
            [*row.values()],
        )
        database.execute("INSERT OR REPLACE INTO session_nodes VALUES (?, ?, '{}', NULL)", (key, session))

    def events(
        self, session: str, *events: dict[str, Any] | str, agent: str = "main", packed: bool = False
    ) -> None:
        """Add events; each follows the one before, unless it names its parent."""
        database = self.agents[agent]
        (first,) = database.execute(
            "SELECT coalesce(max(seq), 0) + 1 FROM transcript_events WHERE session_id = ?", (session,)
        ).fetchone()
        before = f"e{first - 1}" if first > 1 else None
        for seq, event in enumerate(events, first):
            text = (
                event
                if isinstance(event, str)
                else json.dumps({"id": f"e{seq}", "parentId": before, **event})
            )
            before = f"e{seq}"
            raw = zstandard.compress(text.encode(), 1) if packed else None
            row = (session, seq, None if packed else text, NOON, raw)
            database.execute("INSERT INTO transcript_events VALUES (?, ?, ?, ?, ?)", row)

    def job(self, key: str, **job: Any) -> None:
        self.state.execute(
            "INSERT INTO cron_jobs VALUES ('main', ?, ?, ?)", (key, key, json.dumps({"id": key, **job}))
        )

    def close(self) -> OpenclawHome:
        for database in (self.state, *self.agents.values()):
            database.close()
        return self


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "message": {"role": "user", "content": text, "timestamp": NOON + 1, **more}}


def assistant(text: str, *calls: tuple[str, str], **more: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    content += [{"type": "toolCall", "id": key, "name": name, "arguments": {"a": 1}} for key, name in calls]
    return {"type": "message", "message": {"role": "assistant", "content": content, "model": "m", **more}}


def result(call: str, text: str, *, is_error: bool = False) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, {"type": "image", "data": "AA==", "mimeType": "image/png"}]
    message = {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": "exec",
        "content": content,
        "isError": is_error,
    }
    return {"type": "message", "message": message}


def ordinary(path: Path) -> OpenclawHome:
    """A folder with sessions as they should be, and with rows that no program should write."""
    home = OpenclawHome(path)
    home.agents["work"] = home.agent("work")
    conversation = "INSERT INTO conversations VALUES (?, 'telegram', ?, ?, ?, ?, ?)"
    home.agents["main"].execute(conversation, ("c1", "direct", "7", None, None, "7"))
    home.agents["main"].execute(conversation, ("c2", "group", "-5", "3", "-5", None))
    home.session("dm", "agent:main:telegram:direct:7", primary_conversation_id="c1")
    home.events(
        "dm",
        {"type": "session", "version": 4},
        user("before the reset"),
        assistant("forgotten"),
        {"type": "reset", "reason": "new"},
        user("old question"),
        assistant("old answer", ("t1", "exec")),
        result("t1", "a result", is_error=True),
        user("kept question"),
        {"type": "compaction", "summary": "They spoke of tea.", "firstKeptEntryId": "e8"},
        assistant("kept answer"),
        assistant("a copy", provider="openclaw", model="delivery-mirror"),
    )
    home.events("dm", user("a packed message", runtimeContextCarrier=False), packed=True)
    home.session("topic", "agent:main:telegram:group:-5:topic:3", primary_conversation_id="c2")
    home.events(
        "topic", user("in a topic"), assistant("left branch"), assistant("right branch") | {"parentId": "e1"}
    )
    home.session("shared", "agent:main:main", scope="shared-main")
    for name, is_owner in (("owner", True), ("Bea", False), ("Cy", False)):
        home.events("shared", user(f"from {name}", __openclaw={"senderIsOwner": is_owner, "senderId": name}))
    home.session("other", "agent:work:main", agent="work", scope="shared-main")
    home.events(
        "other",
        user("of another agent", __openclaw={"senderIsOwner": False, "senderId": "7"}),
        assistant("yes"),
        agent="work",
    )
    home.session("child", "agent:main:subagent:x", spawned_by="agent:main:main")
    home.events("child", user("do it"))
    home.session("cold", "agent:main:explicit:cold")
    home.agents["main"].execute("INSERT INTO session_transcript_cold_archives VALUES ('cold', 9)")
    home.session("odd", "agent:main:matrix:direct:@ada:x")
    home.events(
        "odd",
        "{broken",
        user("circle") | {"id": "a", "parentId": "b"},
        user("of") | {"id": "b", "parentId": "a"},
    )
    home.events("odd", user("x" * (9 << 20)))
    home.events("nowhere", user("of no session"))
    return home
