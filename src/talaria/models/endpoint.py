"""The endpoint of one provider: its HTTP session and its calls."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp.payload import Payload
from yarl import URL

from talaria.core.errors import ModelError
from talaria.core.messages import TokenUsage
from talaria.core.program import this_version
from talaria.core.redaction import ApiAddress, Redactor, Secret
from talaria.core.slots import SLICE_SECONDS
from talaria.core.specs import CallCut, Completion, ModelCall, ModelDelta
from talaria.models.answer_budget import SLICE_BYTES, AnswerBudget, AnswerMemory
from talaria.models.failures import ProviderErrors
from talaria.models.limiter import CallLimiter
from talaria.models.settings import ProviderSettings
from talaria.models.wire import AnswerDecoder, Wire, clamp_usage
from talaria.observe.metrics import EndpointReading

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

_log = logging.getLogger("talaria.models")

# Short reads are measured once in so many.
_VERSION = re.compile(r"/v\d+/?$")  # at the end of an address
SAMPLE = 16
# How long a complete answer waits for the end of its HTTP message, so that the connection can be reused.
TRAILER_SECONDS = 0.25
ERROR_SECONDS = 10.0
MAX_ERROR_BYTES = 64 << 10
STEP_BYTES = 256 << 10
LONG_ANSWER_BYTES = 256 << 10
LIST_SECONDS = 15.0
MAX_LIST_BYTES = 4 << 20
MAX_VECTOR_BYTES = 64 << 20


class Endpoint:
    """Calls one provider's models over one pool of connections; see the `Model` port.

    The session is opened by the first call and kept until `close`. A call holds a permit of the limiter while
    it runs. A cancelled or failed call closes its connection before it gives the permit back.
    """

    def __init__(
        self,
        provider: str,
        settings: ProviderSettings,
        wire: Wire,
        limiter: CallLimiter | None = None,
        memory: AnswerMemory | None = None,
    ) -> None:
        """The key is `settings.api_key`; a duration of zero means no limit. `memory`, with the limits of
        answers, is shared by all endpoints of a process."""
        self._provider = provider
        self._settings = settings
        self._wire = wire
        self._url = URL(settings.address.target(wire.path))
        self._list_url = URL(settings.address.target(wire.list_path))
        name = f"providers.{provider}"
        key = Secret(settings.api_key_env or f"{name}.api_key", settings.api_key)
        self._redact = Redactor(
            [key, *(Secret(f"{name}.base_url", each) for each in settings.address.secrets)]
        )
        self._limiter = limiter or CallLimiter()
        self._memory = memory or AnswerMemory()
        self._has_lied = False  # about its usage
        self._session: aiohttp.ClientSession | None = None
        self._has_answered = False  # there may be idle connections
        self._closed = False

    @property
    def wire(self) -> Wire:
        return self._wire

    @property
    def max_retries(self) -> int:
        return self._settings.max_retries

    @property
    def retry_within(self) -> float:
        """A further try gets as long as the first one would have, so `first_token` may be set higher."""
        first_token = self._settings.first_token.total_seconds()
        return max(self._settings.retry_within.total_seconds(), first_token or math.inf)

    @property
    def is_resting(self) -> bool:
        return self._limiter.is_resting

    def reading(self) -> EndpointReading:
        return self._limiter.reading()

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        """Make one call. Raises `ModelError`, also after `sink` has got a part of the answer."""
        errors = ProviderErrors(self._provider, call.model, self._redact)
        async with self._limiter.call(call.session_id, errors, gives_way=call.gives_way) as started:
            budget = AnswerBudget(errors, self._memory)
            try:
                return await self._call(call, sink, errors, budget, started)
            except ModelError as error:
                # The frames of the decoder hold bytes of the answer for as long as the traceback lives.
                error.__context__ = error.__cause__
                raise error.with_traceback(None) from error.__cause__
            finally:
                budget.close()

    async def list_models(self) -> bytes:
        """Return the provider's list of models. It needs no permit, because no turn waits for it.

        Raises `ModelError`, also if the response takes too long or is too large.
        """
        return await self._fetch(self._list_url)

    async def ask_server(self, path: str, body: bytes | None = None) -> bytes:
        """Return the answer of a path of the server beside its API, such as /props; with a body, to a POST.
        Raises what `list_models` raises."""
        url = URL(self._settings.address.target(""))
        return await self._fetch(url.with_path(_VERSION.sub("", url.path) + path), body)

    async def embed(self, model: str, body: bytes) -> bytes:
        """Return the provider's answer to a request for embeddings, of which nothing is read. Raises
        `ModelError`."""
        errors = ProviderErrors(self._provider, model, self._redact)
        url = URL(self._settings.address.target("/embeddings"))
        async with self._limiter.call("", errors) as started:
            answer = await self._fetch(url, body, errors, MAX_VECTOR_BYTES)
            started()
            return answer

    async def _fetch(
        self,
        url: URL,
        body: bytes | None = None,
        errors: ProviderErrors | None = None,
        most: int = MAX_LIST_BYTES,
    ) -> bytes:
        """Send a request and return the body of the answer. With `errors`, the answer to a failed request is
        read too, and the time limit is that of a call."""
        seconds = LIST_SECONDS if errors is None else self._settings.timeout.total_seconds() or None
        is_call, errors = errors is not None, errors or ProviderErrors(self._provider, "", self._redact)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(seconds):
                method = "GET" if body is None else "POST"
                sent = None if body is None else SplicedBody([body])
                response = await self._open().request(method, url, data=sent, allow_redirects=False)
                if response.status // 100 != 2:
                    said = await _read_error(response) if is_call else b""
                    raise errors.from_status(response.status, response.headers, said)
                read = bytearray()
                while data := await response.content.readany():
                    read += data
                    if len(read) > most:
                        raise errors.malformed(f"an answer of more than {most >> 20} MiB")
                return bytes(read)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._classify(error, errors, has_response=response is not None) from error
        finally:
            if response is not None:
                response.close()

    async def close(self) -> None:
        """Close the session. Calls in flight lose their connections; later calls are refused."""
        self._closed = True
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _call(
        self,
        call: ModelCall,
        sink: Callable[[ModelDelta], None],
        errors: ProviderErrors,
        budget: AnswerBudget,
        started: Callable[[], None],
    ) -> Completion:
        answer = self._wire.decoder(call.model, errors, budget)
        answer.tells_parts = call.tells_parts
        pieces = self._wire.body(call)
        body = SplicedBody(pieces)
        try:
            await self._exchange(body, answer, sink, started, call.patience)
            if budget.received > LONG_ANSWER_BYTES:
                async with budget.share:
                    completion = _end(answer, sink)
            else:
                completion = _end(answer, sink)
        except BaseException:
            if body.is_sent:
                sink(CallCut(answer.output_bytes()))
            answer.drop()
            raise
        usage = clamp_usage(completion.usage, pieces, body.size or 0, budget.received)
        if usage is not completion.usage:
            self._note_lie(completion.usage, usage, call.model)
            completion = msgspec.structs.replace(completion, usage=usage)
        return completion

    def _note_lie(self, told: TokenUsage, possible: TokenUsage, model: str) -> None:
        """Log token counts that cannot be true, once for this endpoint. Some providers count reasoning beside
        the output and not within it, which is no lie."""
        is_lie = (told.input, told.output) != (possible.input, possible.output)
        if is_lie and not self._has_lied:
            self._has_lied = True
            _log.warning(
                "%s (model %.100s) reports impossible token counts: %d in, %d out; %d in, %d out are counted",
                *(self._provider, model, told.input, told.output, possible.input, possible.output),
            )

    async def _exchange(
        self,
        body: SplicedBody,
        answer: AnswerDecoder,
        sink: Callable[[ModelDelta], None],
        started: Callable[[], None],
        patience: float | None,
    ) -> None:
        errors = answer.errors
        response: aiohttp.ClientResponse | None = None
        first_token = self._settings.first_token.total_seconds()
        is_retry_late = patience is not None and patience < (first_token or math.inf)
        if patience is not None and is_retry_late:
            first_token = patience
        limit = asyncio.timeout(first_token or None)
        try:
            async with limit:
                response = await self._post(body)
                if response.status // 100 != 2:
                    raise errors.from_status(response.status, response.headers, await _read_error(response))
                await self._read(response, answer, sink, limit, started)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if not answer.is_complete:
                if limit.expired():
                    if answer.has_started:
                        raise errors.stalled(self._settings.silence.total_seconds()) from error
                    raise errors.no_first_token(first_token, is_retry=is_retry_late) from error
                raise self._classify(error, errors, has_response=response is not None) from error
        finally:
            # A connection whose answer was read to its end has been given back already.
            if response is None or not response.content.is_eof():
                body.abort()
            if response is not None:
                response.close()

    async def _read(
        self,
        response: aiohttp.ClientResponse,
        answer: AnswerDecoder,
        sink: Callable[[ModelDelta], None],
        limit: asyncio.Timeout,
        started: Callable[[], None],
    ) -> None:
        """Feed the response to the decoder. `limit` is the time for the first token, then for the next piece.

        The limit is moved only now and then, and a little too far: moving it for each piece costs more than
        reading the piece.
        """
        content, budget, now = response.content, answer.budget, asyncio.get_running_loop().time
        silence = self._settings.silence.total_seconds()
        slack = min(5.0, silence / 8)
        has_started, due, reads = False, 0.0, 0
        while data := await content.readany():  # all that has arrived: it waits before the next read
            reads += 1
            if len(data) > SLICE_BYTES:
                await _feed_slices(answer, data, sink)
            elif reads % SAMPLE:
                for delta in answer.feed(data):
                    sink(delta)
            else:
                began = thread_time()
                for delta in answer.feed(data):
                    sink(delta)
                budget.cpu += SAMPLE * (thread_time() - began)
            if answer.is_closed:
                break
            if not has_started and answer.has_started:
                has_started = True
                started()
            if has_started and (at := now()) >= due:
                limit.reschedule(at + silence + slack if silence else None)
                due = at + slack
        if not content.is_eof():
            async with asyncio.timeout(TRAILER_SECONDS):
                while await content.readany():
                    pass

    async def _post(self, body: SplicedBody) -> aiohttp.ClientResponse:
        """Send the request; once more if the server may have closed an idle connection just before."""
        session = self._open()
        try:
            response = await session.post(self._url, data=body, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not self._has_answered or isinstance(error, aiohttp.ClientConnectorError):
                raise
            response = await session.post(self._url, data=body, allow_redirects=False)
        self._has_answered = True
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
                "User-Agent": f"talaria/{this_version()}",
                **self._wire.headers(settings.api_key),
            }
            if settings.address.authorization is not None:
                headers["Authorization"] = settings.address.authorization
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

    def _classify(self, error: Exception, errors: ProviderErrors, *, has_response: bool) -> Exception:
        url = str(ApiAddress(str(self._url)))
        match error:
            case aiohttp.ConnectionTimeoutError():
                return errors.connect_timed_out(url, self._settings.connect_timeout.total_seconds())
            case TimeoutError():
                return errors.timed_out(self._settings.timeout.total_seconds())
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
                return errors.untrusted(url, str(error))
            case aiohttp.ClientConnectorError(os_error=os_error):
                return errors.unreachable(url, _os_reason(os_error))
            case aiohttp.ClientResponseError(message=message):
                return errors.malformed(f"no valid HTTP ({message})")
        return errors.cut_off() if has_response else errors.disconnected()


def _end(answer: AnswerDecoder, sink: Callable[[ModelDelta], None]) -> Completion:
    for delta in answer.end():
        sink(delta)
    return answer.completion()


async def _feed_slices(answer: AnswerDecoder, data: bytes, sink: Callable[[ModelDelta], None]) -> None:
    """Feed a long read to the decoder, in slices that share the loop with the long reads of all answers."""
    start, budget = 0, answer.budget
    while start < len(data) and not answer.is_closed:
        async with budget.share:
            began, worked, spent = perf_counter(), thread_time(), 0.0
            while spent < SLICE_SECONDS and start < len(data) and not answer.is_closed:
                for delta in answer.feed(data[start : start + SLICE_BYTES]):
                    sink(delta)
                start += SLICE_BYTES
                spent = perf_counter() - began
            budget.cpu += thread_time() - worked


def _os_reason(error: OSError) -> str:
    """Return the system's words for an error. Errors of the resolver have negative numbers and own words."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


