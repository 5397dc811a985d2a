"""Conversations of openclaw, as its SQLite generation keeps them: one database for each agent.

A session is a tree of events, and the model sees one branch of it: what follows the last reset, or the
summary of the last compaction. All private chats of an agent may be one session, whatever person writes.
"""

from __future__ import annotations

import io
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from talaria.core.entries import EntryBody
from talaria.core.ids import ChatKey
from talaria.core.installation import has_extra, install_extra
from talaria.core.messages import AssistantMessage, Image, Part, Text, ToolOutcome, UserMessage
from talaria.core.sessions import shorten_title
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
from talaria.imports.target import Target

PROGRAM: Final = "openclaw"
_KEY: Final = re.compile(
    r"agent:[^:]+:([a-z]+):(direct|dm|group|channel|room):(.+?)(?::(?:thread|topic):(.+))?"
)
_EARLIER: Final = "[The earlier part of this conversation comes from openclaw, where it was reset.]"
_MAX_EVENT: Final = 4 << 20  # bytes, as openclaw limits them
_WINDOW: Final = (
    "session_id session_key session_scope created_at updated_at spawned_by display_name "
    "primary_conversation_id"
)
_COUNTED: Final = "SELECT session_id, count(*) FROM transcript_events GROUP BY session_id"
_PACKED: Final = "SELECT DISTINCT session_id FROM transcript_events WHERE event_json IS NULL"
_CONVERSATION: Final = (
    "conversation_id channel kind peer_id thread_id native_channel_id native_direct_user_id"
)


def plan_sessions(
    home: SourceHome, database: sqlite3.Connection, agent: str, target: Target
) -> Iterator[tuple[ImportItem, SourceLog | None]]:
    """Yield an item for each session of an agent of openclaw, oldest first."""
    chats = home.rows(database, "conversations", _CONVERSATION)
    conversations = {row["conversation_id"]: row for row in chats}
    nodes = home.rows(database, "session_nodes", "session_key current_session_id label")
    current = {row["session_key"]: row for row in nodes}
    counts = {text_of(key): count for key, count in database.execute(_COUNTED)}
    cold = home.rows(database, "session_transcript_cold_archives", "session_id")
    archived = {text_of(row["session_id"]) for row in cold}
    packed = {text_of(row[0]) for row in database.execute(_PACKED)} if not has_extra("openclaw") else set()
    found = home.rows(database, "session_windows", _WINDOW)
    for row in sorted(
        found, key=lambda row: (_seconds(row["created_at"], FIRST_TIME), str(row["session_id"]))
    ):
        key, session = text_of(row["session_key"]), text_of(row["session_id"])
        node, count = current.get(key, {}), counts.pop(session, 0)
        title = shorten_title(clean_text(node.get("label") or row.get("display_name"))) or clean_text(key)
        item = _item(agent, session, title, count)
        if session in archived:
            yield item.skip("Its history is in a cold archive. Open it in openclaw, and import again."), None
        elif session in packed:
            yield (
                item.skip(f"Some of its messages are compressed. Install: {install_extra('openclaw')}"),
                None,
            )
        elif row.get("spawned_by") or ":subagent:" in key:
            yield item.skip("It is a subagent's session."), None
        elif not count:
            yield item.skip("It has no messages."), None
        else:
            conversation = conversations.get(row.get("primary_conversation_id"), {})
            chat, told = _chat(agent, target, row, conversation)
            began = _seconds(row["created_at"], FIRST_TIME)
            is_current = node.get("current_session_id") == row["session_id"]
            log = SourceLog(
                derived_session(PROGRAM, f"{agent}:{session}"),
                chat,
                is_current or chat == plain_chat(target.agent, PROGRAM),
                count,
                began,
                _seconds(row["updated_at"], began),
                partial(_read, database, row["session_id"], began, is_shared=bool(told)),
            )
            yield msgspec.structs.replace(item, target=log.id, note=told), log
    for session, count in counts.items():
        item = _item(agent, session, session, count)
        yield item.skip("Its events belong to no session that can be read."), None


