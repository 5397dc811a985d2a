"""The ways to a server, as the SDK's streams: the pipes of a sandboxed process, streamable HTTP, and the
older transport with server-sent events.

All bound what they read. The SDK's own transports hold a message of any length in memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter

from talaria.core.errors import TalariaError, ToolError
from talaria.core.limits import has_more_values
from talaria.core.tasks import stop
from talaria.mcp.part import McpServer
from talaria.mcp.texts import clean_line
from talaria.workspace.sandbox.process import Output, SandboxedProcess, Stream

# -- bounds on what servers send: the bytes and values of a message, and the rate of messages -------------
# A message that is too long is not held in memory. The request that it answers, if its id can be found,
# gets an error instead. A server that sends faster than the rate has to wait, as its pipe or its connection
# is not read meanwhile: that costs its own calls only.


MAX_MESSAGE_BYTES = 8 << 20
MAX_VALUES = 100_000
MESSAGES_PER_SECOND = 200.0
BYTES_PER_SECOND = float(8 << 20)
_BURST_MESSAGES = 1000.0
_BURST_BYTES = float(32 << 20)
_DROPPED_SHARE = 1 / 8  # of the bytes that are not kept, which cost less
_ENDS = 4096  # bytes at both ends of a long message, where its id is looked for
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")')


class Throttle:
    """A bucket of messages and bytes that refills with time."""

    def __init__(self, messages: float = MESSAGES_PER_SECOND, size: float = BYTES_PER_SECOND) -> None:
        self._rates = (messages, size)
        self._bursts = (max(messages, _BURST_MESSAGES), max(size, _BURST_BYTES))
        self._left = list(self._bursts)
        self._at = asyncio.get_running_loop().time()

    async def take(self, messages: float, size: float) -> None:
        """Take so much, and wait until the bucket is not empty."""
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        wait = 0.0
        for index, taken in enumerate((messages, size)):
            rate = self._rates[index]
            self._left[index] = min(self._bursts[index], self._left[index] + passed * rate) - taken
            wait = max(wait, -self._left[index] / rate)
        if wait > 0:
            await asyncio.sleep(wait)


class TooLong:
    """A message that was dropped. `request_id` is the id of the request that it answers; None if that was not
    to be found."""

    def __init__(self, ends: bytes, why: str) -> None:
        self.why = why
        found = _ID.search(ends[:_ENDS]) or _ID.search(ends[-_ENDS:])
        told = found[1].decode() if found else None
        self.request_id = None if told is None else told.strip('"') if told[0] == '"' else int(told)


async def split_lines(
    pieces: AsyncIterator[bytes], throttle: Throttle, max_bytes: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[bytes | TooLong]:
    """Yield the lines of a stream that comes in pieces. Of a line that is too long only its ends are held."""
    line = bytearray()
    tail = b""
    dropped = 0
    async for piece in pieces:
        start = 0
        lines = 0
        while True:
            end = piece.find(b"\n", start)
            part = piece[start : len(piece) if end < 0 else end]
            if dropped or len(line) + len(part) > max_bytes:
                del line[_ENDS:]
                dropped += len(part)
                tail = (tail + part)[-_ENDS:]
            else:
                line += part
            if end < 0:
                break
            start, lines = end + 1, lines + 1
            if dropped:
                yield TooLong(bytes(line) + tail, f"it has more than {max_bytes >> 20} MiB")
            elif line.strip():
                yield checked(bytes(line))
            line, tail, dropped = bytearray(), b"", 0
            await throttle.take(1, 0)
        await throttle.take(0, len(piece) * (_DROPPED_SHARE if dropped else 1))


def checked(message: bytes) -> bytes | TooLong:
    """Return the message, unless decoding it would take too long."""
    if has_more_values(message, MAX_VALUES):
        return TooLong(message, f"it has more than {MAX_VALUES} values")
    return message


# -- the two ways to a server, as the SDK's streams -------------------------------------------------------


_KEPT_ERRORS = 8 << 10
_GRACE_SECONDS = 30.0  # beyond a call's time limit, until an answer over HTTP is given up
_SILENT_SECONDS = 3600.0  # after which a stream without a word is opened anew
_UNAUTHORIZED = 401
_REFUSED = 400  # and above: statuses of refusals
_TELLING = re.compile(r"(?:\w+(?:Error|Exception)|[Ee]rror|npm error|fatal)\b.*:? ")
_MOST_LINES = 3
_GOING_SECONDS = 1.0  # that a server has to end by itself once its input is closed


class LinkEnd:
    """Knows when the way to a server is gone, and why."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.why = ""

    def note(self, why: str) -> None:
        """Keep the reason why a request failed, of a link that goes on."""
        if not self.ended.is_set():
            self.why = why

    def end(self, why: str) -> None:
        if not self.ended.is_set():
            self.why = why
            self.ended.set()


