"""The two ways to a server, as the SDK's streams: the pipes of a sandboxed process, and streamable HTTP.

Both bound what they read. The SDK's own transports hold a message of any length in memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter

from talaria.core.errors import TalariaError
from talaria.core.tasks import stop
from talaria.tools.mcp.intake import MAX_MESSAGE_BYTES, Throttle, TooLong, split_lines
from talaria.tools.mcp.texts import clean_line
from talaria.workspace.sandbox.process import Output, SandboxedProcess, Stream

_KEPT_ERRORS = 8 << 10
_REFUSED = 400  # and above: statuses of refusals
_TELLING = re.compile(r"(?:\w+(?:Error|Exception)|[Ee]rror|npm error|fatal)\b.*:? ")
_MOST_LINES = 3
_GOING_SECONDS = 1.0  # that a server has to end by itself once its input is closed


class LinkEnd:
    """Knows when the way to a server is gone, and why."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.why = ""

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

    def __init__(self, inner: httpx2.AsyncByteStream, throttle: Throttle, most: int | None) -> None:
        self._inner = inner
        self._throttle = throttle
        self._most = most

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

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Reads bounded bodies. Notes why a request failed, which the SDK does not tell; a request that could not
    be made is one that was refused, because an exception would end all other calls."""

    def __init__(self, ending: LinkEnd) -> None:
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
            self._ending.why = f"A request failed ({type(error).__name__})."
            return httpx2.Response(502)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            self._ending.why = "It sends compressed answers, which were not asked for."
            return httpx2.Response(502)
        if response.status_code >= _REFUSED and request.method == "POST":
            self._ending.why = _refusal(response.status_code)
        is_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        body = response.stream
        assert isinstance(body, httpx2.AsyncByteStream)
        response.stream = _BoundedBody(body, self._throttle, None if is_stream else MAX_MESSAGE_BYTES)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def _refusal(status: int) -> str:
    match status:
        case 401 | 403:
            return f"It does not accept the key (status {status})."
        case 404:
            return "There is no MCP server at this address (status 404)."
    return f"It answers with the status {status}."


@asynccontextmanager
async def open_http(
    url: str, headers: Mapping[str, str], timeout_seconds: float, ending: LinkEnd
) -> AsyncIterator[TransportStreams]:
    """Speak with a server at an address. `ending` is told if the server cannot be reached any more."""
    timeout = httpx2.Timeout(timeout_seconds, connect=10.0)
    try:
        async with (
            httpx2.AsyncClient(
                headers=dict(headers), timeout=timeout, transport=_BoundedTransport(ending)
            ) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            yield streams
    finally:
        ending.end(ending.why or "The connection has ended.")