async def _read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return as much of an error's body as arrives; the status alone is enough."""
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

    A short body goes out in one write with the headers. A long one is handed to the transport in steps, each
    as soon as the one before is nearly sent, so that the transport keeps no copy of the rest. `is_sent` tells
    whether any of it may have been sent.
    """

    _default_content_type = "application/json"
    _autoclose = True

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._size = sum(map(len, pieces))
        self._transport: asyncio.Transport | None = None
        self.is_sent = False

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    def abort(self) -> None:
        """Drop the connection with the unsent rest of the body. Closing it would still send that rest."""
        if self._transport is not None:
            self._transport.abort()

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._transport = getattr(writer, "transport", None)
        self.is_sent = True
        is_short = self._size is not None and self._size <= STEP_BYTES
        for step in [b"".join(self._pieces)] if is_short else _steps(self._pieces):
            await writer.write(step)


def _steps(pieces: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """Yield all bytes in order: short pieces joined, long ones in slices that copy nothing."""
    short: list[bytes] = []
    size = 0
    for piece in pieces:
        if len(piece) < STEP_BYTES:
            short.append(piece)
            size += len(piece)
            if size < STEP_BYTES:
                continue
        if short:
            yield b"".join(short)
            short.clear()
            size = 0
        if len(piece) >= STEP_BYTES:
            view = memoryview(piece)
            yield from (view[at : at + STEP_BYTES] for at in range(0, len(piece), STEP_BYTES))
    if short:
        yield b"".join(short)
