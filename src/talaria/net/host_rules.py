"""The rules for hosts: which ones commands reach without a question, and the gate that decides."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec

from talaria.core.ids import SessionId
from talaria.core.limits import BoundedDict
from talaria.core.settings import Check, Mark
from talaria.net.addresses import AddressRefused, parse_endpoint, parse_host, write_address

_Key: TypeAlias = tuple[str, str]  # a session, and the rule that would admit what it wants

# Registries of packages and hosts of code, by exact name. Left out on purpose: hosts of pages and files that
# anyone can write (gist.github.com, raw.githubusercontent.com, *.github.io), hosts of uploads
# (upload.pypi.org), and registries that fetch from a host in the request's path (proxy.golang.org), which
# would carry data anywhere.
SHIPPED_HOSTS = (
    "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "registry.yarnpkg.com", "index.crates.io",
    "static.crates.io", "static.rust-lang.org", "rubygems.org", "index.rubygems.org", "repo.packagist.org",
    "repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org", "api.nuget.org",
    "conda.anaconda.org", "hackage.haskell.org", "repo.hex.pm", "cran.r-project.org", "github.com",
    "codeload.github.com", "gitlab.com", "codeberg.org", "bitbucket.org",
)  # fmt: skip
WEB_PORTS = (80, 443)
HOLD_SECONDS = 60.0  # that a command is held while a person is asked
_AGAIN_SECONDS = 300.0  # after an unanswered question, in which the same one does not hold a command again
_SHORT_HOLD = 0.2
_MOST_REMEMBERED = 1000


def parse_rule(entry: str) -> tuple[str, int | None]:
    """Return the host of an entry of `network.allow`, and its port; None stands for the ports of the web.

    Raises `AddressRefused` for anything but an exact name or address.
    """
    host, port = entry.strip(), None
    if found := re.fullmatch(r"(.+[^:]):([1-9][0-9]{0,4})", host):
        if int(found[2]) > 65535 or (":" in found[1] and not found[1].startswith("[")):
            raise AddressRefused(f"{entry!r} is not a host with a port.")
        host, port = found[1], int(found[2])
    return str(parse_host(host)), port


def write_rule(host: str, port: int) -> str:
    """Return the entry of `network.allow` that admits this host and port."""
    if port in WEB_PORTS:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_listed(host: str, port: int, settings: NetworkSettings) -> bool:
    """Whether an entry of `network.allow` admits a host as `parse_host` returns it, or `allow_private` names
    it, by its address, with this port."""
    for entry in settings.allow:
        name, its_port = parse_rule(entry)
        if name == host and (port in WEB_PORTS if its_port is None else port == its_port):
            return True
    parsed = parse_host(host)
    return not isinstance(parsed, str) and write_address(parsed, port) in settings.private_endpoints()


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A connection that a command of a session wants. `host` is a name in lower case or an address, as
    `net.addresses.parse_host` returns it. Nobody waits for a background process, so it cannot be held."""

    session_id: SessionId
    host: str
    port: int
    is_background: bool = False


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The answer to a `HostRequest`. `reason` is a sentence for the command that asked, if it is refused."""

    is_admitted: bool
    reason: str = ""


AskHost: TypeAlias = Callable[[HostRequest], Awaitable[HostAnswer]]
"""Asks a person about a host that no rule admits. A host that is granted to the session already is admitted
at once. The caller waits for a limited time and then cancels the call; the question stays open for the
session. For a background process the call refuses at once, and leaves the question open."""


class NetworkGate:
    """Decides which hosts the commands of a session reach, by `[network] commands` and `allow`. An unlisted
    host is a question for `ask`. The address is checked apart from this.

    Connections that wait for the same answer share one question. A question that nobody answered in time
    stays open; for a few minutes the same host does not hold a command again.
    """

    def __init__(
        self,
        settings: Callable[[], NetworkSettings],
        ask: AskHost | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._settings = settings
        self.ask = ask
        self._hold_seconds = hold_seconds
        self._open: dict[_Key, asyncio.Task[HostAnswer]] = {}
        self._unanswered: BoundedDict[_Key, float] = BoundedDict(_MOST_REMEMBERED)

    async def admit(self, request: HostRequest) -> HostAnswer:
        """Return the answer, after a person was asked if that is needed."""
        settings = self._settings()
        if settings.commands == "off":
            return HostAnswer(False, 'Commands have no network here (network.commands = "off").')
        if settings.commands == "open" or is_listed(request.host, request.port, settings):
            return HostAnswer(True)
        if self.ask is None:
            return HostAnswer(False, "It is not in network.allow, and there is nobody to ask.")
        if request.is_background:
            return await self.ask(request)
        return await self._share(request, self.ask)

    async def _share(self, request: HostRequest, ask: AskHost) -> HostAnswer:
        key = (request.session_id, write_rule(request.host, request.port))
        asking = self._open.get(key)
        if asking is None:
            asking = asyncio.create_task(self._hold(key, request, ask), name="ask about a host")
            self._open[key] = asking
            asking.add_done_callback(lambda _: self._open.pop(key, None))
        return await asyncio.shield(asking)

    async def _hold(self, key: _Key, request: HostRequest, ask: AskHost) -> HostAnswer:
        now = asyncio.get_running_loop().time()
        was_asked = self._unanswered.get(key, 0.0) > now
        try:
            async with asyncio.timeout(_SHORT_HOLD if was_asked else self._hold_seconds):
                answer = await ask(request)
        except TimeoutError:
            if not was_asked:
                self._unanswered[key] = now + self._hold_seconds + _AGAIN_SECONDS
            text = "A person was asked and has not answered yet. Try again once they have, or do without it."
            return HostAnswer(False, text)
        self._unanswered.pop(key, None)
        return answer

    def close(self) -> None:
        """End every wait: the connections behind them are refused."""
        for asking in tuple(self._open.values()):
            asking.cancel()


# -- `[network]`: what commands and fetching tools may reach ----------------------------------------------


def _host_rules(entries: tuple[str, ...]) -> str | None:
    for entry in entries:
        try:
            parse_rule(entry)
        except AddressRefused:
            return f'exact names of hosts, such as "pypi.org" or "example.org:8443", not {entry!r}'
    return None


def _endpoints(entries: tuple[str, ...]) -> str | None:
    for entry in entries:
        if parse_endpoint(entry) is None:
            return f'exact addresses with a port, such as "192.168.1.20:8123", not {entry!r}'
    return None


class NetworkSettings(msgspec.Struct, frozen=True):
    """`commands` is what commands reach: nothing, the hosts of `allow` and those that a person admits, or
    every public host. `fetch` is the same for tools that fetch pages. `allow_private` are exact addresses
    that are not public and may be connected to all the same."""

    commands: Annotated[Literal["off", "ask", "open"], Mark.LIVE] = "ask"
    fetch: Annotated[Literal["off", "public"], Mark.LIVE] = "public"
    allow: Annotated[tuple[str, ...], Mark.LIVE, Check(_host_rules)] = SHIPPED_HOSTS
    allow_private: Annotated[tuple[str, ...], Mark.LIVE, Check(_endpoints)] = ()

    def private_endpoints(self) -> frozenset[str]:
        """Return `allow_private` as `net.addresses.write_address` writes addresses."""
        return frozenset(filter(None, map(parse_endpoint, self.allow_private)))
