"""Clients of `/v1` that leave before their answer: both APIs, whole and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.gateway import Api
from support.waiting import until
from talaria.testing.model_server import ModelServer
from talaria.turns.live import LiveTurn
from talaria.turns.states import LiveState

PATHS = ["/v1/chat/completions", "/v1/responses"]
CALLS = pytest.mark.parametrize(
    ("path", "stream"), [(path, stream) for path in PATHS for stream in (False, True)]
)


async def begin(
    api: Api,
    model: ModelServer,
    path: str,
    *,
    stream: bool,
    asked: Callable[[], bool] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[asyncio.Task[None], LiveTurn]:
    """Ask for an answer that never ends. The model has been asked when this returns, or `asked` is true."""
    text, before = "[[hang]]", model.requests
    body: dict[str, Any] = {"model": "main", "stream": stream}
    body |= {"input": text} if "responses" in path else {"messages": [{"role": "user", "content": text}]}

    async def ask() -> None:
        async with api.client.post(api.url + path, json=body, headers=headers) as answer:
            await answer.read()

    client = asyncio.create_task(ask())
    await until(lambda: asked() if asked else model.requests > before)
    (live,) = api.gateway.turns.live
    return client, live


def watchers() -> int:
    """How many requests the gateway watches for a client that leaves."""
    return sum(task.get_name() in ("waiting client", "event stream") for task in asyncio.all_tasks())


async def leave(api: Api, client: asyncio.Task[None]) -> None:
    """Leave, and return when the gateway has seen it."""
    watched = await until(watchers)
    client.cancel()
    await asyncio.wait([client])
    await until(lambda: watchers() != watched)
    await api.get("/api/status")


@CALLS
async def test_the_call_of_a_client_that_leaves_is_cancelled(
    api: Api, model: ModelServer, path: str, stream: bool
) -> None:
    client, live = await begin(api, model, path, stream=stream)
    await leave(api, client)
    assert (await live.settled).state == "cancelled"
    await model.until(lambda: not model.connections)


@CALLS
async def test_the_turn_of_a_session_goes_on_without_its_client(
    api: Api, model: ModelServer, path: str, stream: bool
) -> None:
    client, live = await begin(api, model, path, stream=stream, headers={"X-Talaria-Session": "notes"})
    await leave(api, client)
    assert live.state is LiveState.RUNNING


@CALLS
@pytest.mark.parametrize("owner_first", [False, True])
async def test_a_call_that_another_request_has_joined_goes_on(
    api: Api, model: ModelServer, path: str, stream: bool, owner_first: bool
) -> None:
    keyed = {"Idempotency-Key": "same"}
    first, live = await begin(api, model, path, stream=stream, headers=keyed)
    second, _ = await begin(api, model, path, stream=stream, asked=lambda: live.repeats > 0, headers=keyed)
    await until(lambda: watchers() >= 2)
    clients = [first, second] if owner_first else [second, first]
    await leave(api, clients[0])
    assert live.state is LiveState.RUNNING
    await leave(api, clients[1])
    assert (await live.settled).state == "cancelled"
