"""Conversations of hermes-agent: which sessions are one conversation, whose chat it is in, and its log.

hermes-agent begins a new session when it compresses a conversation, so one conversation is a chain of
sessions. The model sees the active rows of the last one. All earlier rows stay readable and searchable here:
a summary stands for them, as after a compaction of ours.
"""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Final, TypeAlias

import msgspec

from talaria.core.entries import EntryBody
from talaria.core.ids import ChatAddress, ChatKey, SessionId
from talaria.core.messages import AssistantMessage, Image, Part, Text, ToolCall, UserMessage
from talaria.core.sessions import first_words, shorten_title
from talaria.imports.item import ImportItem, ImportKind, ImportState
from talaria.imports.logs import (
    FIRST_TIME,
    LogWriter,
    SourceLog,
    chat_of,
    derived_session,
    moment,
    plain_chat,
    tool_call,
    words,
)
from talaria.imports.source import SourceHome, clean_text, read_json, table, text_of

PROGRAM: Final = "hermes"
NO_PLATFORMS: Final = frozenset(
    (
        "",
        "cli",
        "local",
        "cron",
        "tool",
        "api_server",
        "acp",
        "tui",
        "desktop",
        "gateway",
        "curator",
        "unknown",
    )
)
_ENCODED: Final = "\0json:"
_COMPRESSED: Final = "compression"
_MEMORY_TAG: Final = re.compile(r"<(/?)\s*memory-context\s*>", re.IGNORECASE)
_MEMORY: Final = re.compile(r"<\s*memory-context\s*>.*?</\s*memory-context\s*>", re.IGNORECASE | re.DOTALL)
_MEMORY_NOTE: Final = re.compile(
    r"\[System note:\s*The following is recalled memory context,\s*NOT new user input\.\s*Treat as "
    r"(?:informational background data|authoritative reference data[^\]]{0,400})\.\]\s*",
    re.IGNORECASE,
)
_NO_MESSAGES: Final = {
    "system": "system prompts",
    "user": "empty messages",
    "assistant": "empty messages",
}
_REVIEWS: Final = (
    "Review the conversation above and update the skill library",
    "Review the conversation above and consider saving to memory",
)
_SUMMARY: Final = (
    "[The earlier part of this conversation comes from hermes-agent, which compressed it. Its own summary, "
    "if it wrote one, follows.]"
)
_SESSION_COLUMNS: Final = (
    "id source title model model_config parent_session_id started_at ended_at end_reason user_id chat_id "
    "chat_type thread_id origin_json"
)
_MESSAGE_COLUMNS: Final = "role content api_content tool_call_id tool_calls timestamp observed"
_TIMES: Final = "CASE WHEN typeof(timestamp) IN ('real', 'integer') THEN timestamp END"
_ORIGIN: Final = ("platform", "chat_id", "chat_type", "thread_id", "user_id", "parent_chat_id")


class Route(msgspec.Struct, frozen=True):
    """A chat of hermes-agent and the session that its next message continues."""

    session_id: str
    origin: Mapping[str, str]
    updated_at: str


class SourceSession(msgspec.Struct, frozen=True):
    """A session of hermes-agent as its row describes it. `key` is the id as the database has it, and `rows`
    counts its messages, of which the last is of `last_at`. It `is_apart` if it began apart from its parent:
    as a branch, as a subagent, or after a reset."""

    id: str
    key: object
    title: str
    model: str
    parent: str
    end_reason: str
    started_at: float
    has_ended: bool
    origin: Mapping[str, str]
    is_apart: bool
    is_internal: bool
    rows: int
    last_at: float


class SourceConversation(msgspec.Struct, frozen=True):
    """Sessions that are one conversation, oldest first. `platform` is that of its chat if this chat is not
    one here: then nobody knows who wrote in it."""

    parts: tuple[SourceSession, ...]
    chat_key: ChatKey
    platform: str = ""

    @property
    def id(self) -> SessionId:
        return derived_session(PROGRAM, self.parts[0].id)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def log(self, database: sqlite3.Connection, is_current: bool) -> SourceLog:
        began = self.parts[0].started_at
        last = max(part.last_at for part in self.parts)
        read = partial(_read, database, self)
        return SourceLog(self.id, self.chat_key, is_current, self.rows, began, last, read)


# -- chats ------------------------------------------------------------------------------------------------


def read_routes(home: SourceHome, database: sqlite3.Connection) -> dict[str, Route]:
    """Return the chats of the home by their keys. The database wins over the older file."""
    found = {key: _route(entry) for key, entry in table(home.json("sessions/sessions.json")).items()}
    for row in home.rows(database, "gateway_routing", "session_key entry_json"):
        if (entry := read_json(text_of(row["entry_json"]))) is not None:
            found[text_of(row["session_key"])] = _route(entry)
    return {key: route for key, route in found.items() if route.session_id}


