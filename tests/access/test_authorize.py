"""The truth table of who gets in, by every way there is."""

from __future__ import annotations

import pytest

from access.actors import ENTITLED, LISTED, PAIRED, STRANGE, UNENTITLED, in_group, private
from contracts.store_orders import new_clock
from talaria.access.authorizer import (
    Actor,
    Authorized,
    Authorizer,
    ChatKind,
    DenialReason,
    Denied,
    Ingress,
    KnownBy,
    Stranger,
    Verdict,
    authorize,
    hash_code,
    new_code,
)
from talaria.core.access import EVERY_ROLE, CreateInvitation, Person, RedeemInvitation, Role
from talaria.core.turns import Sender
from talaria.store.in_memory import MemoryStore

OFFERED = {Ingress.MESSAGE, Ingress.COMMAND, Ingress.FILE}


@pytest.fixture
async def authorizer() -> Authorizer:
    clock = new_clock()
    pairings = MemoryStore(clock).pairings
    invitation = hash_code(new_code())
    await pairings.invite(CreateInvitation("telegram", invitation))
    await pairings.redeem(RedeemInvitation(Person("telegram", PAIRED), invitation))
    return Authorizer(pairings, {"telegram": [int(LISTED)]}, clock)


@pytest.mark.parametrize("way", Ingress)
@pytest.mark.parametrize("who", UNENTITLED)
async def test_no_stranger_is_entitled_by_any_way(authorizer: Authorizer, who: str, way: Ingress) -> None:
    verdict = await authorizer.check(UNENTITLED[who], way)
    assert not isinstance(verdict, Authorized)
    if isinstance(verdict, Stranger):
        assert UNENTITLED[who].chat_kind is ChatKind.PRIVATE
        assert way in OFFERED


@pytest.mark.parametrize("way", Ingress)
@pytest.mark.parametrize("who", ENTITLED)
async def test_the_entitled_are_let_in_by_every_way(authorizer: Authorizer, who: str, way: Ingress) -> None:
    actor = ENTITLED[who]
    verdict = await authorizer.check(actor, way)
    assert isinstance(verdict, Authorized)
    assert verdict.sender == Sender(actor.user_id, "".join(filter(str.isprintable, actor.name)))


BOT = Actor("telegram", STRANGE, ChatKind.PRIVATE, STRANGE, is_bot=True)
CHAT = Actor("telegram", LISTED, ChatKind.GROUP, "-1", speaks_as_chat=True)
POST = Actor("telegram", LISTED, ChatKind.BROADCAST, "-1")
TABLE: list[tuple[Actor, KnownBy, set[Ingress], Verdict]] = [
    (private("1"), KnownBy.LISTED, set(Ingress), Authorized(Sender("1"), KnownBy.LISTED)),
    (in_group("1"), KnownBy.PAIRED, set(Ingress), Authorized(Sender("1"), KnownBy.PAIRED)),
    (private("1"), KnownBy.TOKEN, {Ingress.API}, Authorized(Sender("1"), KnownBy.TOKEN)),
    (private("1"), KnownBy.UNKNOWN, OFFERED, Stranger()),
    (private("1"), KnownBy.UNKNOWN, set(Ingress) - OFFERED, Denied(DenialReason.NOT_A_MESSAGE)),
    (in_group("1"), KnownBy.UNKNOWN, set(Ingress), Denied(DenialReason.NOT_PRIVATE)),
    *((BOT, membership, set(Ingress), Denied(DenialReason.BOT)) for membership in KnownBy),
    *((CHAT, membership, set(Ingress), Denied(DenialReason.SPEAKS_AS_CHAT)) for membership in KnownBy),
    *((POST, membership, set(Ingress), Denied(DenialReason.SPEAKS_AS_CHAT)) for membership in KnownBy),
    *((private(""), membership, set(Ingress), Denied(DenialReason.NO_USER_ID)) for membership in KnownBy),
]


@pytest.mark.parametrize(("actor", "membership", "ways", "verdict"), TABLE)
def test_the_rule(actor: Actor, membership: KnownBy, ways: set[Ingress], verdict: Verdict) -> None:
    assert {way: authorize(actor, way, membership) for way in ways} == dict.fromkeys(ways, verdict)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("needed", [frozenset({role}) for role in Role] + [EVERY_ROLE, frozenset[Role]()])
@pytest.mark.parametrize("membership", KnownBy)
def test_a_known_sender_needs_one_of_the_roles(
    role: Role, needed: frozenset[Role], membership: KnownBy
) -> None:
    verdict = authorize(private("1"), Ingress.API, membership, role, needed)
    if membership is KnownBy.UNKNOWN:
        assert verdict == Denied(DenialReason.NOT_A_MESSAGE)
    elif role in needed:
        assert verdict == Authorized(Sender("1"), membership)
    else:
        assert verdict == Denied(DenialReason.ROLE)


async def test_without_configuration_nobody_is_entitled() -> None:
    clock = new_clock()
    authorizer = Authorizer(MemoryStore(clock).pairings, {}, clock)
    for actor in (*UNENTITLED.values(), *ENTITLED.values()):
        for way in Ingress:
            assert not isinstance(await authorizer.check(actor, way), Authorized)