def _item(agent: str, session: str, title: str, count: int) -> ImportItem:
    item_id = clean_text(f"session:{agent}:{session}")
    return ImportItem(item_id, ImportKind.SESSION, clean_text(title), ImportState.PLANNED, messages=count)


def _chat(
    agent: str, target: Target, row: Mapping[str, Any], conversation: Mapping[str, Any]
) -> tuple[ChatKey, str]:
    """Return the chat of a session here, and why it is the plain one. A session that all private chats share
    goes to the owner only."""
    plain, key, why = plain_chat(target.agent, PROGRAM), text_of(row["session_key"]), ""
    origin = _origin(key, conversation)
    if row.get("session_scope") == "shared-main" or key.endswith(":main"):
        why = "All private chats of openclaw shared it"
    elif agent != "main":
        why = f"It is of the agent {clean_text(agent)}"
    elif (chat := chat_of(target.agent, target.channels, origin)) is not None:
        return chat, ""
    elif origin:
        why = f"There is no channel {clean_text(origin['platform'])} here"
    return plain, f"{why}, so it is in the chat {PROGRAM}, which is yours." if why else ""


def _origin(key: str, known: Mapping[str, Any]) -> dict[str, object]:
    """Return the chat of a session; an empty one for a session of no chat."""
    if known:
        is_direct = known.get("kind") == "direct"
        peer = known.get("peer_id")
        return {
            "platform": text_of(known.get("channel")),
            "chat_type": "dm" if is_direct else "group",
            "chat_id": peer if is_direct else known.get("native_channel_id") or peer,
            "user_id": known.get("native_direct_user_id") or peer,
            "thread_id": known.get("thread_id"),
        }
    match = _KEY.fullmatch(key)
    if match is None:
        return {}
    kind = "dm" if match[2] in ("direct", "dm") else "group"
    return {"platform": match[1], "chat_type": kind, "chat_id": match[3], "thread_id": match[4]}


def _seconds(value: object, otherwise: float) -> float:
    """Return a time that is in milliseconds."""
    return moment(value, otherwise, 1000)


# -- logs -------------------------------------------------------------------------------------------------


class _Node(msgspec.Struct, frozen=True):
    """An event in the tree. `first_kept` is the event from which on the model sees what was before."""

    seq: int
    id: str
    parent: str
    kind: str
    first_kept: str


def _read(
    database: sqlite3.Connection, session: object, began: float, left_out: Counter[str], *, is_shared: bool
) -> Iterator[tuple[float, EntryBody]]:
    writer = LogWriter(PROGRAM, began, left_out)
    seqs = [row[0] for row in database.execute(
        "SELECT seq FROM transcript_events WHERE session_id = ? ORDER BY seq", (session,)
    )]  # fmt: skip
    nodes: dict[int, _Node] = {}
    senders = {""}
    for seq in seqs:
        event = _event(database, session, seq, left_out)
        if event is not None:
            names = ("id", "parentId", "type", "firstKeptEntryId")
            nodes[seq] = _Node(seq, *(text_of(event.get(name)) for name in names))
            senders.add(text_of(_sender(event).get("senderId")))
    path = _branch(database, session, nodes)
    left_out["on a branch that was left"] += len(nodes) - len(path)
    shown, summary = 0, ""
    places = {node.id: index for index, node in enumerate(path)}
    for index, node in enumerate(path):
        if node.kind in ("reset", "compaction"):
            shown = max(shown, places.get(node.first_kept, index + 1))
            event = _event(database, session, node.seq, Counter()) if node.kind == "compaction" else None
            summary = clean_text((event or {}).get("summary"))
    for index, node in enumerate(path):
        if index == shown:
            yield from writer.fold(summary or _EARLIER)
        event = _event(database, session, node.seq, Counter())
        writer.at = _seconds(table((event or {}).get("message")).get("timestamp"), writer.at)
        is_strange = len(senders) > 2 and _sender(event or {}).get("senderIsOwner") is False
        yield from _entries(writer, node, event or {}, left_out, is_untrusted=is_shared and is_strange)
    yield from writer.fold(summary or _EARLIER) if shown >= len(path) > 0 else writer.settle()
    for reason in [reason for reason, count in left_out.items() if not count]:
        del left_out[reason]


