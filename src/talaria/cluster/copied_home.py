"""The check that no gateway on another machine has the same home, which would be a copy of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from talaria.cluster.member_checks import describe
from talaria.cluster.place_file import PLACE_FILE
from talaria.core.clock import Clock
from talaria.core.cluster import Member
from talaria.core.errors import ConfigError
from talaria.core.ids import OwnerId
from talaria.store.store import ClusterStore

_log = logging.getLogger("talaria.cluster")
_LOOKS = 6  # in the time of a lease


async def refuse_copied_home(
    store: ClusterStore, clock: Clock, me: Member, home: Path, lease_seconds: float
) -> None:
    """Return when no other machine has a living member of this member's place. `clock` tells the database's
    time.

    The home's lock keeps a second gateway of this machine away, but an image of a disk has the same place on
    each machine. Two members of one place would end each other again and again. A member that does not renew
    its time died with its machine, so the home may have moved here. Raises `ConfigError` if one does.
    """
    seen = dict[OwnerId, float]()
    while rivals := _find_rivals(await store.members(), me, clock.now()):
        if not seen:
            _log.info("%s had this home and may be alive: waiting for its time to end", describe(rivals[0]))
        for rival in rivals:
            if rival.expires_at > seen.setdefault(rival.owner, rival.expires_at):
                raise ConfigError(
                    f"{describe(rival)} serves the same database from the same home on another machine: one "
                    "of the two homes is a copy of the other.",
                    f"Delete {home / PLACE_FILE} if the home here is the copy. It counts as a place of its "
                    "own then, and chats with files stay with the other gateway.",
                )
        await clock.sleep(lease_seconds / _LOOKS)


def _find_rivals(members: Sequence[Member], me: Member, now: float) -> list[Member]:
    return [
        member
        for member in members
        if member.place == me.place and _machine(member) != _machine(me) and member.is_alive(now)
    ]


def _machine(member: Member) -> str:
    """Return the boot of a member's machine, without its network: containers of a machine share a lock."""
    return member.boot.partition("/")[0]
