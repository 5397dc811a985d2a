"""The truth table of who gets in, by every way there is."""

from __future__ import annotations

import pytest

from access.actors import ENTITLED, LISTED, PAIRED, STRANGE, UNENTITLED, in_group, private
from contracts.store_orders import HandClock
from talaria.access.actors import (
    Actor,
    ChatKind,
    Denied,
    Entitled,
    Reason,
    Standing,
    Stranger,
    Verdict,
    Way,
)
from talaria.access.codes import hash_code, new_code
from talaria.access.door import Door
from talaria.access.rule import authorise
from talaria.core.access import Invite, Person, Redeem
from talaria.core.turns import Sender
from talaria.store.memory import MemoryStore

OFFERED = {Way.MESSAGE, Way.COMMAND, Way.FILE}


@pytest.fixture
async def door() -> Door:
    clock = HandClock()
    pairings = MemoryStore(clock).pairings
    invitation = hash_code(new_code())
    await pairings.invite(Invite("telegram", invitation))
    await pairings.redeem(Redeem(Person("telegram", PAIRED), invitation))
    return Door(pairings, {"telegram": [int(LISTED)]}, clock)


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("who", UNENTITLED)
async def test_no_stranger_is_entitled_by_any_way(door: Door, who: str, way: Way) -> None:
    verdict = await door.check(UNENTITLED[who], way)
    assert not isinstance(verdict, Entitled)
    if isinstance(verdict, Stranger):
        assert UNENTITLED[who].chat_kind is ChatKind.PRIVATE
        assert way in OFFERED


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("who", ENTITLED)
async def test_the_entitled_are_let_in_by_every_way(door: Door, who: str, way: Way) -> None:
    actor = ENTITLED[who]
    verdict = await door.check(actor, way)
    assert isinstance(verdict, Entitled)
    assert verdict.sender == Sender(actor.user_id, "".join(filter(str.isprintable, actor.name)))


BOT = Actor("telegram", STRANGE, ChatKind.PRIVATE, STRANGE, is_bot=True)
CHAT = Actor("telegram", LISTED, ChatKind.GROUP, "-1", speaks_as_chat=True)
POST = Actor("telegram", LISTED, ChatKind.BROADCAST, "-1")
TABLE: list[tuple[Actor, Standing, set[Way], Verdict]] = [
    (private("1"), Standing.LISTED, set(Way), Entitled(Sender("1"), Standing.LISTED)),
    (in_group("1"), Standing.PAIRED, set(Way), Entitled(Sender("1"), Standing.PAIRED)),
    (private("1"), Standing.TOKEN, {Way.API}, Entitled(Sender("1"), Standing.TOKEN)),
    (private("1"), Standing.UNKNOWN, OFFERED, Stranger()),
    (private("1"), Standing.UNKNOWN, set(Way) - OFFERED, Denied(Reason.NOT_A_MESSAGE)),
    (in_group("1"), Standing.UNKNOWN, set(Way), Denied(Reason.NOT_PRIVATE)),
    *((BOT, standing, set(Way), Denied(Reason.BOT)) for standing in Standing),
    *((CHAT, standing, set(Way), Denied(Reason.SPEAKS_AS_CHAT)) for standing in Standing),
    *((POST, standing, set(Way), Denied(Reason.SPEAKS_AS_CHAT)) for standing in Standing),
    *((private(""), standing, set(Way), Denied(Reason.NOBODY)) for standing in Standing),
]


@pytest.mark.parametrize(("actor", "standing", "ways", "verdict"), TABLE)
def test_the_rule(actor: Actor, standing: Standing, ways: set[Way], verdict: Verdict) -> None:
    assert {way: authorise(actor, way, standing) for way in ways} == dict.fromkeys(ways, verdict)


async def test_without_configuration_nobody_is_entitled() -> None:
    clock = HandClock()
    door = Door(MemoryStore(clock).pairings, {}, clock)
    for actor in (*UNENTITLED.values(), *ENTITLED.values()):
        for way in Way:
            assert not isinstance(await door.check(actor, way), Entitled)
