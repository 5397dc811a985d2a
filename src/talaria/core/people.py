"""People as tools, search and jobs see them: who somebody is, and which chats may be seen."""

from __future__ import annotations

from typing import Final, NewType, Protocol

import msgspec

from talaria.core.ids import ChatKey
from talaria.core.turns import Sender

PersonId = NewType("PersonId", str)
OWNER: Final = PersonId("owner")


class Reach(msgspec.Struct, frozen=True):
    """The chats that may be seen: every chat, if `roots` is None, else these and their threads."""

    roots: tuple[ChatKey, ...] | None = ()

    def includes(self, key: ChatKey) -> bool:
        return self.roots is None or any(key == root or key.startswith(f"{root}:") for root in self.roots)


EVERYTHING: Final = Reach(None)


class KnownPeople(Protocol):
    """The people that a gateway serves."""

    def of_sender(self, sender: Sender, key: ChatKey) -> PersonId:
        """Return the person who speaks in a chat."""
        ...

    def of_chat(self, key: ChatKey) -> PersonId | None:
        """Return the person whose private chat it is; None for a group, and for a chat of nobody's."""
        ...

    def reach(self, key: ChatKey) -> Reach:
        """Return what may be seen from a chat."""
        ...

    def reach_of(self, person: PersonId, agent: str) -> Reach:
        """Return what a person may see of an agent's chats, wherever the person asks alone."""
        ...
