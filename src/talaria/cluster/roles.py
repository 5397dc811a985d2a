"""Leased roles: work that one member of a cluster does for all, such as polling a channel.

A role is a row with an owner, a fence and an expiry. Its holder renews it each third of the lease. A holder
that could not renew it in time (`held_until`) stops by its own clock of elapsed time, so that it has stopped
before the row lets another member take it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from talaria.core.clock import Clock, held_until
from talaria.core.cluster import CHANNEL_ROLE
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.core.tasks import sleep_until_woken

if TYPE_CHECKING:
    from talaria.store.store import ClusterStore

_log = logging.getLogger("talaria.roles")
UPKEEP = "upkeep"
"""The role of deleting what is old and ending what has expired."""
_GIVE_SECONDS = 5.0


def channel_role(channel: str) -> str:
    """Return the role of the only consumer of a channel."""
    return f"{CHANNEL_ROLE}{channel}"


class Roles:
    """The roles that this member has or wants.

    `name_of` names a member for people. `look` asks for all roles at once, which is right when a member has
    left. After `drain` no role is taken any more, and those that are held are given back as soon as their
    users have stopped.
    """

    def __init__(
        self,
        store: ClusterStore,
        clock: Clock,
        owner: OwnerId,
        lease_seconds: float,
        *,
        name_of: Callable[[OwnerId], str] = str,
    ) -> None:
        self.store = store
        self.clock = clock
        self.owner = owner
        self.lease_seconds = lease_seconds
        self.name_of = name_of
        self.is_draining = False
        self._sought: dict[str, SoughtRole] = {}

    @property
    def sought(self) -> Mapping[str, SoughtRole]:
        return self._sought

    @property
    def held(self) -> tuple[str, ...]:
        """The names of the roles that this member has."""
        return tuple(sorted(name for name, role in self._sought.items() if role.is_held))

    def has(self, name: str) -> bool:
        return (role := self._sought.get(name)) is not None and role.is_held

    def has_channel(self, channel: str) -> bool:
        """Return whether this member may act on the channel: it has its role, or there is none."""
        return (role := self._sought.get(channel_role(channel))) is None or role.is_held

    def look(self) -> None:
        """Ask for the roles now that another member may have given back."""
        for role in self._sought.values():
            role.look()

    @asynccontextmanager
    async def seek(self, name: str) -> AsyncIterator[SoughtRole]:
        """Ask for the role, and renew it when it is held, while the context is open. Leaving gives it back:
        the caller has stopped what the role is for."""
        role = self._sought[name] = SoughtRole(self, name)
        running = asyncio.create_task(role.run(), name=f"role {name}")
        try:
            yield role
        finally:
            running.cancel()
            await asyncio.wait((running,), timeout=_GIVE_SECONDS)  # a write under way cannot be cancelled
            del self._sought[name]
            await role.give()

    async def drain(self, seconds: float) -> None:
        """Let others take the roles, and wait at most so long until the users of those held have stopped."""
        self.is_draining = True
        held = [role for role in self._sought.values() if role.is_held]
        giving = [asyncio.create_task(role.drain(), name=f"drain {role.name}") for role in held]
        if giving:
            _, late = await asyncio.wait(giving, timeout=seconds)
            for task in late:
                task.cancel()


class Tenure:
    """The time in which this member has a role. `ended` is set when the work that it is for must stop.
    `is_used`: that work is under way, and its end is waited for before the role is given back."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.is_used = False


