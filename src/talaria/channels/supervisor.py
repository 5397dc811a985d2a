"""Opens the channels of a gateway, and opens a channel again when its settings change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic

from talaria.channels.descriptor import Channel
from talaria.cluster.roles import Roles, SoughtRole, Tenure, channel_role
from talaria.config.load import read_secrets
from talaria.config.reload import merge
from talaria.core.errors import ConfigError
from talaria.core.redaction import Secret
from talaria.core.settings import Parts, S
from talaria.core.tasks import stop, wait_first
from talaria.gateway import Gateway

_log = logging.getLogger("talaria.channels")


@asynccontextmanager
async def open_channels(gateway: Gateway, parts: Parts) -> AsyncIterator[None]:
    """Open the channels among the parts, in their order; on the way out they close in the reverse order.

    Raises what a required channel raises. Any other channel that cannot be opened says so in its status, and
    the rest runs.
    """
    async with AsyncExitStack() as scopes:
        for channel in parts:
            if not isinstance(channel, Channel):
                continue
            if channel.is_required:
                opened = await scopes.enter_async_context(channel.open(gateway, gateway.settings.of(channel)))
                gateway.channels[channel.name] = opened
            else:
                await scopes.enter_async_context(_supervise(gateway, channel))
        yield


@dataclass(frozen=True, slots=True)
class _Closed:
    """In the place of a channel that cannot be opened."""

    status: str


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """In the place of a channel that another gateway of the cluster has open, or is about to open."""

    role: SoughtRole

    @property
    def status(self) -> str:
        holder = self.role.holder_name
        return f"elsewhere: {holder} has it" if holder else "elsewhere: no gateway has it yet"


@asynccontextmanager
async def _supervise(gateway: Gateway, channel: Channel[S]) -> AsyncIterator[None]:
    supervisor = _Supervisor(gateway, channel)
    gateway.reloader.watchers.append(supervisor.check)
    running = asyncio.create_task(supervisor.run(), name=channel.name)
    try:
        await supervisor.tried.wait()
        yield
    finally:
        gateway.reloader.watchers.remove(supervisor.check)
        await stop(running)


class _Supervisor(Generic[S]):
    """Keeps a channel open with the current settings. `tried` is set once it was opened, or could not be."""

    def __init__(self, gateway: Gateway, channel: Channel[S]) -> None:
        self._gateway = gateway
        self._channel = channel
        self._current = self._read()
        self._changed = asyncio.Event()
        self.tried = asyncio.Event()

    async def run(self) -> None:
        name = self._channel.name
        while True:
            self._changed.clear()
            self._current = self._read()
            try:
                await self._hold()
            except ConfigError as error:
                _log.error("%s is off: %s", name, error)
                await self._stay_closed(error.user_text)
            except Exception:
                _log.exception("the channel %s failed", name)
                if _is_cancelled():
                    return  # the error of its close took the place of the cancellation
                await self._stay_closed("an error, which the log tells")
            finally:
                self._gateway.channels.pop(name, None)

    def check(self) -> None:
        """Open the channel again if its settings or secrets changed, unless all changed keys are live."""
        (old, old_secrets), (new, new_secrets) = self._current, self._read()
        if old_secrets == new_secrets and merge(old, new) == new:
            self._current = new, new_secrets
        else:
            self._changed.set()

    async def _hold(self) -> None:
        settings, _ = self._current
        if not self._channel.is_on(settings):
            self.tried.set()
            await self._changed.wait()
            return
        if (roles := self._gateway.roles) is not None and self._channel.has_one_consumer(settings):
            await self._hold_with_role(settings, roles)
        else:
            await self._keep_open(settings)
        settings, _ = self._read()
        news = "it is opened again" if self._channel.is_on(settings) else "it is closed"
        _log.info("the settings of %s changed: %s", self._channel.name, news)

    async def _keep_open(self, settings: S, ended: asyncio.Event | None = None) -> None:
        """Keep the channel open until its settings change, or until `ended`."""
        async with self._channel.open(self._gateway, settings) as opened:
            self._gateway.channels[self._channel.name] = opened
            self.tried.set()
            await _first(self._changed, ended)

    async def _hold_with_role(self, settings: S, roles: Roles) -> None:
        """Keep the channel open while this gateway has its role. The role is given back once it is closed."""
        name = self._channel.name
        async with roles.seek(channel_role(name)) as role:
            while not self._changed.is_set():
                self._gateway.channels[name] = _Elsewhere(role)
                self.tried.set()
                if (tenure := await self._wait_for(role)) is None:
                    return
                await self._keep_open(settings, tenure.ended)
                if roles.is_draining:
                    break
        if not self._changed.is_set():
            self._gateway.channels[name] = _Closed("stopped: the gateway shuts down")
            await self._changed.wait()

    async def _wait_for(self, role: SoughtRole) -> Tenure | None:
        """Wait until the role is taken, and return its tenure; None if the settings change before."""
        taking = asyncio.create_task(role.taken(), name=f"wait for {role.name}")
        changing = asyncio.create_task(self._changed.wait(), name=f"changes of {self._channel.name}")
        try:
            await asyncio.wait((taking, changing), return_when=asyncio.FIRST_COMPLETED)
            return None if self._changed.is_set() else taking.result()
        finally:
            await stop(taking, changing)

    async def _stay_closed(self, reason: str) -> None:
        self._gateway.channels[self._channel.name] = _Closed(f"stopped: {reason}")
        self.tried.set()
        await self._changed.wait()

    def _read(self) -> tuple[S, frozenset[Secret]]:
        settings = self._gateway.reloader.live.settings.of(self._channel)
        return settings, read_secrets(settings, self._gateway.home.path, self._gateway.environ)


async def _first(*events: asyncio.Event | None) -> None:
    """Wait for the first of these events."""
    await wait_first(*(event.wait() for event in events if event is not None))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
