"""The socket on which the API listens, and uvicorn's HTTP protocol on it, inside the running event loop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from talaria.channels.http.connections import ClientConnection, ClientConnections
from talaria.channels.http.errors import error_response
from talaria.channels.http.part import DEFAULT_PORT, HttpSettings
from talaria.channels.http.request import AsgiApp, Receive, Request, Scope, Send
from talaria.channels.http.response import json_response
from talaria.channels.http.routes import HealthView, ReadyView
from talaria.core.errors import ConfigError, StoreError
from talaria.core.limits import Limits
from talaria.core.problems import Action, Do
from talaria.core.text import clean_line
from talaria.observe.health import GatewayPhase, descriptor_limit

_log = logging.getLogger("talaria.http")
_BACKLOG: Final = 2048
_UNSENT: Final = 128 << 10  # bytes of a response that the system buffers for a client that does not read
_IDLE_SECONDS: Final = 75  # how long an unused connection stays open
_TRIED_PORTS: Final = 50
_LISTENS: Final = "0A"  # the state of a socket in /proc/net/tcp
_MODEL_SERVER_PORT: Final = 8766  # the scripted model's default
_STOP_SECONDS: Final = 1.0
_LOCAL_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - how a client calls the address

DISK_FULL: Final = StoreError(
    "The disk of the gateway is full, so the gateway has not started yet.",
    "Make room on the disk; the gateway continues by itself.",
)


# -- binding ----------------------------------------------------------------------------------------------

_OTHER_HOST = Action(Do.UNSET_KEY, "http.host")


@dataclass(frozen=True, slots=True)
class BoundSocket:
    """A listening socket. `notice` tells the operator about an unexpected port; it may be empty."""

    socket: socket.socket
    host: str
    port: int
    notice: str = ""

    @property
    def address(self) -> str:
        """The URL for a client on this machine; for a socket on every address, that of the loopback."""
        return f"http://{_bracketed(_LOOPBACK.get(self.host, self.host))}:{self.port}"


def bind(settings: HttpSettings) -> BoundSocket:
    """Return a listening socket as the settings ask for it. Raises `ConfigError`, which says what to do."""
    family, host = _resolve(settings.host)
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback and not settings.hosts:
        raise ConfigError(
            f"http.host is {settings.host}, which other machines can reach, but http.hosts is empty.",
            'Name what clients will call it, such as http.hosts = ["gateway.lan:8765"], or use 127.0.0.1.',
            action=_OTHER_HOST,
        )
    if settings.port is not None:
        taken = _listen(family, host, settings.port)
        if taken is None:
            raise ConfigError(
                f"Port {settings.port} on {host} is in use by {find_listener(settings.port)}.",
                "Stop that process, or take any free port: `talaria config set http.port 0` at every start, "
                "`talaria serve --port 0` at this one.",
            )
        return BoundSocket(taken, host, taken.getsockname()[1])
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS):
        if port != _MODEL_SERVER_PORT and (taken := _listen(family, host, port)) is not None:
            notice = f"port {DEFAULT_PORT} is in use, listening on {port} instead"
            return BoundSocket(taken, host, port, notice if port != DEFAULT_PORT else "")
    raise ConfigError(
        f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + _TRIED_PORTS - 1} is free on {host}.",
        "`talaria serve --port 0` takes any free one.",
    )


def allowed_hosts(settings: HttpSettings, bound: BoundSocket) -> frozenset[str]:
    """Return the hosts, with ports, that are let in: this machine's names for itself, and `http.hosts`."""
    names = {*_LOCAL_NAMES} if bound.host in _LOOPBACK else {*_LOCAL_NAMES, _bracketed(bound.host)}
    return frozenset({f"{name}:{bound.port}" for name in names} | {host.lower() for host in settings.hosts})


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"http.host is {host!r}, which is no address of this machine: {_reason(error)}.",
            'Use "127.0.0.1", or "0.0.0.0" together with http.hosts.',
            action=_OTHER_HOST,
        ) from error
    family, _, _, _, address = found[0]
    return family, str(address[0])


