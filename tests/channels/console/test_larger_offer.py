"""The offer of the larger built-in model: its line in each state, its key, and what it asks the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from support.waiting import until
from talaria.channels.console.gateway_client import GatewayAddress, GatewayClient
from talaria.channels.console.larger_offer import LargerOffer
from talaria.models.local.larger import LargerModel, LargerState

NAME = "qwen2.5-coder-1.5b"
MODEL = f"local/{NAME}"
ABSENT = LargerModel(NAME, 1_117_000_000, 2_000_000_000, LargerState.ABSENT)
REFUSAL = {"error": {"type": "busy", "message": "Another model is being fetched.", "hint": ""}}


class Gateway:
    """Answers as a gateway does. `states` are told one by one, the last of them from then on."""

    def __init__(self) -> None:
        self.states = [ABSENT]
        self.usual = MODEL
        self.is_refusing = False
        self.fetched: list[str] = []

    async def status(self, request: web.Request) -> web.Response:
        larger = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return _json({"built_in_model": {"larger": larger}})

    async def fetch(self, request: web.Request) -> web.Response:
        self.fetched.append(request.match_info["name"])
        if self.is_refusing:
            return _json(REFUSAL, 409)
        return _json({"larger": as_state(LargerState.FETCHING)}, 202)

    async def models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": "main"}, {"id": self.usual}, {"id": "local/other"}]})


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def as_state(state: LargerState, **more: Any) -> LargerModel:
    return msgspec.structs.replace(ABSENT, state=state, **more)


@asynccontextmanager
async def offered(gateway: Gateway, larger: LargerModel) -> AsyncIterator[LargerOffer]:
    app = web.Application()
    app.router.add_get("/api/status", gateway.status)
    app.router.add_post("/api/models/{name}/fetch", gateway.fetch)
    app.router.add_get("/v1/models", gateway.models)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with (
            GatewayClient(GatewayAddress(url, "token")) as client,
            LargerOffer.open(client, larger, look_seconds=0.01) as offer,
        ):
            yield offer
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("larger", "line"),
    [
        (ABSENT, "Ctrl-G: use the larger model (1.1 GB download, 2 GB of memory)"),
        (as_state(LargerState.ABSENT, why="The disk is full."), "The disk is full. Ctrl-G tries again."),
        (as_state(LargerState.REFUSED, why="Too little memory."), ""),
        (as_state(LargerState.FETCHING, done=17_000_000), "Fetching the larger model: 17/1117 MB"),
        (
            as_state(LargerState.FETCHING, done=0, seconds_left=90.0),
            "Fetching the larger model: 0.0/1117 MB, 90 s left",
        ),
        (as_state(LargerState.READY), "The larger model is here. Ctrl-G begins a new session with it."),
    ],
)
async def test_the_line_says_the_state(larger: LargerModel, line: str) -> None:
    gateway = Gateway()
    gateway.states = [larger]
    async with offered(gateway, larger) as offer:
        assert offer.line() == line
    assert gateway.fetched == []


async def test_the_key_fetches_it_once_and_then_begins_a_session() -> None:
    gateway = Gateway()
    gateway.states = [as_state(LargerState.FETCHING, done=1)]
    async with offered(gateway, ABSENT) as offer:
        assert not offer.is_taken_by("/new")
        assert await offer.press() is None
        assert await offer.press() is None
        await until(lambda: offer.line().startswith("Fetching"))
        assert await offer.press() is None
        assert not offer.is_taken_by("/new")
        gateway.states = [as_state(LargerState.READY)]
        await until(lambda: offer.line().startswith("The larger model is here"))
        assert await offer.press() == "/new"
        assert [offer.is_taken_by(text) for text in (" /new ", "/reset", "/model x", "hello")] == [
            True, True, False, False,
        ]  # fmt: skip
    assert gateway.fetched == [NAME]


@pytest.mark.parametrize("larger", [ABSENT, as_state(LargerState.READY)])
async def test_nothing_is_offered_to_a_session_with_another_model(larger: LargerModel) -> None:
    gateway = Gateway()
    gateway.states = [larger]
    async with offered(gateway, larger) as offer:
        offer.note("hello")
        offer.note("/model")
        assert offer.line()
        gateway.usual = "mine/gpt-5"
        offer.note("/new")
        await until(lambda: offer.line() == "")
        assert await offer.press() is None
        gateway.usual = "local/tiny"
        offer.note(" /reset ")
        await until(lambda: offer.line() != "")
        offer.note("/model mine/gpt-5")
        assert (offer.line(), await offer.press()) == ("", None)
    assert gateway.fetched == []


async def test_a_download_that_another_client_began_is_followed() -> None:
    gateway = Gateway()
    gateway.states = [as_state(LargerState.READY)]
    async with offered(gateway, as_state(LargerState.FETCHING)) as offer:
        assert await offer.press() is None
        await until(lambda: offer.line().startswith("The larger model is here"))
    assert gateway.fetched == []


@pytest.mark.parametrize("state", [LargerState.READY, LargerState.FETCHING])
async def test_where_another_model_is_configured_it_is_for_this_session_alone(state: LargerState) -> None:
    gateway = Gateway()
    gateway.usual = "scripted/m"
    gateway.states = [as_state(LargerState.READY)]
    async with offered(gateway, as_state(state)) as offer:
        await until(lambda: offer.line() == "The larger model is here. Ctrl-G uses it in this session.")
        assert await offer.press() == f"/model {MODEL}"
        assert offer.is_taken_by(f"/model {MODEL}")
        assert not offer.is_taken_by("/new")


async def test_the_key_keeps_its_promise_after_another_model_was_configured() -> None:
    gateway = Gateway()
    gateway.states = [as_state(LargerState.READY)]
    async with offered(gateway, as_state(LargerState.READY)) as offer:
        assert offer.line() == "The larger model is here. Ctrl-G begins a new session with it."
        gateway.usual = "mine/gpt-5"
        assert await offer.press() is None, "a new session would have another model"
        assert offer.line() == "The larger model is here. Ctrl-G uses it in this session."
        assert await offer.press() == f"/model {MODEL}"


async def test_a_model_that_was_configured_is_noticed_with_the_next_message() -> None:
    gateway = Gateway()
    gateway.states = [as_state(LargerState.READY)]
    async with offered(gateway, as_state(LargerState.READY)) as offer:
        gateway.usual = "mine/gpt-5"
        offer.note("hello")
        await until(lambda: offer.line() == "The larger model is here. Ctrl-G uses it in this session.")


async def test_a_refusal_is_told_and_can_be_tried_again() -> None:
    gateway = Gateway()
    gateway.is_refusing = True
    async with offered(gateway, ABSENT) as offer:
        await offer.press()
        await until(lambda: offer.line() == "Another model is being fetched. Ctrl-G tries again.")
        gateway.is_refusing = False
        gateway.states = [as_state(LargerState.FETCHING)]
        assert await offer.press() is None
        await until(lambda: len(gateway.fetched) == 2)
        await until(lambda: offer.line().startswith("Fetching the larger model"))
    assert gateway.fetched == [NAME, NAME]


async def test_a_model_that_does_not_fit_is_not_fetched() -> None:
    gateway = Gateway()
    async with offered(gateway, as_state(LargerState.REFUSED)) as offer:
        assert await offer.press() is None
        assert not offer.is_taken_by("/new")
    assert gateway.fetched == []
