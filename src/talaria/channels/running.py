"""The steps that are the same for every chat platform: running its channel, and examining its account."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from talaria.access.authorizer import Authorizer
from talaria.channels.channel_loop import ChannelLoop
from talaria.channels.descriptor import Channel
from talaria.channels.http.part import HTTP
from talaria.channels.links import own_hosts
from talaria.channels.platform_api import PlatformError, PlatformRefused
from talaria.core.errors import TalariaError
from talaria.core.problems import Problem, ok, problem
from talaria.core.settings import Examination
from talaria.core.tasks import stop
from talaria.gateway import Gateway, Webhook
from talaria.turns.delivery import Outlet

_ANSWER_SECONDS = 10.0


@asynccontextmanager
async def run_channel(
    gateway: Gateway,
    part: Channel[Any],
    channel: ChannelLoop,
    outlet: Outlet,
    authorizer: Authorizer,
    *,
    is_only: bool = True,
    webhooks: Mapping[str, Webhook] = MappingProxyType({}),
) -> AsyncIterator[None]:
    """Run the channel until the context is left: then no more events are taken, and sends under way finish.
    A change of `allowed` takes effect at once."""

    def change_allowed(new: Any) -> None:
        authorizer.change_allowed({channel.name: new.allowed})

    gateway.delivery.attach(channel.name, outlet, is_only=is_only)
    gateway.webhooks.update(webhooks)
    running = asyncio.create_task(channel.run(), name=channel.name)
    try:
        with gateway.reloader.live.follow(part, change_allowed):
            yield
    finally:
        for path in webhooks:
            gateway.webhooks.pop(path, None)
        await stop(running)
        await gateway.delivery.detach(channel.name)


def hosts_of(gateway: Gateway, *more: str) -> frozenset[str]:
    """Return the gateway's own hosts: addresses of theirs are no links."""
    http = gateway.settings.of(HTTP)
    return own_hosts([http.host, *(host.rpartition(":")[0].strip("[]") for host in http.hosts), *more])


def state_of(examination: Examination[Any], channel: str) -> str:
    """Return the status of the channel in the running gateway; empty without one."""
    return str(((examination.status or {}).get("channels") or {}).get(channel, "")).rstrip(".")


async def examine_account(
    part: Channel[Any],
    examination: Examination[Any],
    try_account: Callable[[], Awaitable[Iterable[Problem]]],
    explain: Callable[[PlatformRefused], tuple[str, str]] | None = None,
) -> Iterable[Problem]:
    """Return the findings of `try_account`, or why the account cannot be used. `explain` returns the reason
    why a token is refused, and what to do."""
    name, state = part.name, state_of(examination, part.name)
    connect = f"talaria connect {name} --wait 0"
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await try_account()
    except PlatformRefused as refusal:
        if not refusal.is_about_token:
            found = problem(name, refusal.user_text)
        elif explain is not None:
            found = problem(name, *explain(refusal), connect)
        else:
            found = problem(name, f"{part.title} does not accept the token.", "", connect)
    except PlatformError as error:
        found = problem(name, error.user_text, "Check the network and api_url.")
    except TimeoutError:
        found = problem(name, f"{examination.settings.api_url} does not answer.", "Check the network.")
    except TalariaError as error:
        # The running gateway may have a variable that this shell does not have.
        is_running = state.startswith(("ready", "starting", "elsewhere"))
        found = ok(name, f"The gateway's channel is {state}.") if is_running else error.problem(name, connect)
    return [found]
