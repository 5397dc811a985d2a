"""Callers of the HTTP API: what each role may call, and which chats are a caller's own.

Callers that operate share the chats `agent:NAME:http:api:*`. A token with the role `chat` has chats of its
own, `agent:NAME:http:token:TOKEN:*`: another caller's chat of the same name is another chat, so nothing tells
this caller whether it exists.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from talaria.core.access import EVERY_ROLE, Role
from talaria.core.clock import Clock
from talaria.core.ids import EPHEMERAL, ChatAddress, ChatKey
from talaria.core.limits import BoundedDict
from talaria.core.turns import Sender
from talaria.observe.logs import AUDIT

CHANNEL: Final = "http"
SHARED, TOKEN = "api", "token"  # kinds of chats: of all callers that operate, and of one token


class RouteAccess(Enum):
    """The roles that may call a route. With `ALL`, a caller with the role `chat` gets its own chats only."""

    OPEN = frozenset[Role]()  # no credential is asked for
    ALL = EVERY_ROLE
    READ = frozenset({Role.READ, Role.OPERATE})
    CHAT = frozenset({Role.CHAT, Role.OPERATE})
    OPERATE = frozenset({Role.OPERATE})

    def __init__(self, roles: frozenset[Role]) -> None:
        self.roles = roles


class Credential(Enum):
    """How a caller proved itself. Only the home's own token can make logins. `MEMBER`: another gateway of the
    cluster calls for a caller that has proved itself there."""

    HOME = "home"
    LOGIN = "login"
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    MEMBER = "member"


class ApiCaller(msgspec.Struct, frozen=True):
    """The caller of a request. `name` is the name of its token or the public id of its login."""

    credential: Credential
    name: str
    role: Role
    sender: Sender

    def __str__(self) -> str:
        return f"{self.credential.value}:{self.name}" if self.name else self.credential.value

    @property
    def owner(self) -> str:
        """The token whose chats are this caller's own; empty for the shared chats."""
        return self.name if self.role is Role.CHAT else ""

    @property
    def uploader(self) -> str | None:
        """The caller whose uploads exist for this one; None for every upload."""
        return None if self.role is Role.OPERATE else str(self)

    def chat_key(self, agent_name: str, name: str) -> ChatKey:
        """Return the key of this caller's chat with a session name."""
        if self.owner:
            return ChatAddress(agent_name, CHANNEL, TOKEN, self.owner, name).key()
        return ChatAddress(agent_name, CHANNEL, SHARED, name).key()

    def prefix(self, agent_name: str) -> str:
        """Return the beginning of the keys of all chats that this caller may see; empty for every chat."""
        return self.chat_key(agent_name, "") if self.owner else ""

    def owns(self, key: ChatKey) -> bool:
        address = ChatAddress.parse(key)
        if address.channel != CHANNEL:
            return False
        if self.owner:
            is_of_token = address.kind in (TOKEN, EPHEMERAL) and address.thread is not None
            return is_of_token and address.chat == self.owner
        return address.kind in (SHARED, EPHEMERAL) and address.thread is None

    def name_of(self, key: ChatKey) -> str | None:
        """Return the session name of a chat in this caller's paths, or None if it has none there."""
        address = ChatAddress.parse(key)
        if address.kind == EPHEMERAL or not self.owns(key):
            return None
        return address.thread if self.owner else address.chat

    def may_see(self, key: ChatKey) -> bool:
        """Return whether the chat exists for this caller."""
        return self.role is not Role.CHAT or self.owns(key)


HOME_CALLER: Final = ApiCaller(Credential.HOME, "", Role.OPERATE, Sender("api", "API", is_operator=True))


# -- the audit log: one structured line, on the logger `talaria.audit`, for each act of an operator -------


_log = logging.getLogger(AUDIT)
_REMEMBERED: Final = 1024
_HOURLY_LINES: Final = 100  # of one caller, for acts that failed
_PAUSE_SECONDS: Final = 3600.0


class AuditLog:
    """Writes audit lines, whatever `log.level` is. A line holds names, never codes or tokens."""

    def __init__(self, clock: Clock) -> None:
        _log.setLevel(logging.INFO)
        self._clock = clock
        self._written: BoundedDict[tuple[str, ...], float] = BoundedDict(_REMEMBERED)
        self._callers: dict[str, _CallerHour] = {}

    def note(self, action: str, who: str, address: str, about: str, result: str) -> None:
        fields = {"who": who, "address": address, "about": about, "result": result}
        _log.info("%s", action, extra=fields)

    def note_hourly(self, action: str, who: str, address: str, about: str, result: str) -> None:
        """Write a line unless the same one was written within an hour: for acts that a page or a program
        repeats by itself. The oldest are forgotten when there are many, and written again.

        A caller gets 100 lines an hour for failed acts, because it can name chats that do not exist. More are
        counted. One line says that the limit is reached, and a later one how many were left out.
        """
        line, now = (action, who, address, about, result), self._clock.elapsed()
        if now - self._written.get(line, -_PAUSE_SECONDS) < _PAUSE_SECONDS:
            return
        self._written[line] = now
        if result == "done":
            self.note(*line)
            return
        hour = self._callers.get(who)
        if hour is None or now - hour.began >= _PAUSE_SECONDS:
            if hour is not None and hour.lines > _HOURLY_LINES:
                self.note("lines.left_out", who, address, str(hour.lines - _HOURLY_LINES), "counted")
            hour = self._callers[who] = _CallerHour(now)
        hour.lines += 1
        if hour.lines <= _HOURLY_LINES:
            self.note(*line)
        elif hour.lines == _HOURLY_LINES + 1:
            self.note("lines.limited", who, address, "", "counted")


@dataclass(slots=True)
class _CallerHour:
    """The failed acts of one caller since `began`. Callers are tokens and logins, so there are few."""

    began: float
    lines: int = 0
