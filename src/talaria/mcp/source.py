"""All configured servers of a process, and their tools.

The tools are those of the file of pins, so they are there at once, whichever server is up. The servers are
connected beside the gateway, once it is ready.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from talaria.access.oauth import OAuthLogins
from talaria.core.errors import ConfigError
from talaria.core.limits import BoundedDict
from talaria.core.tasks import Closer, stop
from talaria.mcp import pins
from talaria.mcp.elicitation import MOST_KEPT, OpenQuestions
from talaria.mcp.launch import ServerLauncher
from talaria.mcp.part import McpServer, McpSettings
from talaria.mcp.supervisor import ServerKeeper
from talaria.mcp.tool import McpTool, tool_spec
from talaria.observe.metrics import ServerReading
from talaria.tools.builtin import NETWORK, SANDBOX
from talaria.tools.part import ToolScope
from talaria.tools.tool import Tool, ToolSource
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import ProcessLimits

_LOOK_SECONDS = 3.0  # between two looks at the file of pins, which the command line may change
_CLOSE_SECONDS = 10.0
_log = logging.getLogger("talaria.mcp")


class McpServers(ToolSource):
    """The servers. `start` lets them start; `change` takes new settings up."""

    name = "mcp"

    def __init__(
        self,
        scope: ToolScope,
        settings: McpSettings,
        *,
        sandboxes: Sandboxes | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` returns random numbers from 0 to 1, for the rests of the breakers."""
        self._scope = scope
        self._settings = settings
        self._draw = draw
        self._sandboxes = sandboxes or Sandboxes(scope.current(SANDBOX).sandbox, scope.home, scope.shared)
        self._pins = _read_pins(scope)
        self._stamp = pins.pins_stamp(scope.home)
        self._launcher: ServerLauncher | None = None
        self._questions: OpenQuestions = BoundedDict(MOST_KEPT)
        self._keepers: dict[str, ServerKeeper] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, list[asyncio.Task[None]]] = {}  # that were dropped, and may not be gone
        self._closer = Closer(scope.clock, _CLOSE_SECONDS, "the MCP server", _log)
        self._watching: asyncio.Task[None] | None = None
        self._is_started = False
        self._subscribers: list[Callable[[], None]] = []
        self._tools = self._make_tools()

    # -- as a source of tools -------------------------------------------------------------------------------

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.append(changed)

    def servers(self) -> Mapping[str, ServerReading]:
        """Return how each server is now."""
        readings = {}
        for name, server in self._settings.servers.items():
            found = self._pins.get(name) or pins.ServerPins("")
            keeper = self._keepers.get(name)
            reading = keeper.reading() if keeper else ServerReading("starting" if server.enabled else "off")
            proposed = tuple(sorted(each or "resources" for each in found.proposed))
            tools = len(found.offered())
            readings[name] = msgspec.structs.replace(reading, tools=tools, proposed=proposed)
        return readings

    def _make_tools(self) -> tuple[Tool, ...]:
        made = []
        for name, server in sorted(self._settings.in_use().items()):
            found = self._pins.get(name)
            if found is None or found.identity != server.identity:
                continue
            for tool, pinned in sorted(found.offered().items()):
                spec = tool_spec(name, server, pinned)
                made.append(McpTool(spec, name, tool, partial(self._keepers.get, name), self._questions))
        return tuple(made)

    def _renew(self) -> None:
        """Make the tools anew, and tell if agents are offered others now."""
        before = [tool.spec for tool in self._tools]
        self._tools = self._make_tools()
        if [tool.spec for tool in self._tools] != before:
            for changed in self._subscribers:
                changed()

    # -- the servers ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the servers. The caller does not wait for them."""
        self._is_started = True
        for name, server in self._settings.in_use().items():
            self._keep(name, server)

    def change(self, settings: McpSettings) -> None:
        """Take new settings up. Servers whose settings are the same go on."""
        old, self._settings = self._settings.in_use(), settings
        for name in old.keys() - settings.in_use().keys():
            self._drop(name)
        for name, server in settings.in_use().items() if self._is_started else ():
            if old.get(name) != server or name not in self._tasks:
                self._drop(name)
                self._keep(name, server)
        self._renew()

    def _keep(self, name: str, server: McpServer) -> None:
        scope = self._scope
        if self._launcher is None:
            tools = scope.current(SANDBOX)
            limits = ProcessLimits(tools.command_memory, tools.command_processes)
            self._launcher = ServerLauncher(
                scope.home,
                scope.environ,
                self._sandboxes,
                limits=limits,
                private=lambda: scope.current(NETWORK).allow_private,
                is_own_secret=scope.is_own_secret,
                token=self._token,
            )
        keeper = ServerKeeper(
            name,
            server,
            self._launcher,
            scope.home,
            scope.clock,
            listed=self._listed,
            redact=scope.secrets,
            draw=self._draw,
        )
        before = tuple(task for task in self._leaving.get(name, ()) if not task.done())
        self._keepers[name] = keeper
        self._tasks[name] = asyncio.create_task(_after(before, keeper), name=f"mcp {name}")
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch_pins(self._launcher), name="mcp pins")

    async def _token(self, name: str, server: McpServer, refused: str) -> str:
        scope = self._scope
        logins = OAuthLogins(scope.store.oauth, scope.store.clock.now, scope.secrets)
        return await logins.token(server.login, f"Log in: `talaria mcp login {name}`.", refused=refused)

    def _drop(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is None:
            return
        self._keepers.pop(name).give_up()
        task.cancel()
        self._leaving[name] = [task, *(each for each in self._leaving.get(name, ()) if not each.done())]
        self._closer.close(name, partial(_ended, task))

    def _listed(self, name: str, found: pins.ServerPins) -> None:
        old = self._pins.get(name)
        self._pins = {**self._pins, name: found}
        if found.proposed and (old is None or old.proposed != found.proposed):
            _log.warning(
                "the MCP server %s lists other tools than were approved: see `talaria mcp list`", name
            )
        self._renew()

    async def _watch_pins(self, launcher: ServerLauncher) -> None:
        """Take up what the command line approved."""
        while True:
            await self._scope.clock.sleep(_LOOK_SECONDS)
            stamp = await launcher.threads.run(self, pins.pins_stamp, self._scope.home)
            if stamp != self._stamp:
                self._stamp = stamp
                self._pins = await launcher.threads.run(self, _read_pins, self._scope)
                self._renew()

    async def close(self) -> None:
        """End all servers. Returns when they are gone, or were given up."""
        for name in tuple(self._tasks):
            self._drop(name)
        if self._watching is not None:
            await stop(self._watching)
        await self._closer.drain()
        if self._launcher is not None:
            await self._launcher.close()


async def _after(before: tuple[asyncio.Task[None], ...], keeper: ServerKeeper) -> None:
    """Run a server once those that it takes the place of are gone."""
    if before:
        await asyncio.wait(before)
    await keeper.run()


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))


def _read_pins(scope: ToolScope) -> dict[str, pins.ServerPins]:
    try:
        return pins.read_pins(scope.home)
    except ConfigError as error:
        _log.error("%s %s", error.user_text, error.hint)
        return {}
