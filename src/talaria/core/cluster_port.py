"""The port of the store for a cluster: its members, their roles, wake-ups, and turns that move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from talaria.core.cluster import (
    Adopted,
    ChatPlace,
    Here,
    LeasedRole,
    Member,
    MemberFigures,
    StopAsked,
    Waiting,
    Wake,
)
from talaria.core.ids import ChatKey, OwnerId, PlaceId, TurnId


class ClusterStore(Protocol):
    """Every order is one transaction, as in `Store`. The database's clock counts."""

    async def join(self, member: Member, lease_seconds: float) -> Sequence[Member]:
        """Write the member down, for `lease_seconds`, and return all members that are alive, it too.
        Durable. A member of the same place that was there before is dead: it ends at once."""
        ...

    async def renew_member(self, owner: OwnerId, figures: MemberFigures, lease_seconds: float) -> bool:
        """Extend the member's time. Return False, having changed nothing, if it had run out: then others may
        have taken its chats, and it has to `join` again."""
        ...

    async def drain_member(self, owner: OwnerId) -> None:
        """Mark the member as draining: new turns of its chats are for others. Durable."""
        ...

    async def leave(self, owner: OwnerId) -> None:
        """End the member's time, and its roles: its chats are free at once. Durable."""
        ...

    async def members(self) -> Sequence[Member]:
        """Return the members that are alive and those that were lately, the oldest first."""
        ...

    async def member_of(self, chat_key: ChatKey) -> Member | None:
        """Return the living member that the chat's turns are for; None if there is none."""
        ...

    async def member_of_turn(self, turn_id: TurnId) -> Member | None:
        """Return the living member that runs the turn or that it is for; None if there is none."""
        ...

    async def waiting_here(self, owner: OwnerId) -> Sequence[Waiting]:
        """Return the unsettled turns of the member's chats, oldest first."""
        ...

    async def adopt(self, here: Here) -> Adopted:
        """Take over the chats that have unsettled turns and whose member is dead or draining, unless their
        place is another one that is not gone. A chat whose turn runs under a lease that has not expired is
        left alone. Durable."""
        ...

    async def place_chat(self, chat_key: ChatKey, place: PlaceId) -> PlaceId:
        """Note that files or processes of the chat are in this place, unless they are in another one already.
        Return where they are; an empty id, having noted nothing, for a chat that is not known yet."""
        ...

    async def chat_place(self, chat_key: ChatKey) -> ChatPlace:
        """Return where the files and processes of a chat are, and what was lost."""
        ...

    async def note_processes(self, chat_key: ChatKey, place: PlaceId, processes: Sequence[str]) -> None:
        """Note which background processes the chat has in its place, for the case that the place is lost.
        Changes nothing if the chat is not in this place."""
        ...

    async def forget_loss(self, chat_key: ChatKey, lost: str) -> None:
        """Note that the log of the chat tells of this loss."""
        ...

    async def ask_stop(self, turn_id: TurnId, by: str) -> StopAsked:
        """Note that a person wants the turn stopped. Durable. A turn that is over stays as it is. Raises
        `NotFound`."""
        ...

    async def take_role(self, name: str, owner: OwnerId, lease_seconds: float) -> LeasedRole:
        """Take or renew a role, unless another member has it, and return it as it is then."""
        ...

    async def give_role(self, name: str, owner: OwnerId) -> None: ...

    async def roles(self) -> Sequence[LeasedRole]: ...

    async def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        """Ask a member, or all, to look at something now. A hint: it is lost if nobody listens, and a failure
        is no error. Call it after the order that it is about has returned."""
        ...

    def listen(self, owner: OwnerId, heard: Callable[[Wake], None]) -> AbstractAsyncContextManager[None]:
        """Call `heard` on the event loop for each wake-up, until the context is left. After a lost
        connection it is called once for everything."""
        ...
