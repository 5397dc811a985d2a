"""`/link`: identities on two platforms become one person."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.gateway import without_http
from talaria.access.authorizer import hash_code, new_code
from talaria.access.people import People
from talaria.access.settings import PersonSettings
from talaria.core.access import OWNER, CodesLocked, CreateLinkCode, PairingLimits, RedeemLinkCode, WrongCode
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.gateway import Gateway
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer

CODE = re.compile(r"[0-9A-Z]{4}-[0-9A-Z]{4}-[0-9A-Z]{4}")
HERE = ChatAddress("main", "telegram", "dm", "7").key()
THERE = ChatAddress("main", "discord", "dm", "9").key()
GROUP = ChatAddress("main", "discord", "group", "5").key()


async def say(gateway: Gateway, text: str, key: ChatKey = HERE, sender: str = "7") -> str:
    live = await gateway.turns.submit(Inbound(key, Sender(sender), (Text(text),)))
    return str((await gateway.turns.wait(live)).reply)


async def test_a_code_joins_two_identities_also_after_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with ModelServer() as model:
        async with without_http(home, model) as gateway:
            people = gateway.people
            assert people.of_chat(HERE) != people.of_chat(THERE)
            assert "private" in await say(gateway, "/link", GROUP, "9")
            found = CODE.search(await say(gateway, "/link"))
            assert found is not None
            assert "not a code" in await say(gateway, "/link nonsense", THERE, "9")
            assert "your own" in await say(gateway, f"/link {found[0]}")
            assert "one person" in await say(gateway, f"/link {found[0]}", THERE, "9")
            assert people.of_chat(HERE) == people.of_chat(THERE)
            assert people.reach(THERE).includes(HERE) and people.reach(HERE).includes(THERE)
            assert not people.reach(GROUP).includes(HERE)
            assert "wrong" in await say(gateway, f"/link {found[0]}", THERE, "9"), "a code works once"
        async with without_http(home, model) as gateway:
            assert gateway.people.of_chat(HERE) == gateway.people.of_chat(THERE)


async def test_an_identity_leaves_the_person_that_it_was_joined_to(tmp_path: Path) -> None:
    async with ModelServer() as model, without_http(tmp_path / "home", model) as gateway:
        people = gateway.people
        assert "not joined" in await say(gateway, "/link off")
        code, *_ = CODE.findall(await say(gateway, "/link"))
        await say(gateway, f"/link {code}", THERE, "9")
        assert people.of_chat(HERE) == people.of_chat(THERE)
        open_code, *_ = CODE.findall(await say(gateway, "/link", THERE, "9"))
        assert "of its own" in await say(gateway, "/link off", THERE, "9")
        assert people.of_chat(HERE) != people.of_chat(THERE)
        assert not people.reach(THERE).includes(HERE) and not people.reach(HERE).includes(THERE)
        assert "wrong" in await say(gateway, f"/link {open_code}"), "its code is gone too"
        code, *_ = CODE.findall(await say(gateway, "/link"))
        await say(gateway, f"/link {code}", THERE, "9")
        assert "of its own" in await say(gateway, "/link off")
        assert people.of_chat(HERE) != people.of_chat(THERE)


async def test_a_code_changes_nothing_for_a_person_whom_the_settings_name(tmp_path: Path) -> None:
    """Otherwise a person who talks the owner into sending a code would become the owner."""
    tables = {"people": {"owner": {"ids": ["telegram:7"]}}}
    async with ModelServer() as model, without_http(tmp_path / "home", model, tables=tables) as gateway:
        people = gateway.people
        code, *_ = CODE.findall(await say(gateway, "/link", THERE, "9"))
        assert "Write `/link` here" in await say(gateway, f"/link {code}")
        assert people.of_chat(HERE) == OWNER != people.of_chat(THERE)
        code, *_ = CODE.findall(await say(gateway, "/link"))
        assert "one person" in await say(gateway, f"/link {code}", THERE, "9")
        assert people.of_chat(THERE) == OWNER


async def test_codes_expire_and_guesses_are_counted() -> None:
    clock = FakeClock()
    pairings = MemoryStore(clock).pairings
    code, limits = hash_code(new_code()), PairingLimits()
    await pairings.create_link(CreateLinkCode("telegram:7", code, 600))
    clock.advance(601)
    for _ in range(limits.tries):
        assert isinstance(await pairings.redeem_link(RedeemLinkCode("discord:9", code, limits)), WrongCode)
    await pairings.create_link(CreateLinkCode("telegram:7", code, 600))
    assert isinstance(await pairings.redeem_link(RedeemLinkCode("discord:9", code, limits)), CodesLocked)
    assert await pairings.redeem_link(RedeemLinkCode("signal:a", code, limits)) == "telegram:7"
    assert await pairings.links() == [("signal:a", "telegram:7")]


@pytest.mark.parametrize(
    "links",
    [
        (("a:1", "b:1"), ("b:1", "c:1"), ("d:1", "a:1")),
        (("a:1", "b:1"), ("c:1", "b:1"), ("c:1", "d:1")),  # b brings a along
        (("a:1", "b:1"), ("c:1", "d:1"), ("d:1", "b:1"), ("a:1", "c:1")),  # the last are one person already
    ],
)
async def test_chains_have_one_root(links: Sequence[tuple[str, str]]) -> None:
    pairings = MemoryStore(FakeClock()).pairings
    for creator, other in links:
        code = hash_code(new_code())
        await pairings.create_link(CreateLinkCode(creator, code, 600))
        await pairings.redeem_link(RedeemLinkCode(other, code, PairingLimits()))
    people = People()
    people.join(dict(await pairings.links()))
    assert len({people.of_identity(each, "1") for each in "abcd"}) == 1


def test_the_settings_win() -> None:
    named = {"me": PersonSettings(("telegram:7",)), "you": PersonSettings(("discord:9",))}
    people = People(named)
    people.join({"discord:9": "telegram:7", "signal:a": "telegram:7"})
    assert people.of_identity("discord", "9") == "you"
    assert people.of_identity("signal", "a") == "me"
    people.change({}, {"telegram": (7,)})
    assert people.of_identity("discord", "9") == people.of_identity("signal", "a") == OWNER