def _event(
    database: sqlite3.Connection, session: object, seq: int, left_out: Counter[str]
) -> Mapping[str, Any] | None:
    try:
        row = database.execute(
            "SELECT * FROM transcript_events WHERE session_id = ? AND seq = ?", (session, seq)
        ).fetchone()
    except sqlite3.DatabaseError:
        left_out["damaged, or larger than 8 MB"] += 1
        return None
    text = row["event_json"]
    if text is None and "event_zstd" in row.keys():  # noqa: SIM118 - a row of SQLite
        text = _unpacked(row["event_zstd"])
    value = read_json(text_of(text)) if len(text_of(text)) <= _MAX_EVENT else None
    if not isinstance(value, dict):
        left_out["damaged, or larger than 8 MB"] += 1
        return None
    return value


def _sender(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return table(table(event.get("message")).get("__openclaw"))


def _unpacked(data: bytes) -> bytes:
    import zstandard  # noqa: PLC0415 - an extra

    try:
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(_MAX_EVENT + 1)
    except zstandard.ZstdError:
        return b""


def _branch(database: sqlite3.Connection, session: object, nodes: Mapping[int, _Node]) -> Sequence[_Node]:
    """Return the events of the branch that is visible, in order."""
    try:
        active = database.execute(
            "SELECT event_seq FROM session_transcript_active_events WHERE session_id = ? "
            "ORDER BY active_position",
            (session,),
        ).fetchall()
    except sqlite3.DatabaseError:
        active = []
    if active:
        return [nodes[row[0]] for row in active if row[0] in nodes]
    by_id = {node.id: node for node in nodes.values() if node.id}
    path: dict[str, _Node] = {}
    at = next((node for node in reversed([*nodes.values()]) if node.id and node.kind != "session"), None)
    while at is not None and at.id not in path:
        path[at.id] = at
        at = by_id.get(at.parent)
    return [*reversed(path.values())]


def _entries(
    writer: LogWriter, node: _Node, event: Mapping[str, Any], left_out: Counter[str], *, is_untrusted: bool
) -> Iterator[tuple[float, EntryBody]]:
    """Yield the entries of an event, or count why it has none."""
    message = table(event.get("message"))
    role = text_of(message.get("role"))
    if node.kind in ("custom_message", "branch_summary"):
        parts = _parts(event.get("content") or event.get("summary"))
    elif node.kind != "message":
        left_out["settings and marks of openclaw"] += 1
        return
    else:
        parts = _parts(message.get("content"))
    body: UserMessage | AssistantMessage | None = None
    if role == "toolResult":
        outcome = ToolOutcome.ERROR if message.get("isError") is True else ToolOutcome.OK
        writer.take(clean_text(message.get("toolCallId")), parts, outcome)
        return
    if message.get("runtimeContextCarrier"):
        left_out["runtime context of openclaw"] += 1
        return
    if role == "assistant":
        if message.get("provider") == "openclaw" and message.get("model") == "delivery-mirror":
            left_out["copies of sent messages"] += 1
            return
        given = message.get("content")
        calls = {
            key: tool_call(key, call.get("name"), call.get("arguments"))
            for each in (given if isinstance(given, list) else ())
            if (call := table(each)).get("type") == "toolCall" and (key := clean_text(call.get("id")))
        }
        text = "\n".join(part.text for part in parts if isinstance(part, Text))
        if text or calls:
            body = AssistantMessage(text, tuple(calls.values()), model=clean_text(message.get("model")))
    elif parts:
        body = UserMessage(parts, untrusted=True if is_untrusted else msgspec.UNSET)
    if body is None:
        left_out["empty messages"] += 1
    else:
        yield from writer.add(body)


def _parts(content: object) -> tuple[Part, ...]:
    found: list[Part] = []
    for each in content if isinstance(content, list) else [content]:
        known = table(each)
        if known.get("type") == "image" and isinstance(data := known.get("data"), str):
            given = clean_text(known.get("mimeType"))
            media_type = given if given.startswith("image/") else "image/png"
            found.append(Image(f"data:{media_type};base64,{clean_text(data)}"))
        else:
            found += words(known.get("text") if known else each)
    return tuple(found)