class SoughtRole:
    """A role that this member asks for. `holder` is the member that has it as far as is known, perhaps this
    one; empty if none has. `given` is set once it was given back."""

    def __init__(self, roles: Roles, name: str) -> None:
        self._roles = roles
        self._clock = roles.clock
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()  # a request under way would take back what is given
        self._tenure: Tenure | None = None
        self._fresh_at = float("-inf")  # `Clock.elapsed` when the last successful request began
        self.name = name
        self.holder = OwnerId("")
        self.given = asyncio.Event()

    @property
    def is_held(self) -> bool:
        return self._tenure is not None and not self._tenure.ended.is_set() and self._left() > 0

    @property
    def holder_name(self) -> str:
        return self._roles.name_of(self.holder) if self.holder else ""

    def look(self) -> None:
        """Ask for the role now, unless this member has it."""
        if self._tenure is None:
            self._woken.set()

    async def taken(self) -> Tenure:
        """Wait until this member has the role. The caller stops its work when the tenure has ended."""
        while (tenure := self._tenure) is None or tenure.ended.is_set():
            self._changed.clear()
            await self._changed.wait()
        tenure.is_used = True
        return tenure

    async def run(self) -> None:
        """Ask and renew until cancelled. The watch does not wait for a request that hangs."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._ask_on(), name=f"role-renewal {self.name}")
                    tasks.create_task(self._watch(), name=f"role-watch {self.name}")
            except Exception:  # the task's boundary: without it the role would never be asked for again
                _log.exception("the role %s was not asked for", self.name)
            await self._clock.sleep(self._roles.lease_seconds / 12)

    async def drain(self) -> None:
        """Let the work stop, and return when the role is given back. It is renewed meanwhile."""
        tenure = self._tenure
        if tenure is None:
            return
        _log.info("the role %s ends here: this member drains", self.name)
        tenure.ended.set()
        await (self.given.wait() if tenure.is_used else self.give())

    async def give(self) -> None:
        """Give the role back, after the work has stopped. A failure is no error: it expires then."""
        try:
            async with asyncio.timeout(_GIVE_SECONDS), self._turn:
                if self._tenure is not None:
                    self._tenure.ended.set()
                    self._tenure, self.holder = None, OwnerId("")
                    await self._roles.store.give_role(self.name, self._roles.owner)
        except (StoreError, TimeoutError) as error:
            _log.warning("the role %s was not returned, it expires: %s", self.name, error)
        self.given.set()

    # -- asking ---------------------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        while True:
            self._woken.clear()
            async with self._turn:
                pause = await self._ask()
            await sleep_until_woken(self._clock, pause, self._woken)

    async def _ask(self) -> float:
        """Ask for the role once, and return how many seconds later to ask again."""
        lease = self._roles.lease_seconds
        if self._roles.is_draining and self._tenure is None:
            return lease / 3
        asked_at = self._clock.elapsed()
        try:
            role = await self._roles.store.take_role(self.name, self._roles.owner, lease)
        except StoreError as error:
            _log.debug("the role %s was not asked for: %s", self.name, error)
            return lease / 12
        self.holder = role.owner
        if role.owner != self._roles.owner:
            self._lose(f"{self.holder_name} has it")
            return lease / 6
        self._take(asked_at)
        return lease / 3

    def _take(self, asked_at: float) -> None:
        self._fresh_at = asked_at
        if self._left() <= 0:
            return  # the answer came too late to count
        if self._tenure is None and not self._roles.is_draining:
            _log.info("the role %s is here now", self.name)
            self._tenure = Tenure()
            self.given.clear()
            self._changed.set()

    def _lose(self, why: str) -> None:
        if (tenure := self._tenure) is not None:
            _log.warning("lost the role %s: %s", self.name, why)
            self._tenure = None
            tenure.ended.set()
            self._changed.set()

    # -- watching -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End the tenure when it could not be renewed in time."""
        while True:
            if self._tenure is None:
                self._changed.clear()
                await self._changed.wait()
            elif (left := self._left()) > 0:
                await self._clock.sleep(left)
            else:
                self._lose("it could not be renewed in time")

    def _left(self) -> float:
        """Return for how many seconds more the role counts as held without a renewal."""
        return held_until(self._fresh_at, self._roles.lease_seconds) - self._clock.elapsed()
