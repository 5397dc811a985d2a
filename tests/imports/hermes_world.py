"""Homes of hermes-agent as a generator writes them: the tables of several releases, and rows that occur.

The statements have the columns that real homes have (hermes-agent 0.19.0, schema 22); an older home has fewer
columns and a newer one has more.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SESSION_COLUMNS = {
    10: "id TEXT PRIMARY KEY, source TEXT, parent_session_id TEXT, started_at REAL, "
    "end_reason TEXT, title TEXT"
}
SESSION_COLUMNS[22] = SESSION_COLUMNS[10] + (
    ", user_id TEXT, session_key TEXT, chat_id TEXT, chat_type TEXT, thread_id TEXT, origin_json TEXT"
    ", model TEXT, model_config TEXT, system_prompt TEXT, ended_at REAL, archived INTEGER NOT NULL DEFAULT 0"
)
SESSION_COLUMNS[30] = SESSION_COLUMNS[22] + ", system_prompt_hash TEXT, pinned INTEGER, new TEXT"
MESSAGE_COLUMNS = {
    10: "id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, role TEXT, content TEXT"
    ", tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL"
}
MESSAGE_COLUMNS[22] = MESSAGE_COLUMNS[10] + (
    ", finish_reason TEXT, reasoning TEXT, platform_message_id TEXT, observed INTEGER DEFAULT 0"
    ", active INTEGER NOT NULL DEFAULT 1, compacted INTEGER NOT NULL DEFAULT 0, api_content TEXT"
)
MESSAGE_COLUMNS[30] = MESSAGE_COLUMNS[22] + ", display_kind TEXT, display_metadata TEXT"
NOON = 1_790_000_000.0  # in 2026


@dataclass
class HermesHome:
    """A home that is written. Close it before it is read."""

    path: Path
    version: int = 22
    journal: str = "wal"
    count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.write("config.yaml", "_config_version: 33\n")
        self.database = sqlite3.connect(self.path / "state.db", isolation_level=None)
        self.database.execute(f"PRAGMA journal_mode = {self.journal}")
        self.database.execute("CREATE TABLE schema_version (version INTEGER)")
        self.database.execute("INSERT INTO schema_version VALUES (?)", (self.version,))
        self.database.execute(f"CREATE TABLE sessions ({SESSION_COLUMNS[self.version]})")
        self.database.execute(f"CREATE TABLE messages ({MESSAGE_COLUMNS[self.version]})")
        if self.version >= 22:
            self.database.execute(
                "CREATE TABLE gateway_routing (scope TEXT, session_key TEXT, entry_json TEXT, "
                "updated_at REAL, PRIMARY KEY (scope, session_key))"
            )

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        )
        return path

    def insert(self, table: str, row: Mapping[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self.database.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def session(self, key: str, *said: str, source: str = "cli", **more: Any) -> str:
        """Add a session in which a person and the model take turns."""
        self.count += 1
        self.insert("sessions", {"id": key, "source": source, "started_at": NOON + self.count * 1000, **more})
        for index, text in enumerate(said):
            self.message(key, "assistant" if index % 2 else "user", text)
        return key

    def message(self, session: str, role: str, content: object = None, **more: Any) -> None:
        self.count += 1
        at = {"timestamp": NOON + self.count}
        self.insert("messages", {"session_id": session, "role": role, "content": content, **at, **more})

    def route(self, key: str, session: str, **origin: Any) -> None:
        entry = {
            "session_key": key,
            "session_id": session,
            "origin": origin,
            "updated_at": "2026-11-01T10:00:00",
        }
        row = {"scope": "s", "session_key": key, "entry_json": json.dumps(entry), "updated_at": NOON}
        self.insert("gateway_routing", row)

    def close(self) -> HermesHome:
        self.database.close()
        return self


def count_rows(path: Path) -> int:
    with closing(sqlite3.connect(path / "state.db")) as database:
        return int(database.execute("SELECT count(*) FROM messages").fetchone()[0])


def call(key: str, name: str, arguments: object) -> dict[str, object]:
    return {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def ordinary(path: Path, version: int = 22, journal: str = "wal") -> HermesHome:
    """A home with conversations as they should be: a chain of compressions, a branch, a reset, a subagent."""
    home = HermesHome(path, version, journal)
    home.session(
        "chain1", "the first question", "the first answer", "go on", end_reason="compression", title="Tea"
    )
    home.session("chain2", "go on", "more", parent_session_id="chain1", end_reason="compression")
    home.session(
        "chain3", "[summary of all before]", "understood", "and now?", "done", parent_session_id="chain2"
    )
    home.session("other", "another question", "another answer")
    home.message("other", "user", "use a tool")
    calls = json.dumps([call("c1", "terminal", {"command": "ls"}), call("c2", "read_file", {"path": "x"})])
    home.message("other", "assistant", "", tool_calls=calls)
    home.message("other", "tool", "the second result", tool_call_id="c2", tool_name="read_file")
    home.message("other", "tool", "the first result", tool_call_id="c1", tool_name="terminal")
    home.message("other", "assistant", "used")
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    home.message("other", "user", "\0json:" + json.dumps(parts))
    if version >= 22:
        home.session(
            "branch", "from there", "yes", parent_session_id="chain1", model_config='{"_branched_from": "x"}'
        )
        home.session(
            "agent", "do it", "did it", parent_session_id="other", model_config='{"_delegate_from": "x"}'
        )
        home.session("reset", "hello again", "hello", parent_session_id="other", end_reason="session_reset")
        home.message("other", "user", "taken back", active=0)
        home.message("chain3", "user", "folded here", active=0, compacted=1)
    home.session("tool-run", "internal", source="tool")
    home.session("nothing")
    return home


def hostile(path: Path) -> HermesHome:
    """A home with rows and files that no program should write."""
    home = HermesHome(path)
    home.session("a", "one", parent_session_id="b", end_reason="compression")
    home.session("b", "two", parent_session_id="a", end_reason="compression")
    home.session("own", "three", parent_session_id="own", end_reason="compression")
    home.session(
        "../../x",
        "four",
        parent_session_id="gone",
        title="a\0b\ud83d".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    )
    home.session("odd")
    home.message("odd", "user", b"not \xff text \xed\xa0\x80")
    home.message("odd", "user", '\0json:[{"type": "text", "text": "half \\ud83d pair"}]')
    home.message("odd", "user", "\0json:{broken")
    home.message("odd", "user", "when", timestamp=5e246)
    home.message("odd", "assistant", None, tool_calls="[{broken", timestamp=-1)
    home.message(
        "odd", "assistant", "calls", tool_calls=json.dumps([call("c", "t", {}), call("c", "t", {}), 7])
    )
    home.message("odd", "tool", "lost", tool_call_id="unknown")
    home.message("odd", "tool", None, tool_call_id=None)
    home.message("odd", "system", "you are")
    home.message("odd", "robot", "?")
    home.message("odd", "user", "x" * (9 << 20))
    home.message("odd", "user", "Review the conversation above and update the skill library now")
    home.message("odd", "assistant", "Nothing to save.")
    home.message("odd", "user", 42, observed=1)
    home.message("nowhere", "user", "of no session")
    huge = "z" * (9 << 20)
    home.session("huge-title", "of a session that cannot be read", title=huge)
    home.session("huge-words", huge, "an answer")
    home.session("broken-id", "found by nobody")
    broken = "UPDATE {} SET {} = CAST(x'ff62726f6b656e' AS TEXT) WHERE {} = 'broken-id'"
    home.database.execute(broken.format("sessions", "id", "id"))
    home.database.execute(broken.format("messages", "session_id", "session_id"))
    home.route("huge-route", "odd", platform="telegram", chat_id=huge)
    home.write("cron/jobs.json", b'\xef\xbb\xbf{"jobs": {"a": 1}}')
    home.write("memories/MEMORY.md", "fine\n§\n" + "y" * 2000 + "\n§\n\n§\n\udcff odd")
    home.write("skills/good/SKILL.md", "---\nname: good\ndescription: Good.\n---\nDo it.\n")
    home.write("skills/bad/SKILL.md", "no front matter")
    home.write("outside/SKILL.md", "---\nname: outside\ndescription: Out.\n---\n")
    (home.path / "skills" / "link").symlink_to(path / "outside")
    (home.path / "skills" / "good" / "passwd").symlink_to("/etc/passwd")
    (home.path / "memories" / "USER.md").symlink_to("/etc/hostname")
    home.write("sessions/sessions.json", "{broken")
    home.write("config.yaml", "model: [\n")
    home.write("pairing/telegram-approved.json", '{"77": {"user_name": "Anna", "approved_at": 1}, "78": 3}')
    home.write(
        ".env",
        "export TELEGRAM_BOT_TOKEN='1:x'\nTELEGRAM_ALLOWED_USERS=77,79,@ada,*\n"
        "MATRIX_ALLOWED_USERS=@ada:x\nBROKEN\n# A=b\n",
    )
    return home