def _route(entry: object) -> Route:
    known = table(entry)
    origin = _origin(known.get("origin"), known)
    return Route(text_of(known.get("session_id")), origin, text_of(known.get("updated_at")))


def _origin(given: object, otherwise: Mapping[str, Any]) -> dict[str, str]:
    known = table(given)
    return {name: text_of(known.get(name) or otherwise.get(name)) for name in _ORIGIN}


# -- conversations ----------------------------------------------------------------------------------------


def plan_sessions(
    home: SourceHome, database: sqlite3.Connection, agent: str, channels: Collection[str]
) -> Iterator[tuple[ImportItem, SourceLog | None]]:
    """Yield an item for each conversation, oldest first, and one for each session that is not imported."""
    parts, rows = _read_parts(home, database)
    tips = {route.session_id: route for route in read_routes(home, database).values()}
    conversations = [
        SourceConversation(joined, *_find_chat(agent, channels, joined, tips))
        for joined in _join(parts)
        if not joined[0].is_internal
    ]
    current = _choose_current(conversations, tips)
    used = {part.id for each in conversations for part in each.parts}
    for each in conversations:
        note = ""
        if each.platform:
            is_known = each.platform in channels
            why = f"Its chat on {each.platform} is not recorded" if is_known else ""
            why = why or f"There is no channel {each.platform} here"
            note = f"{why}, so it is in the chat {PROGRAM}. People's messages there are untrusted."
        item = ImportItem(
            f"{ImportKind.SESSION}:{each.parts[0].id}",
            ImportKind.SESSION,
            _title(database, each),
            ImportState.PLANNED,
            each.id,
            note=note,
            messages=each.rows,
        )
        is_current = each.id in current
        yield (
            (item, each.log(database, is_current)) if each.rows else (item.skip("It has no messages."), None)
        )
    for part in parts.values():
        if part.id not in used:
            yield _lone(part.id, part.rows).skip("It is a subagent's or an internal session."), None
    for found, (count, _) in rows.items():
        if found not in parts:
            yield _lone(found, count).skip("Its messages belong to no session that can be read."), None


def _lone(source: str, rows: int) -> ImportItem:
    source = clean_text(source)
    return ImportItem(f"session:{source}", ImportKind.SESSION, source, ImportState.SKIPPED, messages=rows)


def _read_parts(
    home: SourceHome, database: sqlite3.Connection
) -> tuple[dict[str, SourceSession], dict[str, tuple[int, float]]]:
    """Return the sessions by their ids, oldest first, and for each id the number of its messages with the
    time of the last."""
    rows: dict[str, tuple[int, float]] = {}
    counted = f"SELECT session_id, count(*), max({_TIMES}) FROM messages GROUP BY session_id"  # noqa: S608
    for key, count, last in database.execute(counted):
        before, at = rows.get(text_of(key), (0, 0.0))
        rows[text_of(key)] = before + count, max(at, moment(last, 0.0))
    found = []
    for known in home.rows(database, "sessions", _SESSION_COLUMNS):
        config, source = table(read_json(text_of(known.get("model_config")))), text_of(known.get("source"))
        key = text_of(known["id"])
        count, last_at = rows.get(key, (0, 0.0))
        started_at = moment(known.get("started_at"), FIRST_TIME)
        marks = [bool(config.get(name)) for name in ("_delegate_from", "_branched_from", "_reset_from")]
        found.append(
            SourceSession(
                key,
                known["id"],
                text_of(known.get("title")),
                clean_text(known.get("model")),
                text_of(known.get("parent_session_id")),
                text_of(known.get("end_reason")),
                started_at,
                known.get("ended_at") is not None,
                _origin(read_json(text_of(known.get("origin_json"))), {**known, "platform": source}),
                any(marks),
                source == "tool" or marks[0],
                count,
                last_at or started_at,
            )
        )
    return {part.id: part for part in sorted(found, key=lambda each: (each.started_at, each.id))}, rows


def _join(parts: Mapping[str, SourceSession]) -> Iterator[tuple[SourceSession, ...]]:
    """Yield the chains of sessions that compression made of one conversation. A session whose parents form a
    circle begins a chain of its own."""
    children: dict[str, list[SourceSession]] = defaultdict(list)
    for part in parts.values():
        parent = parts.get(part.parent)
        if (
            parent is not None
            and parent.end_reason == _COMPRESSED
            and not (part.is_apart or part.is_internal)
        ):
            children[parent.id].append(part)
    following = {parent: max(found, key=_likeness) for parent, found in children.items()}
    followers = {part.id for part in following.values()}
    joined = set[str]()
    for part in (*(each for each in parts.values() if each.id not in followers), *parts.values()):
        chained, at = list[SourceSession](), part
        while at.id not in joined:
            joined.add(at.id)
            chained.append(at)
            at = following.get(at.id, at)
        if chained:
            yield tuple(chained)


