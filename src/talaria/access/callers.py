"""Callers of the HTTP API: what each role may call, and which chats are a caller's own.

Callers that operate share the chats `agent:NAME:http:api:*`. A token with the role `chat` has chats of its
own, `agent:NAME:http:token:TOKEN:*`: another caller's chat of the same name is another chat, so nothing tells
this caller whether it exists.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from talaria.core.access import EVERY_ROLE, Role
from talaria.core.ids import EPHEMERAL, ChatAddress, ChatKey
from talaria.core.turns import Sender

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
