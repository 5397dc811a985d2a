"""Conversations of hermes-agent: which sessions are one conversation, whose chat it is in, and its log.

hermes-agent begins a new session when it compresses a conversation, so one conversation is a chain of
sessions. The model sees the active rows of the last one. All earlier rows stay readable and searchable here:
a summary stands for them, as after a compaction of ours.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from talaria.core.entries import EntryBody, Summary
from talaria.core.ids import SESSION_PREFIX, ChatAddress, ChatKey, SessionId
from talaria.core.ledger import ImportSession
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Part,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.sessions import first_words, shorten_title
from talaria.imports.hermes_home import HermesHome, read_json, table
from talaria.imports.item import ImportItem, ImportKind, ImportState

CHAT: Final = "hermes"  # the name of the chat that gets the conversations of terminals, jobs and programs
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_FIRST_TIME: Final = 946_684_800.0  # the year 2000; an earlier time is damaged
_MAX_ROW: Final = 8 << 20  # bytes of a value; a larger row is left out
_ENCODED: Final = "\0json:"
_COMPRESSED: Final = "compression"
_REVIEWS: Final = (
    "Review the conversation above and update the skill library",
    "Review the conversation above and consider saving to memory",
)
_SUMMARY: Final = (
    "[The earlier part of this conversation comes from hermes-agent, which compressed it. Its own summary, "
    "if it wrote one, follows.]"
)
_MISSING: Final = "[The result of this call is missing in hermes-agent.]"
_SESSION_COLUMNS: Final = (
    *("id", "source", "title", "model", "model_config", "parent_session_id", "started_at", "end_reason"),
    *("user_id", "chat_id", "chat_type", "thread_id", "origin_json"),
)
_MESSAGE_COLUMNS: Final = (
    *("role", "content", "tool_call_id", "tool_calls", "timestamp", "observed", "display_kind"),
)


class Route(msgspec.Struct, frozen=True):
    """A chat of hermes-agent and the session that its next message continues."""

    session_id: str
    origin: Mapping[str, Any]
    updated_at: str


class SourceSession(msgspec.Struct, frozen=True):
    """A session of hermes-agent as its row describes it. `rows` counts its messages."""

    id: str
    source: str
    title: str
    model: str
    parent: str
    end_reason: str
    started_at: float
    origin: Mapping[str, Any]
    config: Mapping[str, Any]
    rows: int

    @property
    def is_apart(self) -> bool:
        """Whether it began apart from its parent: as a branch, as a subagent, or after a reset."""
        return any(self.config.get(key) for key in ("_branched_from", "_delegate_from", "_reset_from"))


class SourceConversation(msgspec.Struct, frozen=True):
    """Sessions that are one conversation, oldest first. If `is_current`, its chat's next message continues
    it."""

    parts: tuple[SourceSession, ...]
    chat_key: ChatKey
    is_current: bool = False

    @property
    def id(self) -> SessionId:
        return session_id(self.parts[0].id)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def session_id(source: str) -> SessionId:
    """Return the id that a session of hermes-agent gets here. It depends on nothing else: a folder and its
    backup give the same ids. Ids of hermes-agent have a date and random digits."""
    return SessionId(SESSION_PREFIX + derived_id("session", source))


def derived_id(kind: str, source: str) -> str:
    number = int.from_bytes(
        hashlib.sha256(f"hermes:{kind}:{source}".encode("utf-8", "replace")).digest()[:17]
    )
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


# -- chats ------------------------------------------------------------------------------------------------


def chat_of(agent: str, origin: Mapping[str, Any]) -> ChatKey | None:
    """Return the chat here that is the same as a chat there; None for what is no chat of a platform.

    A private chat has the person's id here, and all people of a group share its conversation.
    """
    platform, kind = _text(origin.get("platform")), _text(origin.get("chat_type")) or "dm"
    chat, thread = _text(origin.get("chat_id")), _text(origin.get("thread_id")) or None
    if platform in ("", "cli", "local", "cron", "tool", "api_server", "webhook", "acp", "tui") or not chat:
        return None
    if kind == "dm":
        person = chat if platform == "telegram" else _text(origin.get("user_id")) or chat
        return ChatAddress(agent, platform, "dm", person, thread if platform == "telegram" else None).key()
    if platform == "discord" and kind == "thread":
        return ChatAddress(agent, platform, "group", _text(origin.get("parent_chat_id")) or chat, chat).key()
    return ChatAddress(agent, platform, "group", chat, thread).key()


def read_routes(home: HermesHome, database: sqlite3.Connection | None) -> dict[str, Route]:
    """Return the chats of the home by their keys. The database wins over the older file."""
    found = {key: _route(entry) for key, entry in table(home.json("sessions/sessions.json")).items()}
    if database is not None and "gateway_routing" in _tables(database):
        for key, text in database.execute("SELECT session_key, entry_json FROM gateway_routing"):
            found[key] = _route(read_json(text))
    return {key: route for key, route in found.items() if route.session_id}


def _route(entry: object) -> Route:
    known = table(entry)
    origin = dict(table(known.get("origin")))
    for name in ("platform", "chat_type"):
        origin.setdefault(name, known.get(name))
    return Route(_text(known.get("session_id")), origin, _text(known.get("updated_at")))


# -- conversations ----------------------------------------------------------------------------------------


def plan_sessions(
    home: HermesHome, database: sqlite3.Connection | None, agent: str
) -> Iterator[tuple[ImportItem, SourceConversation | None]]:
    """Yield an item for each conversation, oldest first, and one for each session that is not imported."""
    if database is None:
        return
    routes = read_routes(home, database)
    parts = _read_parts(database)
    tips = {route.session_id: route for route in routes.values()}
    conversations = [
        SourceConversation(chain, _chat_key(agent, chain, tips))
        for chain in _join(parts)
        if not _is_internal(chain[0])
    ]
    current = _choose_current(conversations, tips)
    used = {part.id for each in conversations for part in each.parts}
    for each in conversations:
        each = msgspec.structs.replace(each, is_current=each.id in current)  # noqa: PLW2901
        item = ImportItem(
            f"session:{each.parts[0].id}",
            ImportKind.SESSION,
            _title(database, each),
            ImportState.PLANNED,
            each.id,
            messages=each.rows,
        )
        yield (item, each) if each.rows else (item.skip("It has no messages."), None)
    for part in parts.values():
        if part.id not in used:
            yield _lone(part.id, part.rows).skip("It is a subagent's or an internal session."), None
    for found, rows in _count_rows(database).items():
        if found not in parts:
            yield _lone(found, rows).skip("Its messages belong to no session of the database."), None


def _lone(source: str, rows: int) -> ImportItem:
    source = _clean(source)
    return ImportItem(f"session:{source}", ImportKind.SESSION, source, ImportState.SKIPPED, messages=rows)


def _read_parts(database: sqlite3.Connection) -> dict[str, SourceSession]:
    rows = _count_rows(database)
    columns = _columns(database, "sessions", _SESSION_COLUMNS)
    found = {}
    for row in database.execute(f"SELECT {columns} FROM sessions ORDER BY started_at, id"):  # noqa: S608
        known = dict(row)
        origin = dict(table(read_json(known.get("origin_json"))))
        origin.setdefault("platform", known.get("source"))
        for name in ("chat_id", "chat_type", "thread_id", "user_id"):
            origin.setdefault(name, known.get(name))
        key = str(known["id"])
        found[key] = SourceSession(
            key,
            _text(known.get("source")),
            _text(known.get("title")),
            _text(known.get("model")),
            _text(known.get("parent_session_id")),
            _text(known.get("end_reason")),
            _time(known.get("started_at"), _FIRST_TIME),
            origin,
            table(read_json(known.get("model_config"))),
            rows.get(key, 0),
        )
    return found


def _count_rows(database: sqlite3.Connection) -> dict[str, int]:
    return dict(map(tuple, database.execute("SELECT session_id, count(*) FROM messages GROUP BY session_id")))


def _join(parts: Mapping[str, SourceSession]) -> Iterator[tuple[SourceSession, ...]]:
    """Yield the chains of sessions that compression made of one conversation. A session whose parents form a
    circle begins a chain of its own."""
    following: dict[str, SourceSession] = {}
    for part in parts.values():
        parent = parts.get(part.parent)
        if parent is not None and parent.end_reason == _COMPRESSED and not part.is_apart:
            following.setdefault(parent.id, part)
    followers = {part.id for part in following.values()}
    joined = set[str]()
    for part in (*(each for each in parts.values() if each.id not in followers), *parts.values()):
        chain, at = list[SourceSession](), part
        while at.id not in joined:
            joined.add(at.id)
            chain.append(at)
            at = following.get(at.id, at)
        if chain:
            yield tuple(chain)


def _is_internal(part: SourceSession) -> bool:
    return part.source == "tool" or bool(part.config.get("_delegate_from"))


def _chat_key(agent: str, chain: Sequence[SourceSession], tips: Mapping[str, Route]) -> ChatKey:
    routed = next((tips[part.id].origin for part in reversed(chain) if part.id in tips), None)
    for origin in (routed, *(part.origin for part in reversed(chain))):
        if origin is not None and (key := chat_of(agent, origin)) is not None:
            return key
    return ChatAddress(agent, "http", "api", CHAT).key()


def _choose_current(conversations: Sequence[SourceConversation], tips: Mapping[str, Route]) -> set[SessionId]:
    """Return the conversation that each chat continues: the one that was routed last, and for conversations
    without a chat the newest."""
    ranked: dict[ChatKey, list[tuple[str, float, SessionId]]] = defaultdict(list)
    for each in conversations:
        routed = [tips[part.id].updated_at for part in each.parts if part.id in tips]
        if each.rows and (routed or ChatAddress.parse(each.chat_key).channel == "http"):
            ranked[each.chat_key].append((max(routed, default=""), each.parts[-1].started_at, each.id))
    return {max(found)[-1] for found in ranked.values()}


def _title(database: sqlite3.Connection, conversation: SourceConversation) -> str:
    for part in reversed(conversation.parts):
        if title := shorten_title(_clean(part.title)):
            return title
    for part in conversation.parts:
        row = database.execute(
            "SELECT substr(content, 1, 500) FROM messages WHERE session_id = ? AND role = 'user' "
            "AND length(content) < 1000000 ORDER BY id LIMIT 1",
            (part.id,),
        ).fetchone()
        words = "" if row is None else _clean(_text(row[0]))
        if words and not words.startswith("json:") and (title := first_words(UserMessage((Text(words),)))):
            return title
    return ""


# -- logs -------------------------------------------------------------------------------------------------


_Place: TypeAlias = tuple[SourceSession, int]  # a session, and the id of a row


class LogReader:
    """Reads the log of a conversation, one row at a time. `left_out` counts the rows that are not in it."""

    def __init__(self, database: sqlite3.Connection, conversation: SourceConversation) -> None:
        self._database = database
        self._conversation = conversation
        columns = _columns(database, "messages", _MESSAGE_COLUMNS)
        self._select = f"SELECT {columns} FROM messages WHERE id = ?"  # noqa: S608 - columns of the database
        self._known = set(_columns(database, "messages", ("active", "compacted")).split(", "))
        self.left_out: Counter[str] = Counter()

    def order(self, title: str) -> ImportSession:
        parts = self._conversation.parts
        ids = [part.id for part in parts]
        marks = ", ".join("?" * len(ids))
        last = self._database.execute(
            f"SELECT max(timestamp) FROM messages WHERE session_id IN ({marks}) AND timestamp < ?",  # noqa: S608
            (*ids, time.time()),
        ).fetchone()[0]
        began = parts[0].started_at
        return ImportSession(
            self._conversation.id,
            self._conversation.chat_key,
            began,
            max(_time(last, began), began),
            title,
            self._conversation.is_current,
            self.read,
        )

    def read(self) -> Iterator[tuple[float, EntryBody]]:
        """Yield the entries with their times: first all that the model does not see any more, then a summary
        that stands for it, then the rest."""
        self.left_out = Counter()
        *earlier, last = self._conversation.parts
        count, at = 0, self._conversation.parts[0].started_at
        folded = [(part, row) for part in earlier for row in self._ids(part, "active = 1 OR compacted = 1")]
        folded += [(last, row) for row in self._ids(last, "active <> 1 AND compacted = 1")]
        for part in self._conversation.parts:
            if hidden := len(self._ids(part, "active <> 1 AND compacted <> 1")):
                self.left_out["undone in hermes-agent"] += hidden
        shown = [(last, row) for row in self._ids(last, "active = 1")]
        for moment, body in self._entries(folded, at, shown):
            count, at = count + 1, moment
            yield at, body
        if count:
            yield at, Summary(1, count, _SUMMARY)
        yield from self._entries(shown, at, ())

    def _ids(self, part: SourceSession, condition: str) -> list[int]:
        """Return the ids of the rows of a session; older databases have no column `active` or `compacted`."""
        for name, default in (("active", "1"), ("compacted", "0")):
            value = f"coalesce({name}, {default})" if name in self._known else default
            condition = condition.replace(name, value)
        found = self._database.execute(
            f"SELECT id FROM messages WHERE session_id = ? AND ({condition})",  # noqa: S608 - constants
            (part.id,),
        )
        return sorted(row[0] for row in found)

    def _entries(
        self, rows: Sequence[_Place], at: float, then: Sequence[_Place]
    ) -> Iterator[tuple[float, EntryBody]]:
        """Yield the entries of some rows. `then` are the rows that follow them."""
        waiting: dict[str, ToolResult | None] = {}
        names: dict[str, str] = {}
        is_review = False
        for (part, key), following in zip(rows, (*rows[1:], then[0] if then else None), strict=False):
            row = self._row(key)
            if row is None:
                continue
            at, role = _time(row.get("timestamp"), at), _text(row.get("role"))
            if role == "tool":
                self._take_result(row, waiting, names)
                continue
            if waiting:
                yield at, _results(waiting, names)
                waiting, names = {}, {}
            body = _message(part, key, row)
            if role == "user":
                is_review = isinstance(body, UserMessage) and body.text.startswith(_REVIEWS)
            if is_review:
                self.left_out["reviews that hermes-agent asks itself for"] += 1
            elif body is None:
                self.left_out["system prompts" if role == "system" else "empty or hidden messages"] += 1
            elif following and following[0].id != part.id and self._repeats(row, following[1]):
                self.left_out["repeated where hermes-agent compressed"] += 1
            else:
                yield at, body
                if isinstance(body, AssistantMessage):
                    names = {call.id: call.name for call in body.tool_calls}
                    waiting = dict.fromkeys(names)
        if waiting:
            yield at, _results(waiting, names)

    def _take_result(
        self, row: Mapping[str, Any], waiting: dict[str, ToolResult | None], names: Mapping[str, str]
    ) -> None:
        call = _clean(_text(row.get("tool_call_id")))
        if call in waiting and waiting[call] is None:
            waiting[call] = _result(call, names[call], row)
        else:
            self.left_out["tool results without a call"] += 1

    def _repeats(self, row: Mapping[str, Any], key: int) -> bool:
        """Return whether the row with this key, with which the next session begins, is the same message of a
        person: hermes-agent repeats it there."""
        if row.get("role") != "user":
            return False
        try:
            other = self._database.execute(self._select, (key,)).fetchone()
        except sqlite3.DatabaseError:
            return False
        return all(other[name] == row[name] for name in ("role", "content"))

    def _row(self, key: int) -> dict[str, Any] | None:
        try:
            row = self._database.execute(self._select, (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            is_large = "too big" in str(error)
            self.left_out["larger than 8 MB" if is_large else "damaged in the database"] += 1
            return None
        return dict(row)


def limit_rows(database: sqlite3.Connection) -> None:
    """Refuse values that would need much memory: reading one raises `sqlite3.DatabaseError`."""
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW)


def _message(part: SourceSession, key: int, row: Mapping[str, Any]) -> UserMessage | AssistantMessage | None:
    """Return the message of a row; None for one that is empty, scaffolding, or of another role."""
    role, parts = row.get("role"), _parts(row.get("content"))
    if row.get("display_kind") == "hidden":
        return None
    if role == "user":
        observed = True if row.get("observed") else msgspec.UNSET
        return UserMessage(parts, untrusted=observed) if parts else None
    if role == "assistant":
        text, calls = "\n".join(each.text for each in parts if isinstance(each, Text)), _calls(key, row)
        return AssistantMessage(text, calls, model=_clean(part.model)) if text.strip() or calls else None
    return None


def _calls(key: int, row: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    found: dict[str, ToolCall] = {}
    calls = read_json(row.get("tool_calls"))
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = table(table(call).get("function"))
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments or {}).decode()
        call_id = _clean(_text(table(call).get("id"))) or f"call_{key}_{index}"
        found.setdefault(call_id, ToolCall(call_id, _clean(_text(function.get("name"))), _clean(arguments)))
    return tuple(found.values())


def _result(call: str, name: str, row: Mapping[str, Any]) -> ToolResult:
    """Return a result. It is untrusted: nothing says what brought it."""
    result = ToolResult.of(call, name, _parts(row.get("content")))
    return msgspec.structs.replace(result, untrusted=True)


def _results(waiting: Mapping[str, ToolResult | None], names: Mapping[str, str]) -> ToolResults:
    return ToolResults(
        tuple(
            result or ToolResult(call, names[call], _MISSING, ToolOutcome.UNKNOWN)
            for call, result in waiting.items()
        )
    )


def _parts(content: object) -> tuple[Part, ...]:
    """Return the parts of a content: a text, or a JSON list behind a mark."""
    text = _text(content)
    if not text.startswith(_ENCODED):
        return (Text(_clean(text)),) if text.strip() else ()
    value = read_json(text.removeprefix(_ENCODED))
    if not isinstance(value, list):
        return (Text(_clean(text.removeprefix(_ENCODED))),)
    return tuple(part for each in value if (part := _part(each)) is not None)


def _part(value: object) -> Part | None:
    known = table(value)
    image = known.get("image_url")
    url = _text(table(image).get("url") if isinstance(image, dict) else image)
    if url.startswith(("data:image/", "https://")):
        return Image(_clean(url))
    text = value if isinstance(value, str) else _text(known.get("text")) or (f"[image {url}]" if url else "")
    return Text(_clean(text)) if text.strip() else None


# -- values -----------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Return a value as text. Values of SQLite and JSON have any type."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _clean(text: str) -> str:
    """Return a text without surrogates and zero characters, which PostgreSQL cannot hold."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _time(value: object, otherwise: float) -> float:
    if (
        isinstance(value, int | float)
        and math.isfinite(value)
        and _FIRST_TIME <= value <= time.time() + 86_400
    ):
        return float(value)
    return otherwise


def _tables(database: sqlite3.Connection) -> set[str]:
    return {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _columns(database: sqlite3.Connection, name: str, wanted: Sequence[str]) -> str:
    """Return those of the columns that the table has: every release adds some."""
    known = {row[1] for row in database.execute(f"PRAGMA table_info({name})")}
    return ", ".join(column for column in wanted if column in known)
