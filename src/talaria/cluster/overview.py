"""The cluster as one of its members sees it: who is there, who has which role, and what is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from talaria.cluster.member_checks import describe, find_trouble
from talaria.cluster.roles import Roles
from talaria.core.clock import Clock
from talaria.core.cluster import LeasedRole, Member
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId

_log = logging.getLogger("talaria.cluster")


class MemberState(StrEnum):
    ALIVE = "alive"
    DRAINING = "draining"  # it gives its chats up
    GONE = "gone"  # its time has run out


class OwnMembership(Protocol):
    """The membership of this process."""

    @property
    def me(self) -> Member: ...

    @property
    def is_out(self) -> bool: ...


class ClusterToken(msgspec.Struct, frozen=True):
    """The variable that holds the token of the cluster, and whether it is set here."""

    variable: str
    is_set: bool


class Overview:
    """Reads the members and their roles now and then, and logs trouble that begins or ends.

    `look` reads them now. Between two looks, and while the database does not answer, `members` and `roles`
    are as last read. `unreachable` returns why members cannot be reached, by their ids.
    """

    def __init__(
        self,
        own: OwnMembership,
        roles: Roles,
        clock: Clock,
        token: ClusterToken,
        *,
        unreachable: Callable[[], Mapping[OwnerId, str]] = dict,
    ) -> None:
        """`clock` tells the database's time."""
        self._store = roles.store
        self._own = own
        self._clock = clock
        self._token = token
        self._unreachable = unreachable
        self._told: tuple[str, ...] = ()
        self.own_roles = roles
        self.members: Sequence[Member] = (own.me,)
        self.roles: Sequence[LeasedRole] = ()

    @property
    def me(self) -> Member:
        return self._own.me

    @property
    def is_out(self) -> bool:
        return self._own.is_out

    async def run(self) -> None:
        """Look each third of a lease, until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as error:
                _log.debug("the members were not read: %s", error)
            await self._clock.sleep(self.own_roles.lease_seconds / 3)

    async def look(self) -> None:
        """Read the members and their roles. Raises `StoreError`."""
        self.members, self.roles = await asyncio.gather(self._store.members(), self._store.roles())
        self._tell(self.troubles())

    def state_of(self, member: Member) -> MemberState:
        if self.left(member.expires_at) <= 0:
            return MemberState.GONE
        return MemberState.DRAINING if member.is_draining else MemberState.ALIVE

    def left(self, expires_at: float) -> float:
        """Return the seconds until that moment of the database's time."""
        return expires_at - self._clock.now()

    def others(self) -> list[Member]:
        """Return the other members that are alive, as last read."""
        living = (each for each in self.members if self.state_of(each) is not MemberState.GONE)
        return [member for member in living if member.owner != self.me.owner]

    def unreachable(self) -> dict[OwnerId, str]:
        """Return why living members cannot be reached, for those that cannot."""
        troubles = self._unreachable()
        return {each.owner: troubles[each.owner] for each in self.others() if each.owner in troubles}

    def name_of(self, owner: OwnerId) -> str:
        """Name a member for people."""
        found = next((member for member in self.members if member.owner == owner), None)
        return owner if found is None else f"{found.host} ({found.url})" if found.url else found.host

    def trouble(self) -> str | None:
        """Return why this member runs no turns, for `Health`; None if it does."""
        if not self.is_out:
            return None
        return "its time in the cluster could not be renewed, so it begins no turns; the database tells why"

    def troubles(self) -> tuple[str, ...]:
        """Return what keeps this member from working with the others. Its turns run all the same."""
        others = self.others()
        token = self._token
        found = find_trouble(self.me, others, token_env=token.variable, has_token=token.is_set)
        texts = [f"{error.user_text} {error.hint}" for error in found]
        lost = self.unreachable()
        texts += [
            f"{describe(each)} cannot be reached, so what runs there is shown late: {lost[each.owner]}"
            for each in others
            if each.owner in lost
        ]
        return tuple(texts)

    def _tell(self, troubles: tuple[str, ...]) -> None:
        for text in troubles:
            if text not in self._told:
                _log.warning("%s", text)
        if self._told and not troubles:
            _log.info("the other members can be worked with again")
        self._told = troubles
