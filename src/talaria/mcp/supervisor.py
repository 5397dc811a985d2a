"""The whole life of one server: connecting, listing, the pauses after failures, and its end.

A server is started once for the whole process. When it dies it is started again after a pause that doubles
with each failure; after several failures in a row a breaker opens, and calls fail at once until a probe has
gone well. Nothing that a turn does starts a server or ends it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.errors import ToolError
from talaria.core.tasks import wait_first
from talaria.mcp import pins
from talaria.mcp.launch import CannotRun, ServerLauncher, explain
from talaria.mcp.part import McpServer
from talaria.mcp.probe import failure_text, load_connection
from talaria.mcp.texts import clean_line
from talaria.models.limiter import BreakerSettings, BreakerState, CircuitBreaker
from talaria.observe.metrics import ServerReading
from talaria.tools.tool import CallScope

if TYPE_CHECKING:
    from talaria.mcp.connection import Listing, ServerConnection

PAUSES = Backoff(first=1.0, longest=16.0)  # before the breaker opens
BREAKER = BreakerSettings(threshold=5, rests=Backoff(first=60.0, longest=900.0))
STEADY_SECONDS = 60.0  # up for so long, a server has not failed to start when it dies
RELIST_SECONDS = 1800.0
_SOON = 5.0  # a call waits for a start that is this near
_CALM_SECONDS = 2.0  # between two listings that the server asks for
_log = logging.getLogger("talaria.mcp")


class ServerState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # for the next start
    RESTING = "resting"  # the breaker is open
    REFUSED = "refused"  # it cannot be run as it is configured
    CLOSED = "closed"


class ServerKeeper:
    """Keeps one server. `run` is its whole life, and cancelling it ends the server."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        launcher: ServerLauncher,
        home: Path,
        clock: Clock,
        *,
        listed: Callable[[str, pins.ServerPins], None] = lambda name, found: None,
        redact: Callable[[str], str] = str,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`listed` is told the pins after each listing."""
        self.name = name
        self.server = server
        self._launcher = launcher
        self._home = home
        self._clock = clock
        self._listed = listed
        self._redact = redact
        self._breaker = CircuitBreaker(clock, draw, BREAKER)
        self._changed = asyncio.Event()  # the state; replaced by a new one with each change
        self._relist = asyncio.Event()
        self._next_start = 0.0
        self._connection: ServerConnection | None = None
        self.state = ServerState.STARTING
        self.trouble = ""
        self.hint = ""
        self.left_out: tuple[str, ...] = ()
        self.starts = 0
        self.calls = 0
        self.failed_calls = 0

    def reading(self) -> ServerReading:
        told, calls = (self.trouble, self.hint, self.left_out), (self.calls, self.failed_calls)
        return ServerReading(self.state.value, self.starts, *told, *calls)

    # -- its life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the server until this is cancelled, or until it turns out that it cannot be run."""
        try:
            while await self._attempt():
                pause = self._pause()
                self._next_start = self._clock.elapsed() + pause
                is_open = self._breaker.state is BreakerState.OPEN
                self._enter(ServerState.RESTING if is_open else ServerState.WAITING)
                _log.warning(
                    "the MCP server %s is down: %s It is started again in %.0f s.",
                    self.name, self.trouble, pause,
                )  # fmt: skip
                await self._clock.sleep(pause)
        finally:
            if self.state is not ServerState.REFUSED:
                self._enter(ServerState.CLOSED)

    def _pause(self) -> float:
        if self._breaker.state is BreakerState.OPEN:
            return self._breaker.rests_for
        return PAUSES.pause(self._breaker.failures)

    async def _attempt(self) -> bool:
        """Start the server and keep it until it is down. Return whether to try again."""
        while (ticket := self._breaker.admit()) is None:
            await self._clock.sleep(max(self._breaker.rests_for, 0.001))
        self.starts += 1
        self._relist.clear()
        self._enter(ServerState.STARTING)
        was_up: float | None = None
        try:
            async with self._connected() as connection:
                was_up = self._clock.elapsed()
                self._connection, self.trouble, self.hint = connection, "", ""
                self._enter(ServerState.READY)
                await self._stay(connection)
                self.trouble = self._told(connection.ending.why)
        except CannotRun as error:
            self.trouble, self.hint = self._told(error.user_text), error.hint
            self._enter(ServerState.REFUSED)
            _log.error("the MCP server %s cannot be run: %s %s", self.name, self.trouble, self.hint)
            return False
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self.trouble = "The connection broke."
        except (Exception, BaseExceptionGroup) as error:
            self.trouble, self.hint = self._told(failure_text(error)), explain(self.server)
            _log.debug("the MCP server %s failed", self.name, exc_info=error)
        finally:
            self._connection = None
        if was_up is not None and self._clock.elapsed() - was_up >= STEADY_SECONDS:
            self._breaker.answered(ticket)
            ticket = self._breaker.admit() or ticket
        self._breaker.failed(ticket)
        return True

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[ServerConnection]:
        """Connect, list the tools, and yield the connection."""
        module = await load_connection(self._launcher.threads)
        is_legacy = self._breaker.failures % 2 == 1
        async with module.open_connection(
            self.name, self.server, self._launcher, self._relist.set, is_legacy=is_legacy
        ) as (connection, listing):
            await self._take(listing)
            yield connection

    async def _stay(self, connection: ServerConnection) -> None:
        """List the tools again when the server says that they changed, and now and then, until it is gone."""
        while not connection.ending.ended.is_set():
            await wait_first(
                connection.ending.ended.wait(), self._relist.wait(), self._clock.sleep(RELIST_SECONDS)
            )
            if connection.ending.ended.is_set():
                return
            self._relist.clear()  # what changes from now on is not in the list
            with suppress(ToolError, TimeoutError):
                async with asyncio.timeout(self.server.start_timeout.total_seconds()):
                    await self._take(await connection.listing())
            await asyncio.sleep(_CALM_SECONDS)

    async def _take(self, listing: Listing) -> None:
        self.left_out = tuple(map(self._told, listing.left_out))
        found = await self._launcher.threads.run(
            self.name, pins.note_listing, self._home, self.name, self.server.identity, listing.tools
        )
        self._listed(self.name, found)

    def _enter(self, state: ServerState) -> None:
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def give_up(self) -> None:
        """Let calls that wait for the server fail: its life is cancelled, and may never have begun."""
        self._enter(ServerState.CLOSED)

    def _told(self, text: str) -> str:
        return clean_line(self._redact(text), 500)

    # -- for calls ------------------------------------------------------------------------------------------

    async def connection(self, scope: CallScope) -> ServerConnection:
        """Return the connection. Waits while the server starts, or is about to. Raises `ToolError`."""
        while self._connection is None:
            is_near = self.state is ServerState.WAITING and self._starts_in() <= min(_SOON, scope.remaining())
            if self.state is not ServerState.STARTING and not is_near:
                raise self._is_down()
            changed = self._changed
            try:
                async with asyncio.timeout(max(0.0, scope.remaining() - 0.1)):
                    await changed.wait()
            except TimeoutError:
                raise self._is_down() from None
        return self._connection

    def _starts_in(self) -> float:
        return max(0.0, self._next_start - self._clock.elapsed())

    def _is_down(self) -> ToolError:
        match self.state:
            case ServerState.STARTING:
                what = "has not started yet."
            case ServerState.WAITING | ServerState.RESTING:
                what = f"is down and is started again in {self._starts_in():.0f} seconds."
            case _:
                what = "cannot be used."
        hint = "Do without it, and tell the person that it is down."
        return ToolError(f"The MCP server {self.name} {what} {self.trouble}".strip(), hint)