@asynccontextmanager
async def open_pipes(process: SandboxedProcess, ending: LinkEnd) -> AsyncIterator[TransportStreams]:
    """Speak with a process by lines of JSON. Leaving closes its input and gives it a moment to end."""
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    errors = bytearray()
    tasks = [
        asyncio.create_task(_read(process, to_session, errors, ending), name="mcp output"),
        asyncio.create_task(_write(process, from_session, ending), name="mcp input"),
    ]
    try:
        yield from_server, to_server
    finally:
        try:
            await stop(tasks[1])  # before the pipe that it may wait for is closed
            process.close_input()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOING_SECONDS):
                    await process.ended()
        finally:  # also if the caller is cancelled again meanwhile
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()
            await stop(tasks[0])


async def _read(
    process: SandboxedProcess,
    to_session: MemoryObjectSendStream[SessionMessage | Exception],
    errors: bytearray,
    ending: LinkEnd,
) -> None:
    """Pass messages on until the output ends. What comes for nobody is read and dropped."""
    try:
        throttle = Throttle()
        async for line in split_lines(only_output(process.output(), errors, throttle), throttle):
            message = _decode(line)
            if message is not None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await to_session.send(message)
        try:
            code = str((await process.wait()).code)
        except TalariaError as error:
            code = str(error)
        said = _complaint(errors.decode(errors="replace"))
        ending.end(f"It ended with exit code {code}{f': {said}' if said else ''}.")
    finally:
        ending.end("It is being stopped.")
        to_session.close()


async def only_output(
    pieces: AsyncIterator[Output], errors: bytearray, throttle: Throttle
) -> AsyncIterator[bytes]:
    """Yield what is for the client, and keep the last of what a program writes to stderr. That is bounded in
    its rate as well: a program that complains without end must not keep the gateway busy."""
    async for piece in pieces:
        if piece.stream is Stream.OUT:
            yield piece.content
        else:
            errors += piece.content
            del errors[:-_KEPT_ERRORS]
            await throttle.take(0, len(piece.content))


def _complaint(errors: str) -> str:
    """Return the lines of a dying program that say why: programs end with a stack or with their version."""
    lines = errors.strip().splitlines()
    telling = [line.removeprefix("npm error ") for line in lines if _TELLING.match(line)]
    return clean_line(" ".join(telling[:_MOST_LINES] or lines[-1:]))


def _decode(line: bytes | TooLong) -> SessionMessage | None:
    """Return the message; None for what is no message, such as a line that a program prints by mistake."""
    if isinstance(line, TooLong):
        if line.request_id is None:
            return None
        error = ErrorData(code=INVALID_REQUEST, message=f"The answer is too large: {line.why}.")
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=line.request_id, error=error))
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


async def _write(
    process: SandboxedProcess, from_session: MemoryObjectReceiveStream[SessionMessage], ending: LinkEnd
) -> None:
    async with from_session:
        async for message in from_session:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await process.write(text.encode() + b"\n")
            except OSError:
                ending.end("It does not read its input any more.")
                return


# -- streamable HTTP ----------------------------------------------------------------------------------------


