"""The feed of all turns: what waits for a slow listener is bounded."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.errors import Overloaded
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.limits import Limits, LimitSettings
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.turns.feed import MOST_WAITING, StateFeed, TurnChange, TurnListener

CHAT = ChatKey("agent:main:http:api:one")


def change(n: int, state: TurnState = TurnState.RUNNING) -> TurnChange:
    inbound = Inbound(CHAT, Sender("api"), ())
    return TurnChange.of(Turn(TurnId(f"turn_{n}"), CHAT, SessionId("ses_1"), state, inbound, 1.0), float(n))


def listener() -> TurnListener:
    return TurnListener(lambda key: True)


async def test_the_oldest_changes_are_dropped_and_counted() -> None:
    slow = listener()
    for n in range(MOST_WAITING + 7):
        slow.put(change(n))
    taken = list(await slow.take())
    assert (taken[0].id, len(taken), slow.missed) == ("turn_7", MOST_WAITING, 7)


async def test_of_each_turn_the_last_change_waits() -> None:
    slow = listener()
    for state in (TurnState.ACCEPTED, TurnState.RUNNING, TurnState.DONE):
        for n in range(MOST_WAITING):
            slow.put(change(n, state))
    taken = await slow.take()
    assert {each.state for each in taken if isinstance(each, TurnChange)} == {TurnState.DONE}
    assert (len(taken), slow.missed) == (MOST_WAITING, 0)


async def test_a_closed_feed_gives_what_is_left_and_then_nothing() -> None:
    feed, limits = StateFeed(lambda: 0.0), Limits()
    with feed.listen(lambda key: True, limits) as early:
        waiting = asyncio.ensure_future(early.take())
        await asyncio.sleep(0)
        early.put(change(1))
        feed.close()
        assert [each.id for each in await waiting] == ["turn_1"]
        assert not await early.take()
    with feed.listen(lambda key: True, limits) as late:
        assert not await late.take()
    assert not feed.listeners


async def test_no_more_listeners_than_the_limit() -> None:
    feed, limits = StateFeed(lambda: 0.0), Limits(LimitSettings(event_listeners=1))
    with (
        feed.listen(lambda key: True, limits),
        pytest.raises(Overloaded),
        feed.listen(lambda key: True, limits),
    ):
        pass
    assert limits.readings()["event_listeners"].refused == 1
