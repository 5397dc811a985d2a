"""Conversations as they are written here: logs that every provider accepts, from messages in any order."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from talaria.core.entries import EntryBody, Summary
from talaria.core.ids import SESSION_PREFIX, ChatAddress, ChatKey, SessionId
from talaria.core.ledger import ImportSession
from talaria.core.messages import (
    AssistantMessage,
    Part,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
    is_untrusted,
)
from talaria.imports.source import clean_text

FIRST_TIME: Final = 946_684_800.0  # the year 2000; an earlier time is damaged
_MAX_TIME: Final = 1e15
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 64  # characters of a tool's name, which providers take


class SourceLog(msgspec.Struct, frozen=True):
    """A conversation of a source. `rows` counts its messages there. `read` yields its entries with their
    times and counts in its argument, by reason, the messages that are left out. If `is_current`, the chat's
    next message continues it."""

    id: SessionId
    chat_key: ChatKey
    is_current: bool
    rows: int
    created_at: float
    updated_at: float
    read: Callable[[Counter[str]], Iterator[tuple[float, EntryBody]]]

    def order(self, title: str, left_out: Counter[str]) -> ImportSession:
        """Return the order that imports it. `left_out` is counted anew each time the order runs."""

        def entries() -> Iterator[tuple[float, EntryBody]]:
            left_out.clear()
            return self.read(left_out)

        times = (self.created_at, max(self.updated_at, self.created_at))
        return ImportSession(self.id, self.chat_key, *times, title, self.is_current, entries)


def derived_id(program: str, kind: str, source: str) -> str:
    """Return an id that depends on nothing else: a folder and its backup give the same ids."""
    digest = hashlib.sha256(f"{program}:{kind}:{source}".encode("utf-8", "replace")).digest()
    number = int.from_bytes(digest[:17])
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def derived_session(program: str, source: str) -> SessionId:
    return SessionId(SESSION_PREFIX + derived_id(program, "session", source))


def plain_chat(agent: str, program: str) -> ChatKey:
    """Return the chat of the conversations of terminals, jobs and programs."""
    return ChatAddress(agent, "http", "api", program).key()


def moment(value: object, otherwise: float, per_second: int = 1) -> float:
    """Return a time in seconds; `otherwise` for a value that is no time, or a damaged one."""
    is_time = (
        isinstance(value, int | float) and abs(value) < _MAX_TIME
    )  # not that of 400 digits, or no number
    seconds = value / per_second if is_time and isinstance(value, int | float) else 0.0
    return seconds if FIRST_TIME <= seconds <= time.time() + 86_400 else otherwise


class LogWriter:
    """Puts results behind their calls: a call without a result gets one that says so, and a result without a
    call is counted in `left_out`. With `fold` all that was written becomes invisible to the model."""

    def __init__(self, program: str, at: float, left_out: Counter[str]) -> None:
        self._missing = f"[The result of this call is missing in {program}.]"
        self._left_out = left_out
        self._waiting: dict[str, ToolResult | None] = {}
        self._calls: dict[str, ToolCall] = {}
        self._aliases: Mapping[str, str] = {}
        self._is_untrusted = False
        self._count = 0
        self.at = at

    def add(
        self, body: UserMessage | AssistantMessage, aliases: Mapping[str, str] = {}
    ) -> Iterator[tuple[float, EntryBody]]:
        """Yield the results that were waited for, then the message. `aliases` are other ids of its calls."""
        yield from self.settle()
        yield self._written(body)
        if isinstance(body, AssistantMessage):
            self._calls = {call.id: call for call in body.tool_calls}
            self._waiting, self._aliases = dict.fromkeys(self._calls), aliases

    def take(self, call_id: str, parts: tuple[Part, ...], outcome: ToolOutcome = ToolOutcome.OK) -> None:
        """Take a result. It is untrusted: nothing says what brought it."""
        call_id = self._aliases.get(call_id, call_id)
        if call_id in self._waiting and self._waiting[call_id] is None:
            result = ToolResult.of(call_id, self._calls[call_id].name, parts, outcome)
            self._waiting[call_id] = msgspec.structs.replace(result, untrusted=True)
        else:
            self._left_out["tool results without a call"] += 1

    def settle(self) -> Iterator[tuple[float, EntryBody]]:
        """Yield the results of the last message's calls, in the order of the calls."""
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            yield self._written(
                ToolResults(
                    tuple(
                        found or ToolResult(call, self._calls[call].name, self._missing, ToolOutcome.UNKNOWN)
                        for call, found in waiting.items()
                    )
                )
            )

    def fold(self, text: str) -> Iterator[tuple[float, EntryBody]]:
        """Yield a summary that stands for all entries so far."""
        yield from self.settle()
        if self._count:
            yield self._written(Summary(1, self._count, text, untrusted=self._is_untrusted))

    def _written(self, body: EntryBody) -> tuple[float, EntryBody]:
        self._count += 1
        if isinstance(body, UserMessage | ToolResults):
            self._is_untrusted = self._is_untrusted or is_untrusted(body)
        return self.at, body


def words(text: object) -> tuple[Part, ...]:
    """Return a text as the parts of a message, as it is; none for an empty one."""
    found = clean_text(text)
    return (Text(found),) if found.strip() else ()


def tool_call(call_id: str, name: object, arguments: object) -> ToolCall:
    """Return a call with a name that providers take."""
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments or {}).decode()
    known = _NOT_IN_NAMES.sub("_", clean_text(name))[:_MAX_NAME] or "unknown"
    return ToolCall(call_id, known, clean_text(arguments))


def chat_of(agent: str, channels: Collection[str], origin: Mapping[str, Any]) -> ChatKey | None:
    """Return the chat here that is the same as a chat there; None for one of no channel here, or not known.

    A private chat has the person's id here, and all people of a group share its conversation.
    """
    platform, kind = clean_text(origin.get("platform")), clean_text(origin.get("chat_type")) or "dm"
    chat, thread = clean_text(origin.get("chat_id")), clean_text(origin.get("thread_id")) or None
    if platform not in channels or not chat:
        return None
    if kind == "dm":
        person = chat if platform == "telegram" else clean_text(origin.get("user_id")) or chat
        return ChatAddress(agent, platform, "dm", person, thread if platform == "telegram" else None).key()
    if platform == "discord" and kind == "thread":  # a slash command does not record the channel around it
        parent = clean_text(origin.get("parent_chat_id"))
        return ChatAddress(agent, platform, "group", parent, chat).key() if parent else None
    return ChatAddress(agent, platform, "group", chat, thread).key()
