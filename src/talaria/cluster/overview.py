"""The cluster as one of its members sees it: who is there, who has which role, and what is wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from random import Random

import msgspec

from talaria.cluster.following import PeerClient
from talaria.cluster.member_checks import ClusterToken, describe, find_trouble
from talaria.cluster.membership import Membership
from talaria.cluster.roles import UPKEEP, Roles
from talaria.core.clock import Clock
from talaria.core.cluster import LeasedRole, Member, MemberFigures, Wake
from talaria.core.errors import ConfigError, StoreError
from talaria.core.ids import OwnerId
from talaria.core.tasks import run_loops
from talaria.observe.metrics import ClusterReading

_log = logging.getLogger("talaria.cluster")
_GREETED = 8  # members at a time, of however many there are


class MemberState(StrEnum):
    ALIVE = "alive"
    DRAINING = "draining"  # it gives its chats up
    GONE = "gone"  # its time has run out


class Overview:
    """Reads the members and their roles now and then, and logs trouble that begins or ends.

    `look` reads them now. Between two looks, and while the database does not answer, `members` and `roles`
    are as last read.
    """

    def __init__(
        self,
        own: Membership,
        roles: Roles,
        clock: Clock,
        token: ClusterToken,
        *,
        measure: Callable[[], MemberFigures],
        peers: PeerClient,
    ) -> None:
        """`clock` tells the database's time. `measure` returns the figures that this member tells others."""
        self._store = roles.store
        self._own = own
        self._clock = clock
        self._token = token
        self._measure = measure
        self._peers = peers
        self._told: tuple[str, ...] = ()
        self._random = Random()  # noqa: S311 - it is for choosing
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
            self._own.figures = msgspec.structs.replace(self._measure(), files=self.me.figures.files)
            try:
                await self.look()
            except StoreError as error:
                _log.debug("the members were not read: %s", error)
            await self.greet()
            await self._clock.sleep(self.own_roles.lease_seconds / 3)

    async def look(self) -> None:
        """Read the members and their roles. Raises `StoreError`."""
        self.members, self.roles = await asyncio.gather(self._store.members(), self._store.roles())
        self._tell(tuple(map(_spoken, self._find_trouble())))

    async def greet(self) -> None:
        """Look whether some of the others can be reached, so that a split is known before it matters."""
        others = self.others()
        self._peers.forget({member.owner for member in others})
        if not self._token.is_set:
            return
        chosen = self._random.sample(others, min(len(others), _GREETED))
        await asyncio.gather(*map(self._peers.greet, chosen), return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Let others have the roles of this member, if there are any, within so many seconds. Without others
        it keeps them to the end, so that its channels still send."""
        try:
            async with asyncio.timeout(seconds):
                await self.look()
                if any(self.state_of(member) is MemberState.ALIVE for member in self.others()):
                    await self.own_roles.drain(seconds)
                    await self._store.wake(Wake.MEMBERS)
        except (StoreError, TimeoutError) as error:
            _log.warning("the roles of this member were not returned before the drain: %r", error)

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
        troubles = self._peers.unreachable
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
        others, lost = self.others(), self.unreachable()
        texts = list(map(_spoken, self._find_trouble()))
        texts += [
            f"{describe(each)} cannot be reached, so what runs there is shown late: {lost[each.owner]}"
            for each in others
            if each.owner in lost
        ]
        return tuple(texts)

    def _find_trouble(self) -> list[ConfigError]:
        return find_trouble(self.me, self.others(), self._token)

    def reading(self) -> ClusterReading:
        """Return the figures for metrics, as last read."""
        states = [self.state_of(member) for member in self.members]
        living = {str(state): states.count(state) for state in (MemberState.ALIVE, MemberState.DRAINING)}
        roles = {name: role.is_held for name, role in self.own_roles.sought.items()}
        return ClusterReading(living, roles, len(self.unreachable()), self.is_out)

    def _tell(self, troubles: tuple[str, ...]) -> None:
        for text in troubles:
            if text not in self._told:
                _log.warning("%s", text)
        if self._told and not troubles:
            _log.info("the other members can be worked with again")
        self._told = troubles


def _spoken(error: ConfigError) -> str:
    return f"{error.user_text} {error.hint}"


@asynccontextmanager
async def open_overview(
    own: Membership,
    clock: Clock,
    token: ClusterToken,
    measure: Callable[[], MemberFigures],
    peers: PeerClient,
) -> AsyncIterator[Overview]:
    """Watch the cluster, and seek the roles of this member, while the context is open. `clock` tells the
    database's time."""
    roles = Roles(own.store, clock, own.owner, own.lease_seconds)
    overview = Overview(own, roles, clock, token, measure=measure, peers=peers)
    roles.name_of = overview.name_of
    own.on_wake(Wake.MEMBERS, roles.look)
    async with roles.seek(UPKEEP), run_loops(clock, {"members": overview.run}):
        yield overview
