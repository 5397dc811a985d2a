"""Every key that can change live does so in a running gateway, and nothing that runs is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.gateway import without_http
from support.waiting import until
from talaria.access.authorizer import Actor, Authorized, Authorizer, ChatKind, Ingress
from talaria.config.decoder import is_marked
from talaria.config.settings import Settings
from talaria.core.errors import NotFound
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text
from talaria.core.settings import Mark
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.gateway import Gateway
from talaria.models.local.runtime import missing_requirement
from talaria.models.local.weights import DEFAULT_MODEL, FetchStage, WeightsCache, find_weights
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer

CHAT = ChatAddress("main", "test", "dm", "one").key()


class ReloadedGateway:
    def __init__(self, home: Path, gateway: Gateway, first: ModelServer, second: ModelServer) -> None:
        self.home = home
        self.gateway = gateway
        self.first = first
        self.second = second

    def write(self, more: str, *, name: str = "m", server: ModelServer | None = None) -> None:
        (self.home / "config.toml").write_text(config(server or self.first, more, name))
        self.gateway.reloader.reload()
        assert self.gateway.reloader.status() == {"pending": [], "trouble": ""}

    async def say(self, text: str) -> str:
        turns = self.gateway.turns
        turn = await turns.wait(await turns.submit(Inbound(CHAT, Sender("tester"), (Text(text),))))
        assert turn.state is TurnState.DONE, turn.error
        return turn.reply or ""


def config(server: ModelServer, more: str = "", name: str = "m") -> str:
    mine = f'[providers.mine]\nbase_url = "{server.base_url}"\n'
    return f'[model]\nprovider = "mine"\nname = "{name}"\n{mine}{more}'


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ReloadedGateway]:
    environ = {"TALARIA_CACHE": str(tmp_path / "cache")}  # without the models that this user has
    async with ModelServer() as first, ModelServer() as second:
        (tmp_path / "config.toml").write_text(config(first))
        async with without_http(tmp_path, environ=environ) as gateway:
            yield ReloadedGateway(tmp_path, gateway, first, second)


# Each changes its key and says what shows that it counts.
CHANGES: dict[tuple[str, ...], tuple[str, Callable[[Gateway], object], object]] = {
    ("aliases",): (
        '[aliases]\nfast = "mine/quick"\n',
        lambda gateway: str(gateway.catalog.resolve("fast")),
        "mine/quick",
    ),
    ("budgets",): (
        '[budgets]\nper_day_usd = 2\n[prices."mine/m"]\ninput = 0\noutput = 0\n',
        lambda gateway: [cap.limit for cap in gateway.budgets.caps],
        [2_000_000_000],
    ),
    ("pool",): ("[pool]\nmax_agents = 3\n", lambda gateway: gateway.pool.stats().cap, 3),
    ("providers",): (
        '[providers.other]\nbase_url = "http://127.0.0.1:9/v1"\n',
        lambda gateway: gateway.providers.base_url("other"),
        "http://127.0.0.1:9/v1",
    ),
    ("sessions", "reset"): (
        '[sessions]\nreset = "idle"\nidle_after = "1h"\ndaily_at = "05:00"\n',
        lambda gateway: gateway.reloader.live.settings.sessions.reset,
        "idle",
    ),
}


@pytest.mark.parametrize("key", CHANGES, ids=".".join)
async def test_a_change_counts_at_once(world: ReloadedGateway, key: tuple[str, ...]) -> None:
    assert is_marked(Settings, key, Mark.LIVE)
    more, look, expected = CHANGES[key]
    world.write(more)
    assert look(world.gateway) == expected


async def test_the_default_model_is_another_for_new_sessions_only(world: ReloadedGateway) -> None:
    await world.say("one")
    world.write("", name="other")
    await world.say("two")
    await world.say("/new")
    await world.say("three")
    models = [body.partition(b'"model":"')[2].partition(b'"')[0] for body in world.first.bodies]
    assert models == [b"m", b"m", b"other"]


async def test_another_address_counts_for_the_next_turn_and_leaves_the_running_one(
    world: ReloadedGateway,
) -> None:
    running = asyncio.create_task(world.say("[[delay 0.3]][[reply from the first]]"))
    await world.first.until(lambda: world.first.requests == 1)
    world.write("", server=world.second)
    assert await running == "from the first"
    assert await world.say("again [[reply from the second]]") == "from the second"
    assert (world.first.requests, world.second.requests) == (1, 1)


async def test_a_provider_named_local_takes_the_place_of_the_built_in_model_and_gives_it_back(
    world: ReloadedGateway,
) -> None:
    resolve = world.gateway.catalog.resolve
    assert str(resolve("local")) == f"local/{DEFAULT_MODEL}"
    world.write(f'[providers.local]\nbase_url = "{world.second.base_url}"\n')
    assert str(resolve("local/m")) == "local/m"
    with pytest.raises(NotFound):
        resolve("local")
    await world.say("/model local/m")
    assert await world.say("hello") == "You said: hello"
    assert world.second.requests == 1
    world.write("")
    assert str(resolve("local")) == f"local/{DEFAULT_MODEL}"


@pytest.mark.skipif(
    missing_requirement() is not None, reason=f"the built-in model cannot run here: {missing_requirement()}"
)
async def test_the_built_in_model_is_fetched_as_soon_as_it_is_the_default(tmp_path: Path) -> None:
    """Another process fetches it already, so that nothing here reaches for the network."""
    environ = {"TALARIA_YES": "1", "TALARIA_CACHE": str(tmp_path / "cache")}
    weights, cache = find_weights(DEFAULT_MODEL), WeightsCache.find(environ)
    async with ModelServer() as server:
        (tmp_path / "config.toml").write_text(config(server))
        async with without_http(tmp_path, environ=environ) as gateway:
            downloads = gateway.local.downloads
            await asyncio.sleep(0)
            assert (downloads.is_any, downloads.progress) == (False, None)
            with cache.locked(weights):
                (tmp_path / "config.toml").write_text('[model]\nprovider = "local"\n')
                gateway.reloader.reload()
                assert downloads.is_coming("local", DEFAULT_MODEL)
                await until(
                    lambda: downloads.progress and downloads.progress.stage is FetchStage.WAITING, pause=0
                )
                with cache.path(weights).open("wb") as file:
                    file.truncate(weights.size)
            assert await downloads.arrival(lambda loading: None)
            assert gateway.local.refusal(DEFAULT_MODEL) is None


async def test_prices_count_from_the_next_call_on(world: ReloadedGateway) -> None:
    await world.say("one")
    world.write('[prices."mine/m"]\ninput = 1000\noutput = 1000\n')
    await world.say("two")
    spent = await world.gateway.budgets.status()
    assert spent["unpriced_calls"] == 1
    assert spent["today_usd"] not in ("0", "0.00")


async def test_people_are_let_in_and_out_by_the_configuration() -> None:
    clock = FakeClock()
    authorizer = Authorizer(MemoryStore(clock).pairings, {"telegram": ()}, clock)
    actor = Actor("telegram", "7", ChatKind.PRIVATE, "7", "Ada")
    assert not isinstance(await authorizer.check(actor, Ingress.MESSAGE), Authorized)
    authorizer.change_allowed({"telegram": [actor.user_id]})
    assert isinstance(await authorizer.check(actor, Ingress.MESSAGE), Authorized)
    authorizer.change_allowed({"telegram": []})
    assert not isinstance(await authorizer.check(actor, Ingress.MESSAGE), Authorized)


async def test_the_prompt_is_another_for_new_sessions_only(world: ReloadedGateway) -> None:
    await world.say("one")
    world.write('[agent]\nprompt = "Speak like a pirate."\n')
    await world.say("two")
    await world.say("/new")
    await world.say("three")
    assert [b"pirate" in body for body in world.first.bodies] == [False, False, True]
