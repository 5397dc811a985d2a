"""One provider's endpoint: its HTTP session, and the calls that go through its limiter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.payload import Payload
from yarl import URL

from talaria import __version__
from talaria.core.models import Completion, ModelCall, ModelDelta
from talaria.core.redaction import Redactor
from talaria.models.failures import ProviderErrors
from talaria.models.limiter import CallLimiter
from talaria.models.settings import ProviderSettings
from talaria.models.wire import AnswerDecoder, Wire
from talaria.observe.metrics import EndpointReading

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

# How long a finished answer waits for the end of its HTTP message, which makes the connection reusable.
TRAILER_SECONDS = 0.25
ERROR_SECONDS = 10.0
MAX_ERROR_BYTES = 64 << 10
SHORT_BODY_BYTES = 64 << 10
LIST_SECONDS = 15.0
MAX_LIST_BYTES = 8 << 20


class Endpoint:
    """Calls one provider's models over one pool of connections; see the `Model` port.

    The session is opened by the first call and kept until `close`. The limiter is passed for each call, and a
    permit held only while it runs. A cancelled or failed call closes its connection before it lets go.
    """

    def __init__(
        self, provider: str, settings: ProviderSettings, wire: Wire, limiter: CallLimiter | None = None
    ) -> None:
        """The key is that in `settings.api_key`; durations of zero mean no limit."""
        self._provider = provider
        self._settings = settings
        self._wire = wire
        self._url = URL(settings.base_url.rstrip("/") + wire.path)
        self._list_url = URL(settings.base_url.rstrip("/") + wire.list_path)
        self._redact = Redactor([settings.api_key] if settings.api_key else [])
        self._limiter = limiter or CallLimiter()
        self._session: aiohttp.ClientSession | None = None
        self._answered = False  # so there may be kept connections
        self._closed = False

    @property
    def wire(self) -> Wire:
        return self._wire

    @property
    def max_retries(self) -> int:
        return self._settings.max_retries

    @property
    def is_resting(self) -> bool:
        return self._limiter.is_resting

    def reading(self) -> EndpointReading:
        return self._limiter.reading()

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        """Raises `ModelError`; after the first delta too, so what was streamed may not be the whole."""
        errors = ProviderErrors(self._provider, call.model, self._redact)
        async with self._limiter.call(call.session_id, errors) as began:
            return await self._call(call, sink, errors, began)

    async def list_models(self) -> bytes:
        """What the provider says when asked for its models. Passes no limiter: no turn ever waits for it.

        Raises `ModelError`, also when it takes too long or is too much.
        """
        errors = ProviderErrors(self._provider, "", self._redact)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(LIST_SECONDS):
                response = await self._open().get(self._list_url, allow_redirects=False)
                if response.status // 100 != 2:
                    raise errors.from_status(response.status, response.headers, b"")
                body = bytearray()
                while data := await response.content.readany():
                    body += data
                    if len(body) > MAX_LIST_BYTES:
                        raise errors.malformed("a list of models that is too long")
                return bytes(body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._classify(error, errors, started=response is not None) from error
        finally:
            if response is not None:
                response.close()

    async def close(self) -> None:
        """Calls in flight lose their connections; later ones are refused."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _call(
        self,
        call: ModelCall,
        sink: Callable[[ModelDelta], None],
        errors: ProviderErrors,
        began: Callable[[], None],
    ) -> Completion:
        answer = self._wire.decoder(call.model, errors)
        body = SplicedBody(self._wire.body(call))
        response: aiohttp.ClientResponse | None = None
        limit = asyncio.timeout(self._settings.first_token.total_seconds() or None)
        try:
            async with limit:
                response = await self._post(body)
                if response.status // 100 != 2:
                    raise errors.from_status(response.status, response.headers, await _read_error(response))
                await self._read(response, answer, sink, limit, began)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not answer.is_complete:
                if limit.expired():
                    raise self._struck(answer, errors) from error
                raise self._classify(error, errors, started=response is not None) from error
        finally:
            # A connection whose answer was read to its end has been given back already.
            if response is None or not response.content.is_eof():
                body.abort()
            if response is not None:
                response.close()
        for delta in answer.end():
            sink(delta)
        return answer.completion()

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        answer: AnswerDecoder,
        sink: Callable[[ModelDelta], None],
        limit: asyncio.Timeout,
        began: Callable[[], None],
    ) -> None:
        """The limit is that for the first word until there is one, and from then on that for more. It is put
        off only now and then, and by a little too much: to do so for each piece costs more than reading."""
        content, now = response.content, asyncio.get_running_loop().time
        silence = self._settings.silence.total_seconds()
        slack = min(5.0, silence / 8)
        has_started, due = False, 0.0
        while data := await content.readany():
            for delta in answer.feed(data):
                sink(delta)
            if answer.is_closed:
                break
            if not has_started and answer.has_started:
                has_started = True
                began()
            if has_started and (at := now()) >= due:
                limit.reschedule(at + silence + slack if silence else None)
                due = at + slack
        if not content.is_eof():
            async with asyncio.timeout(TRAILER_SECONDS):
                while await content.readany():
                    pass

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
                **self._wire.headers(settings.api_key),
            }
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=settings.timeout.total_seconds() or None,
                    sock_connect=settings.connect_timeout.total_seconds() or None,
                ),
                trust_env=False,
            )
        return self._session

    def _classify(self, error: Exception, errors: ProviderErrors, *, started: bool) -> Exception:
        url = str(self._url)
        match error:
            case aiohttp.ConnectionTimeoutError():
                return errors.connect_timed_out(url, self._settings.connect_timeout.total_seconds())
            case TimeoutError():
                return errors.timed_out(self._settings.timeout.total_seconds())
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
                return errors.untrusted(url, str(error))
            case aiohttp.ClientConnectorError(os_error=os_error):
                return errors.unreachable(url, _plainly(os_error))
            case aiohttp.ClientResponseError(message=message):
                return errors.malformed(f"no valid HTTP ({message})")
        return errors.cut_off() if started else errors.disconnected()

    def _struck(self, answer: AnswerDecoder, errors: ProviderErrors) -> Exception:
        if answer.has_started:
            return errors.stalled(self._settings.silence.total_seconds())
        return errors.no_first_token(self._settings.first_token.total_seconds())


def _plainly(error: OSError) -> str:
    """The system's own words; a resolver's errors have negative numbers and words of their own."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


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