def _likeness(part: SourceSession) -> tuple[int, float, float, str]:
    """Return how likely a child continues its parent, as hermes-agent judges it: a child that was compressed
    itself, else one that is open, else the one with the newest message. Others are strays of a race."""
    rank = 2 if part.end_reason == _COMPRESSED else 0 if part.has_ended else 1
    return rank, part.last_at, part.started_at, part.id


def _find_chat(
    agent: str, channels: Collection[str], joined: Sequence[SourceSession], tips: Mapping[str, Route]
) -> tuple[ChatKey, str]:
    """Return the chat of a conversation here, and the platform of one whose chat is not one here."""
    routed = [tips[part.id].origin for part in reversed(joined) if part.id in tips]
    origins = [*routed[:1], *(part.origin for part in reversed(joined))]
    for origin in origins:
        if (key := chat_of(agent, channels, origin)) is not None:
            return key, ""
    platforms = [origin["platform"] for origin in origins if origin["platform"] not in NO_PLATFORMS]
    return plain_chat(agent, PROGRAM), clean_text(platforms[0]) if platforms else ""


def _choose_current(conversations: Sequence[SourceConversation], tips: Mapping[str, Route]) -> set[SessionId]:
    """Return the conversation that each chat continues: the one that was routed last, and for conversations
    without a chat the newest, rather one of this machine."""
    ranked: dict[ChatKey, list[tuple[str, bool, float, SessionId]]] = defaultdict(list)
    for each in conversations:
        is_plain = ChatAddress.parse(each.chat_key).channel == "http"
        routed = [tips[part.id].updated_at for part in each.parts if part.id in tips and not is_plain]
        if each.rows and (routed or is_plain):
            began = each.parts[-1].started_at
            ranked[each.chat_key].append((max(routed, default=""), not each.platform, began, each.id))
    return {max(found)[-1] for found in ranked.values()}


def _title(database: sqlite3.Connection, conversation: SourceConversation) -> str:
    for part in reversed(conversation.parts):
        if title := shorten_title(clean_text(part.title)):
            return title
    for part in conversation.parts:
        try:
            row = database.execute(
                "SELECT substr(content, 1, 500) FROM messages WHERE session_id = ? AND role = 'user' "
                "ORDER BY id LIMIT 1",
                (part.key,),
            ).fetchone()
        except sqlite3.DatabaseError:
            continue
        said = "" if row is None else clean_text(row[0])
        if said and not said.startswith("\ufffdjson:") and (title := first_words(UserMessage((Text(said),)))):
            return title
    return ""


# -- logs -------------------------------------------------------------------------------------------------


_Place: TypeAlias = tuple[SourceSession, int]  # a session, and the id of a row


def _read(
    database: sqlite3.Connection, conversation: SourceConversation, left_out: Counter[str]
) -> Iterator[tuple[float, EntryBody]]:
    """Yield the entries: first all that the model does not see any more, then a summary that stands for it,
    then the rest."""
    return _LogReader(database, conversation, left_out).read()


