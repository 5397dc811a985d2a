"""MCP servers as a part of the gateway. Without a server it imports nothing more."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec

from talaria.access.approvals import ApprovalMode
from talaria.core.problems import Problem
from talaria.core.redaction import ApiAddress
from talaria.core.settings import (
    Check,
    Examination,
    Mark,
    matching,
    template,
    template_variables,
    web_address,
)
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.settings import CommandVariable
from talaria.tools.tool import ToolSource

if TYPE_CHECKING:
    from talaria.mcp.source import McpServers
    from talaria.observe.metrics import ServerReading
    from talaria.tools.tool import Tool


# -- `[mcp.servers.NAME]`: the MCP servers that agents may use --------------------------------------------


ServerName: TypeAlias = Annotated[
    str, Check(matching("[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "1 to 32 letters, digits, underscores or dashes"))
]
HeaderName: TypeAlias = Annotated[
    str, Check(matching("[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", "the name of an HTTP header"))
]
TemplateValue: TypeAlias = Annotated[str, Mark.TEMPLATE, Check(template)]


def _server_address(url: str) -> str | None:
    return "an address such as https://docs.example/mcp" if url and web_address(url) else None


def _whole_paths(paths: tuple[str, ...]) -> str | None:
    wrong = next((path for path in paths if not path.startswith(("/", "~/")) or "\0" in path), None)
    return None if wrong is None else f"whole paths of folders, such as /data/notes, not {wrong!r}"


class McpServer(msgspec.Struct, frozen=True):
    """An MCP server: a `command` that the gateway starts in a sandbox, or a `url`.

    A command gets the variables of `env` and no other. It writes to a folder of its own and to `writable`,
    and it reads the system's programs, the installation of its program and `readable`. `timeout` is the time
    limit of a call, `start_timeout` that of a start until the tools are listed. `protocol` pins the version
    of MCP; `transport` is the way to a `url`. With `auth` "oauth" the requests have the token of a login.
    """

    command: tuple[str, ...] = ()
    url: Annotated[str, Check(_server_address)] = ""
    env: dict[CommandVariable, TemplateValue] = {}
    headers: dict[HeaderName, TemplateValue] = {}
    network: Literal["off", "open"] = "off"
    writable: Annotated[tuple[str, ...], Check(_whole_paths)] = ()
    readable: Annotated[tuple[str, ...], Check(_whole_paths)] = ()
    protocol: Literal["auto", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] = "auto"
    transport: Literal["http", "sse"] = "http"
    auth: Literal["", "oauth"] = ""
    approvals: ApprovalMode = "risky"
    timeout: timedelta = timedelta(minutes=2)
    start_timeout: timedelta = timedelta(minutes=2)
    enabled: bool = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", ApiAddress(self.url))

    @property
    def address(self) -> ApiAddress:
        """The address with its credentials; `url` shows it without them."""
        return ApiAddress(self.url)

    @property
    def login(self) -> str:
        """The name of the login at this server: another address is another login."""
        return f"mcp:{self.address.target('')}"

    @property
    def identity(self) -> str:
        """A hash of what the operator agreed to: another command or address is another server."""
        told = msgspec.json.encode((self.command, str(self.url)))
        return hashlib.sha256(told).hexdigest()[:16]

    def references(self) -> Iterator[tuple[str, str]]:
        """Yield each variable that the settings name as `${NAME}`, after the key that names it."""
        words = (("command", word) for word in self.command[1:])
        env = ((f"env.{name}", value) for name, value in self.env.items())
        headers = ((f"headers.{name}", value) for name, value in self.headers.items())
        for key, text in (*words, *env, *headers):
            yield from ((key, variable) for variable in template_variables(text))

    def problems(self) -> Iterator[tuple[str, str]]:
        if bool(self.command) == bool(self.url):
            yield "command", 'or url: expected one of them, as command = ["uvx", "mcp-server-git"].'
        of_commands = (("env", self.env), ("writable", self.writable), ("readable", self.readable))
        if self.url:
            for name, value in (*of_commands, ("network", self.network == "open")):
                if value:
                    yield name, "is for servers with a command. Take it out."
            return
        for name, is_given in (
            ("headers", self.headers),
            ("transport", self.transport == "sse"),
            ("auth", self.auth),
        ):
            if is_given:
                yield name, "is for servers with a url. Take it out."


class McpSettings(msgspec.Struct, frozen=True):
    """`[mcp]`."""

    servers: dict[ServerName, McpServer] = {}

    def in_use(self) -> dict[str, McpServer]:
        """Return the servers that are enabled and have a command or a url."""
        return {
            name: server
            for name, server in self.servers.items()
            if server.enabled and bool(server.command) != bool(server.url)
        }


# -- MCP servers as a part of the gateway -----------------------------------------------------------------


class McpSource(ToolSource):
    """The source of tools. The servers themselves are imported with the first one that is configured."""

    name = "mcp"

    def __init__(self, scope: ToolScope, settings: McpSettings) -> None:
        self._scope = scope
        self._servers: McpServers | None = None
        self._changed: list[Callable[[], None]] = []
        self._is_started = False
        self.change(settings)

    def tools(self) -> tuple[Tool, ...]:
        return () if self._servers is None else self._servers.tools()

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def servers(self) -> Mapping[str, ServerReading]:
        return {} if self._servers is None else self._servers.servers()

    def start(self) -> None:
        self._is_started = True
        if self._servers is not None:
            self._servers.start()

    def change(self, settings: McpSettings) -> None:
        """Take new settings up."""
        if self._servers is not None:
            self._servers.change(settings)
        elif settings.servers:
            from talaria.mcp.source import McpServers  # noqa: PLC0415 - with the first server

            self._servers = McpServers(self._scope, settings)
            self._servers.subscribe(self._tell)
            if self._is_started:
                self._servers.start()
                self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    async def close(self) -> None:
        if self._servers is not None:
            await self._servers.close()


@asynccontextmanager
async def _open(scope: ToolScope, settings: McpSettings) -> AsyncIterator[ToolSource]:
    """Open the source, which follows changes of its settings. Leaving ends the servers."""
    source = McpSource(scope, settings)
    with scope.follow(MCP, source.change):
        try:
            yield source
        finally:
            await source.close()


async def _examine(examination: Examination[McpSettings]) -> AsyncIterator[Problem]:
    if not examination.settings.servers:
        return
    from talaria.mcp.probe import examine_servers  # noqa: PLC0415

    async for finding in examine_servers(examination):
        yield finding


MCP: Final = ToolPart(
    name="mcp",
    table=("mcp",),
    settings=McpSettings,
    is_builtin=False,
    open=_open,
    findings=_examine,
)
