"""One provider's endpoint: its HTTP session, its permits, and the calls that go through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp.payload import Payload
from yarl import URL

from talaria import __version__
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.redaction import Redactor
from talaria.models.faults import Faults
from talaria.models.wire import Answer, Wire

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

CONNECT_SECONDS = 10.0
# How long a finished answer waits for the end of its HTTP message, which makes the connection reusable.
TRAILER_SECONDS = 0.25
ERROR_SECONDS = 10.0
MAX_ERROR_BYTES = 64 << 10
SHORT_BODY_BYTES = 64 << 10


class EndpointSettings(msgspec.Struct, frozen=True):
    """Where a provider is and how patient to be; zero durations mean no limit."""

    provider: str
    base_url: str
    key: str = ""
    timeout: timedelta = timedelta(seconds=600)
    silence: timedelta = timedelta(seconds=120)
    max_concurrency: int = 256

    def __repr__(self) -> str:
        return f"EndpointSettings({self.provider!r}, {self.base_url!r})"


class Endpoint:
    """Calls one provider's models over one pool of connections; see the `Model` port.

    The session is opened by the first call and kept until `close`. A permit is held only while a call runs.
    A cancelled or failed call closes its connection before it lets go.
    """

    def __init__(self, settings: EndpointSettings, wire: Wire) -> None:
        self._settings = settings
        self._wire = wire
        self._url = URL(settings.base_url.rstrip("/") + wire.path)
        self._redact = Redactor([settings.key] if settings.key else [])
        self._permits = asyncio.Semaphore(settings.max_concurrency)
        self._session: aiohttp.ClientSession | None = None
        self._busy = 0
        self._answered = False  # so there may be kept connections
        self._closed = False

    @property
    def wire(self) -> Wire:
        return self._wire

    @property
    def busy(self) -> int:
        """Calls that hold a permit now."""
        return self._busy

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        """Raises `ModelError`; after the first delta too, so what was streamed may not be the whole."""
        faults = Faults(self._settings.provider, call.model, self._redact)
        async with self._permits:
            self._busy += 1
            try:
                return await self._call(call, sink, faults)
            finally:
                self._busy -= 1

    async def close(self) -> None:
        """Calls in flight lose their connections; later ones are refused."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _call(self, call: ModelCall, sink: Callable[[ModelDelta], None], faults: Faults) -> Completion:
        answer = self._wire.answer(call.model, faults)
        body = SplicedBody(self._wire.body(call))
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._post(body)
            if response.status // 100 != 2:
                raise faults.from_status(response.status, response.headers, await _read_error(response))
            await _read(response, answer, sink)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not answer.is_whole:
                raise self._classify(error, faults, started=response is not None) from error
        finally:
            # A connection whose answer was read to its end has been given back already.
            if response is None or not response.content.is_eof():
                body.abort()
            if response is not None:
                response.close()
        for delta in answer.end():
            sink(delta)
        return answer.completion()

    async def _post(self, body: SplicedBody) -> aiohttp.ClientResponse:
        """A server may close a kept connection in the moment we take it. Where that can be what happened, the
        request goes out once more."""
        session = self._open()
        try:
            response = await session.post(self._url, data=body, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not self._answered or isinstance(error, aiohttp.ClientConnectorError):
                raise
            response = await session.post(self._url, data=body, allow_redirects=False)
        self._answered = True
        return response

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            if self._closed:
                raise aiohttp.ClientConnectionError("the endpoint is closed")
            settings = self._settings
            headers = {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"talaria/{__version__}",
                **self._wire.headers(settings.key),
            }
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=settings.timeout.total_seconds() or None,
                    sock_connect=CONNECT_SECONDS,
                    sock_read=settings.silence.total_seconds() or None,
                ),
                trust_env=False,
            )
        return self._session

    def _classify(self, error: Exception, faults: Faults, *, started: bool) -> Exception:
        if isinstance(error, TimeoutError):
            return self._late(error, faults)
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return faults.untrusted(str(self._url), str(error))
        if isinstance(error, aiohttp.ClientConnectorError):
            return faults.unreachable(str(self._url), error.os_error.strerror or str(error))
        if isinstance(error, aiohttp.ClientResponseError):
            return faults.malformed(f"no valid HTTP ({error.message})")
        return faults.cut_off() if started else faults.disconnected()

    def _late(self, error: TimeoutError, faults: Faults) -> Exception:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return faults.unreachable(str(self._url), f"no connection within {CONNECT_SECONDS:g} seconds")
        if isinstance(error, aiohttp.SocketTimeoutError):
            return faults.silent(self._settings.silence.total_seconds())
        return faults.too_slow(self._settings.timeout.total_seconds())


async def _read(response: aiohttp.ClientResponse, answer: Answer, sink: Callable[[ModelDelta], None]) -> None:
    content = response.content
    while data := await content.readany():
        for delta in answer.feed(data):
            sink(delta)
        if answer.is_closed:
            break
    if not content.is_eof():
        async with asyncio.timeout(TRAILER_SECONDS):
            while await content.readany():
                pass


async def _read_error(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error's body as comes; the status alone is enough to go on with."""
    pieces = bytearray()
    try:
        async with asyncio.timeout(ERROR_SECONDS):
            while len(pieces) < MAX_ERROR_BYTES and (data := await response.content.readany()):
                pieces += data
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    return bytes(pieces)


class SplicedBody(Payload):
    """A request body of known length, written from its pieces.

    A short one goes out in one write with the headers. A long one is handed to the transport piece by piece,
    which sends what the socket takes and keeps a reference to the rest. `abort` drops that rest; closing the
    connection would still send it.
    """

    _default_content_type = "application/json"
    _autoclose = True

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        self._transport: asyncio.Transport | None = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    def abort(self) -> None:
        """Drop the connection that carries this body, with whatever of it was not sent."""
        if self._transport is not None:
            self._transport.abort()

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._transport = getattr(writer, "transport", None)
        is_short = self._size is not None and self._size <= SHORT_BODY_BYTES
        for piece in [b"".join(self._pieces)] if is_short else self._pieces:
            await writer.write(piece)
