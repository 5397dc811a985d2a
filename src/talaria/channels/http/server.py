"""Where the API listens, and uvicorn's protocol on that socket inside the running loop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from talaria.channels.http.protocol import Protocol
from talaria.channels.http.settings import DEFAULT_PORT, HttpSettings
from talaria.core.errors import ConfigError

_BACKLOG: Final = 2048
_IDLE: Final = 75  # seconds that an unused connection stays open
_TRIED_PORTS: Final = 50
_MODEL_SERVER_PORT: Final = 8766  # where the scripted model listens by default
_LOCAL_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what to call instead


@dataclass(frozen=True, slots=True)
class Bound:
    """A listening socket. `notice` is what the operator should hear about it, if anything."""

    socket: socket.socket
    host: str
    port: int
    notice: str = ""

    @property
    def address(self) -> str:
        """As a client on this machine writes it: "every address" is none that one could call."""
        host = _LOOPBACK.get(self.host, self.host)
        return f"http://{_bracketed(host)}:{self.port}"


def bind(settings: HttpSettings) -> Bound:
    """Take the socket that the settings ask for. Raises `ConfigError`, each with what to do."""
    family, host = _resolve(settings.host)
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback and not settings.hosts:
        raise ConfigError(
            f"http.host is {settings.host}, which other machines can reach, but http.hosts is empty.",
            'Name what clients will call it, such as http.hosts = ["gateway.lan:8765"], or use 127.0.0.1.',
        )
    if settings.port is not None:
        return _bind_exactly(family, host, settings.port)
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS):
        if port == _MODEL_SERVER_PORT:
            continue
        try:
            taken = _listen(family, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _unusable(host, port, error) from error
            continue
        notice = f"port {DEFAULT_PORT} is in use, listening on {port} instead" if port != DEFAULT_PORT else ""
        return Bound(taken, host, port, notice)
    raise ConfigError(
        f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + _TRIED_PORTS - 1} is free on {host}.",
        "Set http.port = 0 to take any free one.",
    )


def allowed_hosts(settings: HttpSettings, bound: Bound) -> frozenset[str]:
    """The exact Host values that are let in: the names of this machine for itself, and those configured."""
    names = {*_LOCAL_NAMES} if bound.host in _LOOPBACK else {*_LOCAL_NAMES, _bracketed(bound.host)}
    local = {f"{name}:{bound.port}" for name in names}
    if bound.port == 80:
        local |= names
    return frozenset(local | {host.lower() for host in settings.hosts})


class HttpServer:
    """Serves `app` on a bound socket. Signals are none of its business, nor is the loop."""

    def __init__(self, app: ASGIApp, bound: Bound) -> None:
        self._bound = bound
        self._config = Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._tick: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return self._bound.address

    @property
    def notice(self) -> str:
        """What the operator should hear about where it listens, if anything."""
        return self._bound.notice

    async def start(self) -> None:
        self._config.load()
        self._set_date()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, sock=self._bound.socket, backlog=_BACKLOG)

    async def stop(self, grace: float) -> None:
        """Accept nothing more and close what is idle; answers under way get `grace` seconds, then are cut."""
        if self._server is None:
            self._bound.socket.close()
            return
        server, self._server = self._server, None
        server.close()
        connections = [each for each in self._state.connections if isinstance(each, Protocol)]
        for connection in connections:
            connection.shutdown()
        lost = [connection.lost for connection in connections]
        if lost:
            await asyncio.wait(lost, timeout=grace)
            for connection in connections:
                if not connection.lost.done():
                    connection.transport.abort()
            await asyncio.wait(lost)
        if left := list(self._state.tasks):
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        await server.wait_closed()
        if self._tick is not None:
            self._tick.cancel()

    def _connect(self) -> Protocol:
        return Protocol(self._config, self._state)

    def _set_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._tick = asyncio.get_running_loop().call_later(1.0, self._set_date)


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"http.host is {host!r}, which is no address of this machine: {_reason(error)}.",
            'Use "127.0.0.1", or "0.0.0.0" together with http.hosts.',
        ) from error
    family, _, _, _, address = found[0]
    return family, str(address[0])


def _bind_exactly(family: socket.AddressFamily, host: str, port: int) -> Bound:
    try:
        taken = _listen(family, host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _unusable(host, port, error) from error
        raise ConfigError(
            f"Port {port} on {host} is in use by another process.",
            "Stop that process, or name another port with http.port (0 takes any free one).",
        ) from error
    return Bound(taken, host, taken.getsockname()[1])


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Listening at once, so that nobody can take the port between here and `HttpServer.start`."""
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(_BACKLOG)
        taken.setblocking(False)
    except OSError:
        taken.close()
        raise
    return taken


def _unusable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot listen on {host} port {port}: {_reason(error)}.",
        "Set http.host and http.port to an address that this machine may use.",
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
