"""`[mcp.servers.NAME]`: the MCP servers that agents may use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

import msgspec

from talaria.access.approvals import ApprovalMode
from talaria.core.redaction import ApiAddress
from talaria.core.settings import Check, Mark, matching, template, template_variables, web_address
from talaria.tools.settings import CommandVariable

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
    limit of a call, `start_timeout` that of a start until the tools are listed.
    """

    command: tuple[str, ...] = ()
    url: Annotated[str, Check(_server_address)] = ""
    env: dict[CommandVariable, TemplateValue] = {}
    headers: dict[HeaderName, TemplateValue] = {}
    network: Literal["off", "open"] = "off"
    writable: Annotated[tuple[str, ...], Check(_whole_paths)] = ()
    readable: Annotated[tuple[str, ...], Check(_whole_paths)] = ()
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
        elif self.headers:
            yield "headers", "is for servers with a url. Take it out."


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