def _listen(family: socket.AddressFamily, host: str, port: int) -> socket.socket | None:
    """Return a socket that listens already, so that no other process can take the port before `start`.

    Returns None if the port is in use. Raises `ConfigError` for an address that cannot be used.
    """
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these. asyncio turns Nagle's algorithm off only for sockets that name
        # their protocol; with it the second write of a response waits for a delayed acknowledgement.
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        taken.bind((host, port))
        taken.listen(_BACKLOG)
        taken.setblocking(False)
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {_reason(error)}.",
            "Set http.host and http.port to an address that this machine may use.",
        ) from error
    return taken


def find_listener(port: int, proc: Path = Path("/proc")) -> str:
    """Return the process that listens on a port, in words; `another process` if this system does not show it.

    `proc` is the folder of the system's processes.
    """
    sockets = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = (line.split() for line in (proc / "net" / name).read_text().splitlines()[1:])
            sockets |= {
                f"socket:[{fields[9]}]"
                for fields in lines
                if fields[3] == _LISTENS and fields[1].endswith(f":{port:04X}")
            }
    for link in proc.glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if str(link.readlink()) in sockets:
                folder = link.parent.parent
                is_ours = b"talaria" in (folder / "cmdline").read_bytes()  # which may hold secrets
                what = "another Talaria" if is_ours else clean_line((folder / "comm").read_text(), 40)
                return f"{what} (process {folder.name})"
    return "another process"


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def share_descriptors(limit: int) -> tuple[int, int]:
    """Divide the descriptors that this process may open. Return the backlog of the listening socket, and how
    many connections there may be.

    The loop accepts a whole backlog before any connection can be refused, so the backlog counts too. A
    quarter is kept for the database, for calls to models and platforms, and for child processes.
    """
    backlog = max(16, min(_BACKLOG, limit // 8))
    return backlog, max(16, limit - max(64, min(1024, limit // 4)) - backlog)


# -- serving ----------------------------------------------------------------------------------------------


class HttpServer:
    """Serves `app` on a bound socket. It installs no signal handlers and does not own the event loop."""

    def __init__(self, app: AsgiApp, bound: BoundSocket, limits: Limits | None = None) -> None:
        self._bound = bound
        self._backlog, room = share_descriptors(descriptor_limit())
        self._connections = ClientConnections(limits or Limits(), room)
        self._config = Config(
            app,
            http=ClientConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._date_timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return self._bound.address

    @property
    def notice(self) -> str:
        """A text for the operator about an unexpected port, or an empty one."""
        return self._bound.notice

    async def start(self) -> None:
        self._config.load()
        self._set_date()
        self._connections.start()
        if self._connections.most < (wanted := self._connections.limits.now.connections):
            _log.warning(
                "limits.connections is %d, but the system lets this process open %d files: %d connections "
                "are let in. Raise the hard limit (`ulimit -Hn`, or LimitNOFILE= in the service's unit).",
                wanted,
                descriptor_limit(),
                self._connections.most,
            )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self._config, self._state, self._connections),
            sock=self._bound.socket,
            backlog=self._backlog,
        )

    async def stop(self, grace: float) -> None:
        """Accept no more connections and close idle ones. Responses under way get `grace` seconds, then they
        are cut."""
        if self._server is None:
            self._bound.socket.close()
            return
        server, self._server = self._server, None
        server.close()
        connections = [each for each in self._state.connections if isinstance(each, ClientConnection)]
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
        self._connections.stop()
        if self._date_timer is not None:
            self._date_timer.cancel()

    def _set_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._date_timer = asyncio.get_running_loop().call_later(1.0, self._set_date)


# -- waiting for room on the disk -------------------------------------------------------------------------


@asynccontextmanager
async def answer_while_waiting(settings: HttpSettings) -> AsyncIterator[None]:
    """Serve a gateway that waits for room on its disk: answer health checks while the context is open, and
    refuse everything else. Raises `ConfigError` if the address cannot be used."""
    server = HttpServer(_answer, bind(settings))
    await server.start()
    try:
        yield
    finally:
        await server.stop(_STOP_SECONDS)


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, send)
    match request.path:
        case "/healthz":
            response = json_response(HealthView(True, GatewayPhase.STARTING))
        case "/readyz":
            response = json_response(ReadyView(False, GatewayPhase.STARTING, 0.0, ("store",)), 503)
        case _:
            response = error_response(DISK_FULL)
    await response.send(request)
    request.end()