class _LogReader:
    """Reads the log of a conversation, one row at a time."""

    def __init__(
        self, database: sqlite3.Connection, conversation: SourceConversation, left_out: Counter[str]
    ) -> None:
        self._database = database
        self._conversation = conversation
        self._left_out = left_out
        self._writer = LogWriter("hermes-agent", conversation.parts[0].started_at, left_out)
        self._known = {row[1] for row in database.execute("PRAGMA table_info(messages)")}
        columns = ", ".join(name for name in _MESSAGE_COLUMNS.split() if name in self._known)
        self._select = f"SELECT {columns} FROM messages WHERE id = ?"  # noqa: S608 - columns of the database

    def read(self) -> Iterator[tuple[float, EntryBody]]:
        *earlier, last = self._conversation.parts
        folded = [(part, self._ids(part, "active = 1 OR compacted = 1")) for part in earlier]
        folded.append((last, self._ids(last, "active <> 1 AND compacted = 1")))
        shown = self._ids(last, "active = 1")
        hidden = sum(len(self._ids(part, "active <> 1 AND compacted <> 1")) for part in (*earlier, last))
        self._count("undone in hermes-agent", hidden)
        found = hidden + sum(len(ids) for _, ids in folded) + len(shown)
        self._count("not found by the id of their session", self._conversation.rows - found)
        then = (last, shown[0]) if shown else None
        yield from self._entries(((part, row) for part, ids in folded for row in ids), then)
        yield from self._writer.fold(_SUMMARY)
        yield from self._entries(((last, row) for row in shown), None)
        yield from self._writer.settle()

    def _count(self, reason: str, count: int = 1) -> None:
        if count:
            self._left_out[reason] += count

    def _ids(self, part: SourceSession, condition: str) -> array[int]:
        """Return the ids of the rows of a session; older databases have no column `active` or `compacted`."""
        for name, default in (("active", "1"), ("compacted", "0")):
            value = f"coalesce({name}, {default})" if name in self._known else default
            condition = condition.replace(name, value)
        found = self._database.execute(
            f"SELECT id FROM messages WHERE session_id = ? AND ({condition}) ORDER BY id",  # noqa: S608
            (part.key,),
        )
        return array("q", (row[0] for row in found))

    def _entries(self, places: Iterable[_Place], then: _Place | None) -> Iterator[tuple[float, EntryBody]]:
        """Yield the entries of some rows. `then` is the row that follows them."""
        writer, is_review = self._writer, False
        for place, following in pairwise(chain(places, (then,))):
            if place is None or (row := self._row(place[1])) is None:
                continue
            writer.at, role = moment(row.get("timestamp"), writer.at), text_of(row.get("role"))
            is_answer, is_review = is_review and role == "assistant", False
            if role == "tool":
                writer.take(clean_text(row.get("tool_call_id")), _parts(row.get("content")))
                continue
            body, aliases = _message(place, row, is_untrusted=bool(self._conversation.platform))
            if role in ("user", "system"):
                is_review = text_of(row.get("content")).lstrip().startswith(_REVIEWS)
            if is_review or is_answer:
                self._count("reviews that hermes-agent asks itself for")
            elif body is None:
                self._count(_NO_MESSAGES.get(role, "marks of hermes-agent"))
            elif following and following[0].id != place[0].id and self._repeats(row, following[1]):
                self._count("repeated where hermes-agent compressed")
            else:
                yield from writer.add(body, aliases)

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
            return dict(self._database.execute(self._select, (key,)).fetchone())
        except sqlite3.DatabaseError as error:
            is_large = "too big" in str(error)
            self._count("larger than 8 MB" if is_large else "damaged in the database")
            return None


def _message(
    place: _Place, row: Mapping[str, Any], *, is_untrusted: bool
) -> tuple[UserMessage | AssistantMessage | None, Mapping[str, str]]:
    """Return the message of a row as hermes-agent sends it, with other ids of its calls; None for one that is
    empty or of another role. `api_content` is what the model got, if that was not what `content` has."""
    role, content = row.get("role"), row.get("content")
    parts = words(text_of(row.get("api_content")).strip()) or _parts(content, _as_sent)
    if role == "user":
        untrusted = True if is_untrusted or row.get("observed") else msgspec.UNSET
        return UserMessage(parts, untrusted=untrusted) if parts else None, {}
    if role == "assistant":
        text = "\n".join(each.text for each in parts if isinstance(each, Text))
        calls, aliases = _calls(place[1], row)
        message = AssistantMessage(text, calls, model=place[0].model)
        return message if text or calls else None, aliases
    return None, {}


def _calls(key: int, row: Mapping[str, Any]) -> tuple[tuple[ToolCall, ...], dict[str, str]]:
    """Return the calls. Those of Codex have two ids, and results name either."""
    found: dict[str, ToolCall] = {}
    aliases: dict[str, str] = {}
    calls = read_json(text_of(row.get("tool_calls")))
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        known = table(call)
        function = table(known.get("function"))
        own, other = clean_text(known.get("id")), clean_text(known.get("call_id"))
        call_id = own or other or f"call_{key}_{index}"
        aliases |= {other: call_id} if other else {}
        found.setdefault(call_id, tool_call(call_id, function.get("name"), function.get("arguments")))
    return tuple(found.values()), aliases


def _as_sent(text: str) -> str:
    """Return a text of a person or the model as hermes-agent sends it again: without the memories that it had
    added, and the space around it."""
    closed = max((tag.end() for tag in _MEMORY_TAG.finditer(text) if tag[1]), default=0)
    text = _MEMORY.sub("", text[:closed]) + text[closed:]  # each block has an end, so this is linear
    return _MEMORY_TAG.sub("", _MEMORY_NOTE.sub("", text)).strip()


def _parts(content: object, change: Callable[[str], str] = str.strip) -> tuple[Part, ...]:
    """Return the parts of a content: a text, which hermes-agent strips, or a JSON list behind a mark."""
    text = text_of(content)
    value = read_json(text.removeprefix(_ENCODED)) if text.startswith(_ENCODED) else None
    if not isinstance(value, list):
        return words(change(text.removeprefix(_ENCODED)))
    return tuple(part for each in value for part in _part(each))


def _part(value: object) -> tuple[Part, ...]:
    known = table(value)
    image = known.get("image_url")
    url = text_of(table(image).get("url") if isinstance(image, dict) else image)
    if url.startswith(("data:image/", "https://")):
        return (Image(clean_text(url)),)
    return words(value) or words(known.get("text")) or (words(f"[image {url}]") if url else ())
