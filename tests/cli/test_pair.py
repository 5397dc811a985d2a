"""`talaria pair`, through the running gateway and without one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from cli.conftest import Serve, Talaria
from talaria.access.authorizer import Actor, Authorizer, ChatKind
from talaria.core.access import Paired, PairingList
from talaria.core.clock import SystemClock
from talaria.store.home_lock import HomeLock
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Pairings

T = TypeVar("T")
NO_CODE = "K7QD-93MX-4TZA"


def at_store(home: Path, use: Callable[[Pairings], Awaitable[T]]) -> T:
    """Do something in the home's store, as the process that owns it."""

    async def run() -> T:
        with HomeLock(home):
            async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
                return await use(store.pairings)

    return asyncio.run(run())


def ask(home: Path, user: str, name: str = "Ann", said: str = "", channel: str = "telegram") -> str:
    """What someone is told by the authorizer."""
    actor = Actor(channel, user, ChatKind.PRIVATE, user, name)
    text = at_store(home, lambda pairings: Authorizer(pairings, {}, SystemClock()).greet(actor, said))
    assert text is not None
    return text


def code_for(home: Path, user: str, name: str = "Ann", channel: str = "telegram") -> str:
    return ask(home, user, name, channel=channel).partition("talaria pair approve ")[2].split()[0]


def listing(home: Path) -> PairingList:
    return at_store(home, lambda pairings: pairings.listing())


@pytest.mark.parametrize("with_gateway", [True, False])
def test_list_approve_and_revoke(with_gateway: bool, talaria: Talaria, serve: Serve, home: Path) -> None:
    code = code_for(home, "1001", "Ann\x1b[31m")
    if with_gateway:
        serve()
    waiting = talaria("pair", "list")
    assert (waiting.stderr, waiting.returncode) == ("", 0)
    assert waiting.stdout.splitlines()[1].startswith("waits  telegram:1001  Ann[31m  until 20")
    approved = talaria("pair", "approve", code)
    assert approved.stdout == "Paired telegram:1001 (Ann[31m): the gateway answers them from now on.\n"
    assert (approved.stderr, approved.returncode) == ("", 0)
    assert (
        talaria("pair", "list").stdout.splitlines()[1].startswith("paired  telegram:1001  Ann[31m  since 20")
    )
    revoked = talaria("pair", "revoke", "1001")
    assert revoked.stdout.startswith("telegram:1001 (Ann[31m) is not paired any more.")
    assert talaria("pair", "list").stdout.startswith("Nobody is paired, and nobody waits.")
    again = talaria("pair", "revoke", "1001")
    assert (again.stdout, again.returncode) == ("", 1)
    assert again.stderr.startswith("talaria: Nobody is paired as 1001.")


@pytest.mark.parametrize("with_gateway", [True, False])
def test_wrong_codes_are_counted_over_processes_and_then_locked(
    with_gateway: bool, talaria: Talaria, serve: Serve, home: Path
) -> None:
    code = code_for(home, "1001")
    if with_gateway:
        serve()
    no_code = talaria("pair", "approve", "please")
    assert no_code.returncode == 1
    assert no_code.stderr.startswith("talaria: This is not a pairing code.\n  A code looks like")
    for left in ("4 more tries", "3 more tries", "2 more tries", "One more try", "That was the last try"):
        wrong = talaria("pair", "approve", NO_CODE)
        assert (wrong.stdout, wrong.returncode) == ("", 1)
        assert wrong.stderr.startswith(f"talaria: No request has the code {NO_CODE}. {left}")
    locked = talaria("pair", "approve", code)
    assert (locked.stdout, locked.returncode) == ("", 1)
    assert locked.stderr.startswith("talaria: There were too many wrong codes")


def test_a_wrong_code_is_told_with_the_home(talaria: Talaria, home: Path) -> None:
    mistyped = talaria("pair", "approve", NO_CODE, env={"TALARIA_HOME": str(home / "mistyped")})
    assert mistyped.returncode == 1
    assert f"The home {home / 'mistyped'} does not exist." in mistyped.stderr
    assert not (home / "mistyped").exists()
    usual = home.parent / ".talaria"
    nowhere = talaria("pair", "approve", NO_CODE, env={"TALARIA_HOME": "", "HOME": str(usual.parent)})
    assert nowhere.returncode == 1
    assert f"There is no database {usual / 'talaria.db'}.\n" in nowhere.stderr
    assert "--home or TALARIA_HOME" in nowhere.stderr
    assert not usual.exists()
    fresh = talaria("pair", "approve", NO_CODE)
    assert f"There is no database {home / 'talaria.db'}.\n" in fresh.stderr
    code_for(home, "1001")
    wrong = talaria("pair", "approve", NO_CODE)
    assert wrong.stderr.startswith(f"talaria: No request has the code {NO_CODE}. 4 more tries.")
    assert f"This is about the home {home}." in wrong.stderr


def test_a_code_may_be_typed_in_groups(talaria: Talaria, home: Path) -> None:
    code = code_for(home, "1001")
    assert talaria("pair", "approve", *code.lower().split("-")).returncode == 0
    assert [each.person.user_id for each in listing(home).paired] == ["1001"]


@pytest.mark.parametrize("with_gateway", [True, False])
def test_an_invitation_lets_its_first_bearer_in(
    with_gateway: bool, talaria: Talaria, serve: Serve, home: Path
) -> None:
    gateway = serve() if with_gateway else None
    made = talaria("pair", "invite", "telegram")
    assert made.returncode == 0
    assert "It works once, until 20" in made.stderr
    if gateway is not None:
        gateway.terminate()
        gateway.wait(30)
    assert "You are in" in ask(home, "1001", said=made.stdout.strip())
    assert [each.person.user_id for each in listing(home).paired] == ["1001"]


def test_a_new_home_has_nobody_and_listing_makes_nothing(talaria: Talaria, home: Path) -> None:
    done = talaria("pair", "list")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("Nobody is paired, and nobody waits.")
    assert len(done.stdout.splitlines()) == 1
    assert talaria("pair", "approve", NO_CODE).returncode == 1
    assert not (home / "talaria.db").exists()


def test_an_id_on_two_channels_is_revoked_on_the_one_that_is_named(talaria: Talaria, home: Path) -> None:
    for channel in ("telegram", "discord"):
        assert talaria("pair", "approve", code_for(home, "1001", channel=channel)).returncode == 0
    unclear = talaria("pair", "revoke", "1001")
    assert unclear.returncode == 1
    assert "Name one: telegram:1001, discord:1001." in unclear.stderr
    assert talaria("pair", "revoke", "discord:1001").returncode == 0
    left: tuple[Paired, ...] = listing(home).paired
    assert [each.person.channel for each in left] == ["telegram"]


def test_an_unknown_channel_is_told(talaria: Talaria) -> None:
    done = talaria("pair", "invite", "telegraph")
    assert done.returncode == 1
    assert "There is no channel 'telegraph'" in done.stderr
