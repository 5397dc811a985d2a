"""Who does something, by which way it comes in, and what the answer to that can be."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.access import Person
from talaria.core.turns import Sender

LONGEST_NAME = 64


class ChatKind(StrEnum):
    """`BROADCAST`: a place where only its owners write, such as a Telegram channel."""

    PRIVATE = "private"
    GROUP = "group"
    BROADCAST = "broadcast"


class Way(StrEnum):
    """Every kind of ingress. A channel that gets a new kind of update adds it here, and the truth table in
    the tests asks who may use it."""

    MESSAGE = "message"
    COMMAND = "command"
    FILE = "file"
    EDIT = "edit"
    BUTTON = "button"
    REACTION = "reaction"
    MEMBERSHIP = "membership"
    INLINE = "inline"
    API = "api"
    WEBHOOK = "webhook"


class Actor(msgspec.Struct, frozen=True):
    """Whoever caused an inbound, as the platform vouches for it.

    `user_id` is the platform's immutable id of the *sender*, never of the chat, and empty where the platform
    names no person. `name` is for people to read and is compared with nothing. `speaks_as_chat`: an anonymous
    admin, or a channel as the sender; whichever person that was, nobody can tell.
    """

    channel: str
    user_id: str
    chat_kind: ChatKind
    chat_id: str
    name: str = ""
    is_bot: bool = False
    speaks_as_chat: bool = False

    @property
    def person(self) -> Person:
        """With a name that can be stored, logged and shown: short, and nothing in it that is not seen."""
        name = "".join(each for each in self.name[:LONGEST_NAME] if each.isprintable())
        return Person(self.channel, self.user_id, name)


class Standing(StrEnum):
    """Why someone is entitled, if they are."""

    LISTED = "listed"
    PAIRED = "paired"
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why not. For logs and metrics; nobody outside is told."""

    BOT = "bot"
    SPEAKS_AS_CHAT = "speaks_as_chat"
    NOBODY = "nobody"
    NOT_PRIVATE = "not_private"
    NOT_A_MESSAGE = "not_a_message"


class Entitled(msgspec.Struct, frozen=True):
    sender: Sender
    standing: Standing


class Stranger(msgspec.Struct, frozen=True):
    """Gets no turn, but may be told how to be let in: see `Door.greet`."""


class Denied(msgspec.Struct, frozen=True):
    """Gets no turn and not a word."""

    reason: Reason


Verdict = Entitled | Stranger | Denied
