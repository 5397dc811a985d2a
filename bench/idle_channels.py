"""The cost of a connected channel in which nothing happens: memory of a gateway, and CPU of the connection.

Two idle gateways differ by more CPU than a connection takes. A connection is therefore metered in its own
process: `python -m bench.idle_channels NAME URL TOKEN`. A channel has no other work until an event comes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import uvloop

from bench.processes import Metered, connection, gateway, model_server
from talaria.channels.discord.api import DiscordApi
from talaria.channels.discord.gateway import DiscordGateway
from talaria.channels.slack.slack_api import SlackApi
from talaria.core.clock import SystemClock
from talaria.testing.discord_server import DiscordServer
from talaria.testing.simulated_slack import SlackSide
from talaria.testing.simulated_users import DiscordSide, PlatformSide
from talaria.testing.slack_server import APP_TOKEN, SlackServer

_PERSON = 21


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Bytes that a gateway grows by, and CPU seconds of an hour."""

    rss: int
    cpu: float


async def measure_idle_channels(seconds: float) -> dict[str, IdleCost]:
    """Return the cost of each channel, from so many seconds in which nothing happens."""
    async with AsyncExitStack() as scopes:
        discord = await scopes.enter_async_context(DiscordServer())
        slack = await scopes.enter_async_context(SlackServer())
        places = {"discord": (discord.url, discord.token), "slack": (slack.api_url, APP_TOKEN)}
        connections = {name: scopes.enter_context(connection(name, *place)) for name, place in places.items()}
        await discord.until(lambda: discord.session is not None)
        await slack.until(lambda: bool(slack.sockets))
        await asyncio.sleep(1)
        before = {name: process.cpu() for name, process in connections.items()}
        await asyncio.sleep(seconds)
        cpu = {name: process.cpu() - before[name] for name, process in connections.items()}

        sides: dict[str, PlatformSide] = {"discord": DiscordSide(discord), "slack": SlackSide(slack)}
        model = scopes.enter_context(model_server())
        served: dict[str, Metered] = {}
        for name in ("", *sides):
            channel = sides[name].settings([_PERSON]) if name else {}
            settings = {f"TALARIA_{key}": value for key, value in channel.items()}
            served[name], token = scopes.enter_context(gateway(model.url, settings=settings))
            if name:
                await _until_connected(served[name], token, name)
        await asyncio.sleep(3)  # until they have loaded what they load beside their work
        rest = served[""].rss()
        return {name: IdleCost(served[name].rss() - rest, cpu[name] / seconds * 3600) for name in sides}


async def _until_connected(process: Metered, token: str, channel: str) -> None:
    headers, state = {"Authorization": f"Bearer {token}"}, ""
    async with aiohttp.ClientSession(headers=headers) as session:
        while not state.startswith(("ready", "starting: ")):
            await asyncio.sleep(0.1)
            async with session.get(f"{process.url}/api/status") as response:
                state = str((await response.json())["channels"].get(channel, ""))


# -- the metered process ----------------------------------------------------------------------------------


async def _discord(url: str, token: str) -> None:
    async def ignore(name: str, data: msgspec.Raw, seq: int) -> None:
        return

    async with DiscordApi(url, token) as api:
        await DiscordGateway(api, SystemClock()).run(ignore)


async def _slack(url: str, token: str) -> None:
    async with SlackApi(url, token) as app, app.open_socket() as socket:
        while True:
            await socket.receive()


_CONNECTIONS: dict[str, Callable[[str, str], Coroutine[Any, Any, None]]] = {
    "discord": _discord,
    "slack": _slack,
}

if __name__ == "__main__":
    uvloop.run(_CONNECTIONS[sys.argv[1]](*sys.argv[2:]))
