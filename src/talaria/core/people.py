"""People as tools, search and jobs see them: who somebody is, and which chats may be seen."""

from __future__ import annotations

from typing import Final, NewType

import msgspec

from talaria.core.ids import ChatKey

PersonId = NewType("PersonId", str)
OWNER: Final = PersonId("owner")


class Reach(msgspec.Struct, frozen=True):
    """The chats that may be seen: every chat, if `roots` is None, else these and their threads."""

    roots: tuple[ChatKey, ...] | None = ()

    def includes(self, key: ChatKey) -> bool:
        return self.roots is None or any(key == root or key.startswith(f"{root}:") for root in self.roots)


EVERYTHING: Final = Reach(None)
