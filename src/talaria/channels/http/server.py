"""The socket on which the API listens, and uvicorn's HTTP protocol on it, inside the running event loop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from talaria.channels.http.request import AsgiApp
from talaria.channels.http.response import STATUS, error_body
from talaria.channels.http.settings import DEFAULT_PORT, HttpSettings
from talaria.core.errors import ConfigError, ErrorInfo

_BACKLOG: Final = 2048
_IDLE_SECONDS: Final = 75  # how long an unused connection stays open
_TRIED_PORTS: Final = 50
_MODEL_SERVER_PORT: Final = 8766  # the scripted model's default
_LOCAL_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - how a client calls the address
_MAX_HEAD: Final = 64 << 10  # bytes of request line and headers
_HEAD_SECONDS: Final = 30.0  # from the first byte of a head to its last
_NOT_HTTP: Final = ErrorInfo("bad_request", "This is not valid HTTP.", "Speak HTTP/1.1 to this port.")
_HEAD_TOO_LARGE: Final = ErrorInfo(
    "head_too_large",
    "The request line and headers are larger than 64 KiB.",
    "Send what is large in the body.",
)


# -- binding ----------------------------------------------------------------------------------------------


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
        )
    if settings.port is not None:
        taken = _listen(family, host, settings.port)
        if taken is None:
            raise ConfigError(
                f"Port {settings.port} on {host} is in use by another process.",
                "Stop that process, or name another port with http.port (0 takes any free one).",
            )
        return BoundSocket(taken, host, taken.getsockname()[1])
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS):
        if port != _MODEL_SERVER_PORT and (taken := _listen(family, host, port)) is not None:
            notice = f"port {DEFAULT_PORT} is in use, listening on {port} instead"
            return BoundSocket(taken, host, port, notice if port != DEFAULT_PORT else "")
    raise ConfigError(
        f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + _TRIED_PORTS - 1} is free on {host}.",
        "Set http.port = 0 to take any free one.",
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


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# -- serving ----------------------------------------------------------------------------------------------


class HttpServer:
    """Serves `app` on a bound socket. It installs no signal handlers and does not own the event loop."""

    def __init__(self, app: AsgiApp, bound: BoundSocket) -> None:
        self._bound = bound
        self._config = Config(
            app,
            http=_Connection,
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
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._config, self._state), sock=self._bound.socket, backlog=_BACKLOG
        )

    async def stop(self, grace: float) -> None:
        """Accept no more connections and close idle ones. Responses under way get `grace` seconds, then they
        are cut."""
        if self._server is None:
            self._bound.socket.close()
            return
        server, self._server = self._server, None
        server.close()
        connections = [each for each in self._state.connections if isinstance(each, _Connection)]
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
        if self._date_timer is not None:
            self._date_timer.cancel()

    def _set_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._date_timer = asyncio.get_running_loop().call_later(1.0, self._set_date)


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol with bounds on a client that has not sent a whole request yet.

    The head of a request is bounded in size and time, and a silent connection is closed like an idle one.
    Almost every head comes in one piece and costs two attributes. `lost` is done when the connection is
    closed and everything that was written has left or never will.
    """

    def __init__(self, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self._head_bytes = 0
        self._is_in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self.loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NOT_HTTP)

    def _end_head(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ErrorInfo) -> None:
        self._end_head()
        status, body = HTTPStatus(STATUS[error.type]), error_body(error)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), body)
        )
        self.transport.close()
