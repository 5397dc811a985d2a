"""Identifiers, each with a type of its own, so that a `SessionId` cannot be passed as a `ChatKey`."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import NewType
from urllib.parse import quote, unquote

import msgspec

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
ChatKey = NewType("ChatKey", str)
SpecId = NewType("SpecId", str)
OwnerId = NewType("OwnerId", str)
PlaceId = NewType("PlaceId", str)
QuestionId = NewType("QuestionId", str)
JobId = NewType("JobId", str)
DelegateId = NewType("DelegateId", str)
Fence = NewType("Fence", int)

SESSION_PREFIX = "ses_"
TURN_PREFIX = "turn_"
JOB_PREFIX = "job_"
EPHEMERAL = "ephemeral"  # the kind of chat that a stateless call has
JOBS_CHANNEL = "jobs"  # the channel of the chats in which jobs and delegates run

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -1, -10)
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class _Entropy:
    """Random bytes of the system, read in pages: one system call per id would cost more than the id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page = b""

    def take(self, count: int) -> bytes:
        with self._lock:
            if len(self._page) < count:
                self._page = os.urandom(4096)
            taken, self._page = self._page[:count], self._page[count:]
            return taken


_entropy = _Entropy()


def _sortable() -> str:
    """Return 26 characters: 48 bits of milliseconds, then 80 random bits.

    The order helps people who read lists. Within one millisecond it is random, so no query relies on it.
    """
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(_entropy.take(10), "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def new_session_id() -> SessionId:
    return SessionId(SESSION_PREFIX + _sortable())


def new_turn_id() -> TurnId:
    return TurnId(TURN_PREFIX + _sortable())


def new_owner_id() -> OwnerId:
    return OwnerId("own_" + _sortable())


def new_job_id() -> JobId:
    return JobId(JOB_PREFIX + _sortable())


def new_question_id() -> QuestionId:
    return QuestionId("q_" + _sortable())


def is_session_name(text: str) -> bool:
    """Return whether `text` is a session name. Ids start with `ses_` and are never names."""
    return _NAME.fullmatch(text) is not None and not text.startswith(SESSION_PREFIX)


def _quote(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else quote(part, safe="")


class ChatAddress(msgspec.Struct, frozen=True):
    """The parts of a `ChatKey`, which is a place where people talk to an agent."""

    agent: str
    channel: str
    kind: str
    chat: str
    thread: str | None = None

    def key(self) -> ChatKey:
        parts = [self.agent, self.channel, self.kind, self.chat]
        if self.thread is not None:
            parts.append(self.thread)
        return ChatKey("agent:" + ":".join([_quote(part) for part in parts]))

    @classmethod
    def parse(cls, key: ChatKey) -> ChatAddress:
        """Raise ValueError for a text that `key()` cannot have made."""
        head, *parts = key.split(":")
        if head != "agent" or len(parts) not in (4, 5):
            raise ValueError(f"not a chat key: {key!r}")
        address = cls(*(unquote(part) for part in parts))
        if address.key() != key:
            raise ValueError(f"not a chat key: {key!r}")
        return address


def channel_of(key: ChatKey) -> str:
    """Return the channel of a valid key. Cheaper than `ChatAddress.parse`."""
    name = key.split(":", 3)[2]
    return unquote(name) if "%" in name else name


def job_chat(agent: str, job_id: JobId, asked_in: ChatKey) -> ChatKey:
    """Return the chat in which a job runs. Its key names the chat that asked for the job."""
    return ChatAddress(agent, JOBS_CHANNEL, "run", job_id, asked_in).key()


def jobs_within(agent: str, job_id: JobId) -> str:
    """Return how the keys of the chats of a job begin."""
    return f"{runs_within(agent)}run:{_quote(job_id)}:"


def runs_within(agent: str) -> str:
    """Return how the keys of the chats begin in which turns run that no person wrote: jobs and delegates."""
    return f"agent:{_quote(agent)}:{JOBS_CHANNEL}:"


def delegate_chat(agent: str, delegate_id: DelegateId, asked_in: ChatKey) -> ChatKey:
    """Return the chat of a delegate. Its key names the chat of the person whose turn handed the task out."""
    return ChatAddress(agent, JOBS_CHANNEL, "delegate", delegate_id, asked_in).key()


def all_delegates(agent: str) -> str:
    """Return how the keys of the chats of all delegates begin."""
    return f"{runs_within(agent)}delegate:"


def delegates_within(chat_key: ChatKey, holder: TurnId | DelegateId) -> str:
    """Return how the keys of the chats of all delegates below a turn or a delegate begin. `chat_key` is that
    of any chat of their agent."""
    agent = chat_key.split(":", 2)[1]
    return f"agent:{agent}:{JOBS_CHANNEL}:delegate:{_quote(holder)}."


def asking_chat(key: ChatKey) -> ChatKey:
    """Return the chat that asked for the job or the delegate that runs in this chat; for every other chat the
    chat itself."""
    parts = key.split(":", 5)
    return ChatKey(unquote(parts[5])) if len(parts) == 6 and parts[2] == JOBS_CHANNEL else key
