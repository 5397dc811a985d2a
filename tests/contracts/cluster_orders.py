"""Members of a cluster and their messages, for the store's tests."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from contracts.store_orders import LEASE, ME, RIVAL, START, accepting, said
from talaria.core.cluster import Here, Member
from talaria.core.ids import OwnerId, PlaceId
from talaria.core.ledger import Accept
from talaria.store.store import Store

HOME, AWAY = PlaceId("place_home"), PlaceId("place_away")
THIRD = Here(OwnerId("own_third"), PlaceId("place_third"))
HERE, THERE = Here(ME, HOME, 900.0, 600.0), Here(RIVAL, AWAY, 900.0, 600.0)


def member(owner: OwnerId = ME, place: PlaceId = HOME) -> Member:
    return Member(owner, place, "boot", f"host-{place}", "http://10.0.0.5:8765", "1.0", 22, START)


def at(here: Here, text: str = "hello", **more: Any) -> Accept:
    """A message that this member accepts, and whose turn it would begin."""
    busy = more.pop("busy", "")
    begins = more.pop("begins", said(text))
    return replace(accepting(text, owner=here.owner, begins=begins, **more), here=here, busy=busy)


async def both_join(store: Store) -> None:
    for here in (HERE, THERE):
        await store.cluster.join(member(here.owner, here.place), LEASE)
