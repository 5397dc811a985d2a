"""A gateway on a database file, which no other gateway serves: a cluster of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import Clock
from talaria.core.cluster import Waiting, Wake
from talaria.core.ids import ChatKey, OwnerId
from talaria.store.store import Store


class LoneGateway:
    """Has the methods of `Membership` that turns need, without a row of its own and without renewals.

    The lock of the database proves that all other gateways of the file are dead, so their leases are expired
    at the first look. A gateway inside a command may share the file, and has no lock (`has_lock` False). Its
    turns, and those that it finds, are orphans once the lease of their session has expired.
    """

    here: Final = None
    has_others: Final = False
    is_out: Final = False
    is_draining: Final = False

    def __init__(self, store: Store, clock: Clock, keeper: LeaseKeeper, *, has_lock: bool) -> None:
        self._store = store
        self._clock = clock
        self._keeper = keeper
        self._must_reclaim = has_lock
        self.look_seconds = keeper.lease_seconds

    async def find_turns(self) -> Sequence[Waiting]:
        """Return the turns that other processes left unsettled, oldest first. Raises `StoreError`."""
        owner = self._keeper.owner
        if self._must_reclaim:
            turns = await self._store.reclaim(owner)
            self._must_reclaim = False
        else:
            turns = await self._store.orphans(owner, self._clock.now() - 2 * self._keeper.lease_seconds)
        return [Waiting(turn) for turn in turns]

    def note_accepted(self, chat_key: ChatKey, *, has_loss: bool) -> None:
        """Nothing can be lost: all files are here."""

    def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        """There is nobody to wake."""

    async def drain(self) -> None:
        """There is nobody to announce it to."""