class _BoundedBody(httpx2.AsyncByteStream):
    """A body of which no more is read than its limit, nor faster than the rate."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        throttle: Throttle,
        most: int | None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` is called when the body is over."""
        self._inner = inner
        self._throttle = throttle
        self._most = most
        self._ended = ended

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        try:
            async for piece in self._inner:
                seen += len(piece)
                if self._most is not None and seen > self._most:
                    raise httpx2.StreamError(
                        f"The answer is too large: it has more than {self._most >> 20} MiB."
                    )
                await self._throttle.take(piece.count(b"\n"), len(piece))
                yield piece
        except httpx2.TransportError as error:  # it would end the other calls too
            raise httpx2.StreamError(f"The answer broke off ({type(error).__name__}).") from error
        finally:
            self._ended()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Reads bounded bodies. Notes why a request failed, which the SDK does not tell; a request that could not
    be made is one that was refused, because an exception would end all other calls.

    With `is_sse` all answers come on one stream. The link ends with that stream, and with a message that is
    refused.
    """

    def __init__(self, ending: LinkEnd, *, is_sse: bool = False) -> None:
        self._is_sse = is_sse
        self._inner = httpx2.AsyncHTTPTransport()
        self._throttle = Throttle()
        self._ending = ending

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"  # a small body must not grow in memory
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._ending.end(f"It cannot be reached ({clean_line(str(error)) or type(error).__name__}).")
            return httpx2.Response(502)
        except httpx2.TransportError as error:
            self._ending.note(f"A request failed ({type(error).__name__}).")
            return httpx2.Response(502)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self._ending.note("It sends compressed answers, which were not asked for.")
            return httpx2.Response(502)
        if response.status_code >= _REFUSED and self._is_sse:
            self._ending.end(_refusal(response.status_code))
        elif response.status_code >= _REFUSED and request.method == "POST":
            self._ending.note(_refusal(response.status_code))
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = response.stream
        assert isinstance(body, httpx2.AsyncByteStream)
        most = None if is_stream else MAX_MESSAGE_BYTES
        ended = self._stream_ended if is_stream and self._is_sse else lambda: None
        response.stream = _BoundedBody(body, self._throttle, most, ended)
        return response

    def _stream_ended(self) -> None:
        self._ending.end("Its stream of answers has ended.")

    async def aclose(self) -> None:
        await self._inner.aclose()


def _refusal(status: int) -> str:
    match status:
        case 401 | 403:
            return f"It does not accept the key (status {status})."
        case 404:
            return "There is no MCP server at this address (status 404)."
    return f"It answers with the status {status}."


class LoginAuth(httpx2.Auth):
    """Adds the token of a login to each request, and another one if the server refuses the first. Without a
    valid login the link ends, and the server refuses the request: an exception would end all other calls."""

    def __init__(self, token: Callable[[str], Awaitable[str]], ending: LinkEnd) -> None:
        """`token` returns a token that is not the given one."""
        self._find = token
        self._ending = ending

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if token := await self._token(""):
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == _UNAUTHORIZED and token and (other := await self._token(token)):
            request.headers["Authorization"] = f"Bearer {other}"
            yield request

    async def _token(self, refused: str) -> str:
        try:
            return await self._find(refused)
        except TalariaError as error:
            self._ending.end(f"{error.user_text} {error.hint}".strip())
            return ""


@asynccontextmanager
async def open_http(
    server: McpServer, url: str, headers: dict[str, str], ending: LinkEnd, auth: httpx2.Auth | None = None
) -> AsyncIterator[TransportStreams]:
    """Speak with a server at an address: by streamable HTTP, or by the older transport, which has one stream
    of events and a POST for each message. `ending` is told if the server cannot be reached any more. Raises
    `ToolError`."""
    is_sse = server.transport == "sse"

    def make_client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        transport = _BoundedTransport(ending, is_sse=is_sse)
        return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, transport=transport)

    timeout = httpx2.Timeout(server.timeout.total_seconds() + _GRACE_SECONDS, connect=10.0)
    try:
        if is_sse:
            async with sse_client(url, headers, 10.0, _SILENT_SECONDS, make_client, auth) as streams:
                yield streams
        else:
            async with (
                make_client(headers, timeout, auth) as client,
                streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as way,
            ):
                yield way
    except* httpx2.HTTPError as errors:
        raise ToolError(ending.why or clean_line(str(errors.exceptions[0]))) from errors
    finally:
        ending.end(ending.why or "The connection has ended.")
