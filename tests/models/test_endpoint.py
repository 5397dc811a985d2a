"""The endpoint against servers that misbehave, over real sockets."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest

from support.waiting import until
from talaria.core.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import Text, UserMessage
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.models.answer_budget import AnswerMemory
from talaria.models.endpoint import Endpoint
from talaria.models.limiter import CallLimiter
from talaria.models.openai_chat import OpenAIChat
from talaria.models.settings import ProviderSettings
from talaria.testing.model_server import ModelServer

KEY = "sk-very-secret-0123456789"
WIRE = OpenAIChat()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def call(text: str = "hello") -> ModelCall:
    return ModelCall("gpt-x", WIRE.render_prefix("Be kind.", []), [WIRE.encode(UserMessage((Text(text),)))])


def ignore(delta: ModelDelta) -> None:
    pass


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


class RawServer:
    """Plays a script on each connection, after reading one request, and waits for the client to leave."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.heads: list[bytes] = []
        self.served = 0
        self.gone = asyncio.Event()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, _ = await read_request(reader)
            self.heads.append(head)
            await self._script(reader, writer)
            self.served += 1
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.gone.set()


@asynccontextmanager
async def serving(script: Script, **settings: timedelta | int) -> AsyncIterator[tuple[RawServer, Endpoint]]:
    raw = RawServer(script)
    server = await asyncio.start_server(raw.handle, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    endpoint = Endpoint("acme", ProviderSettings(raw.url, api_key=KEY, **settings), WIRE)  # type: ignore[arg-type]
    try:
        yield raw, endpoint
    finally:
        await endpoint.close()
        if raw.heads:
            await raw.gone.wait()
        server.close()
        await server.wait_closed()


def says(*pieces: bytes, close: bool = True) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if close:
            writer.close()

    return script


def status(code: int, body: bytes, *headers: bytes) -> Script:
    lines = [b"HTTP/1.1 %d X" % code, b"Content-Length: %d" % len(body), *headers]
    return says(b"\r\n".join(lines) + b"\r\n\r\n" + body)


async def fail(script: Script, **settings: timedelta | int) -> ModelError:
    async with serving(script, **settings) as (_, endpoint):
        with pytest.raises(ModelError) as caught:
            await endpoint.complete(call(), ignore)
        assert endpoint.reading().busy == 0
        return caught.value


class TestRequests:
    async def test_the_key_travels_in_the_header_and_the_length_is_known(self) -> None:
        async with serving(says(OK + b"\r\n" + ANSWER + DONE)) as (server, endpoint):
            await endpoint.complete(call(), ignore)
        [head] = server.heads
        assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert f"Authorization: Bearer {KEY}\r\n".encode() in head
        assert b"Content-Type: application/json\r\n" in head
        assert b"Content-Length: " in head
        assert b"Transfer-Encoding" not in head
        assert b"Cookie" not in head

    async def test_a_connection_is_used_again(self) -> None:
        async with ModelServer() as server:
            endpoint = Endpoint("acme", ProviderSettings(server.base_url), WIRE)
            for _ in range(5):
                await endpoint.complete(call(), ignore)
            assert (server.requests, server.accepted) == (5, 1)
            await endpoint.close()

    async def test_cookies_are_not_kept(self) -> None:
        frame = OK + b"Set-Cookie: a=b; Path=/\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
        async with serving(says(frame + ANSWER)) as (server, endpoint):
            for _ in range(2):
                await endpoint.complete(call(), ignore)
        assert len(server.heads) == 2
        assert b"Cookie" not in server.heads[1]

    async def test_permits_bound_the_calls_at_once(self) -> None:
        async with ModelServer() as server:
            endpoint = Endpoint("acme", ProviderSettings(server.base_url), WIRE, CallLimiter(2))
            tasks = [asyncio.create_task(endpoint.complete(call("[[hang]]"), ignore)) for _ in range(3)]
            await server.until(lambda: server.requests == 2)
            assert endpoint.reading().busy == 2
            tasks[0].cancel()
            await server.until(lambda: server.requests == 3)
            assert endpoint.reading().busy == 2
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert endpoint.reading().busy == 0
            await endpoint.close()

    async def test_consecutive_bodies_share_their_bytes(self) -> None:
        async with ModelServer() as server:
            endpoint = Endpoint("acme", ProviderSettings(server.base_url), WIRE)
            prefix = WIRE.render_prefix("Be kind.", [])
            chunks: list[bytes] = []
            for n in range(4):
                chunks.append(WIRE.encode(UserMessage((Text(f"question {n}"),), f"day {n}")))
                completion = await endpoint.complete(ModelCall("m", prefix, chunks), ignore)
                chunks.append(WIRE.encode(completion.message))
            await endpoint.close()
        bodies = list(server.bodies)
        assert len(bodies) == 4
        for earlier, later in pairwise(bodies):
            assert later.startswith(earlier[: earlier.rindex(b"]")])


class TestAnswers:
    async def complete(self, *pieces: bytes, close: bool = True) -> Completion:
        async with serving(says(*pieces, close=close)) as (_, endpoint):
            return await endpoint.complete(call(), ignore)

    async def test_a_stream_that_ends_with_the_connection(self) -> None:
        assert (await self.complete(OK + b"\r\n", ANSWER, DONE)).message.text == "hi"

    async def test_a_plain_json_answer(self) -> None:
        body = json.dumps({"choices": [{"message": {"content": "plain"}, "finish_reason": "stop"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await self.complete(head + body)).message.text == "plain"

    async def test_a_server_that_keeps_the_line_open_after_done_is_not_waited_for(self) -> None:
        pieces = (
            OK + b"Transfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n" % (len(ANSWER + DONE), ANSWER + DONE),
        )
        assert (await self.complete(*pieces, close=False)).message.text == "hi"

    async def test_a_connection_lost_after_the_finish_reason_costs_nothing(self) -> None:
        pieces = (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n" % (len(ANSWER), ANSWER))
        assert (await self.complete(*pieces)).message.text == "hi"


class TestFailures:
    async def test_nobody_listens(self) -> None:
        async with ModelServer() as server:
            url = server.base_url
        endpoint = Endpoint("acme", ProviderSettings(url), WIRE)
        deltas: list[ModelDelta] = []
        with pytest.raises(
            ModelUnavailable,
            match=r"acme \(model gpt-x\) cannot be reached at http.*completions: Connection refused\. ",
        ) as caught:
            await endpoint.complete(call(), deltas.append)
        assert "Start its server" in caught.value.hint
        assert not deltas, "no byte of the request was sent"
        await endpoint.close()

    async def test_no_answer_at_all(self) -> None:
        error = await fail(says())
        assert type(error) is ModelUnavailable
        assert "without an answer" in error.user_text

    async def test_a_cut_in_the_middle_of_a_chunk(self) -> None:
        error = await fail(says(OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\ndata: {"))
        assert type(error) is ModelUnavailable
        assert "cut off" in error.user_text

    async def test_no_http(self) -> None:
        error = await fail(says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"))
        assert type(error) is ModelUnavailable
        assert "no valid HTTP" in error.user_text

    @pytest.mark.parametrize("head", [b"", OK + b"\r\n", OK + b"\r\n: still here\n\n"])
    async def test_silence_is_bounded(self, head: bytes) -> None:
        """Headers and signs of life are no word of the answer."""
        error = await fail(says(head, close=False), first_token=timedelta(milliseconds=50))
        assert type(error) is ModelUnavailable
        assert "did not begin its answer within 0.05 seconds" in error.user_text
        assert "`first_token`" in error.hint

    @pytest.mark.parametrize("delta", [{"content": "x"}, {"tool_calls": [{"index": 0, "id": "c"}]}])
    async def test_silence_in_the_middle_is_bounded(self, delta: dict[str, object]) -> None:
        piece = OK + b"\r\ndata: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"
        error = await fail(says(piece, close=False), silence=timedelta(milliseconds=50))
        assert "fell silent for 0.05 seconds in the middle" in error.user_text
        assert "`silence`" in error.hint

    async def test_a_further_try_has_the_time_that_is_left(self) -> None:
        async with serving(says(OK + b"\r\n", close=False)) as (_, endpoint):
            late = msgspec.structs.replace(call(), patience=0.05)
            with pytest.raises(ModelUnavailable, match=r"within 0\.05 seconds.*`retry_within`"):
                await endpoint.complete(late, ignore)

    @pytest.mark.parametrize(
        ("first_token", "seconds"), [(20, 180.0), (120, 180.0), (600, 600.0), (0, math.inf)]
    )
    async def test_a_slow_model_has_its_time_at_further_tries_too(
        self, first_token: int, seconds: float
    ) -> None:
        """A server that loads its model answers the first try with 503, and the next one after minutes."""
        settings = ProviderSettings("http://127.0.0.1:9/v1", first_token=timedelta(seconds=first_token))
        assert Endpoint("slow", settings, WIRE).retry_within == seconds

    async def test_a_try_without_an_end_of_patience_is_not_bounded(self) -> None:
        settings = {"first_token": timedelta(0)}
        async with serving(says(OK + b"\r\n" + ANSWER + DONE), **settings) as (_, endpoint):
            patient = msgspec.structs.replace(call(), patience=endpoint.retry_within)
            assert (await endpoint.complete(patient, ignore)).message.text == "hi"

    async def test_waiting_for_the_processor_is_no_computing_time(self) -> None:
        """On a busy machine a slice of work takes long, and the answer is no worse for it."""
        memory = AnswerMemory(Limits(LimitSettings(answer_cpu=timedelta(milliseconds=150))))
        piece = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
        async with serving(says(OK + b"\r\n" + 400 * piece + ANSWER + DONE)) as (raw, _):
            endpoint = Endpoint("acme", ProviderSettings(raw.url), WIRE, memory=memory)
            waits = iter([0.04] * 6)

            def sink(delta: ModelDelta) -> None:
                threading.Event().wait(next(waits, 0.0))

            try:
                told = await endpoint.complete(call(), sink)
            finally:
                await endpoint.close()
        assert len(told.message.text) == 802

    async def test_a_first_word_may_take_longer_than_the_words_after_it(self) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK + b"\r\n: wait\n\n")
            await writer.drain()
            await asyncio.sleep(0.06)
            writer.write(ANSWER + DONE)
            writer.close()

        limits = {"first_token": timedelta(seconds=20), "silence": timedelta(milliseconds=20)}
        async with serving(script, **limits) as (_, endpoint):
            assert (await endpoint.complete(call(), ignore)).message.text == "hi"

    async def test_a_connection_that_nobody_takes_is_bounded(self) -> None:
        """A listener with a full backlog answers no handshake."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(8)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            settings = ProviderSettings(
                f"http://127.0.0.1:{port}/v1", connect_timeout=timedelta(milliseconds=50)
            )
            endpoint = Endpoint("acme", settings, WIRE)
            with pytest.raises(ModelUnavailable, match=r"take a connection at .* within 0\.05") as caught:
                await endpoint.complete(call(), ignore)
            assert "`connect_timeout`" in caught.value.hint
            await endpoint.close()
            for filler in fillers:
                filler.close()

    async def test_the_whole_call_is_bounded(self) -> None:
        error = await fail(says(OK + b"\r\n: ping\n\n", close=False), timeout=timedelta(milliseconds=50))
        assert type(error) is ModelUnavailable
        assert "within 0.05 seconds" in error.user_text

    @pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504, 529])
    async def test_statuses_that_another_try_may_cure(self, code: int) -> None:
        error = await fail(status(code, b'{"error":{"message":"later"}}', b"Retry-After: 3"))
        assert isinstance(error, ModelUnavailable)
        assert (error.status, error.retry_after) == (code, 3.0)
        assert error.user_text.endswith(f"(HTTP {code}): later.")

    @pytest.mark.parametrize("code", [400, 401, 402, 403, 404, 405, 422])
    async def test_statuses_that_are_final_for_this_model(self, code: int) -> None:
        error = await fail(status(code, b'{"error":{"message":"no"}}'))
        assert type(error) is ModelRefused
        assert error.status == code

    @pytest.mark.parametrize("code", [400, 413])
    @pytest.mark.parametrize(
        "body",
        [
            b'{"error":{"message":"x","code":"context_length_exceeded"}}',
            b'{"error":{"message":"This model\'s maximum context length is 8192 tokens."}}',
            b'{"error":{"message":"prompt is too long: 210000 tokens > 200000 maximum"}}',
            b'{"detail":"Input is too long for requested model."}',
        ],
    )
    async def test_a_conversation_that_does_not_fit(self, code: int, body: bytes) -> None:
        assert type(await fail(status(code, body))) is ContextTooLong

    async def test_a_redirect_is_not_followed(self) -> None:
        error = await fail(status(307, b"", b"Location: https://elsewhere.example/v1"))
        assert type(error) is ModelRefused
        assert "https://elsewhere.example/v1" in error.user_text

    async def test_the_servers_words_are_trimmed_and_hold_no_key(self) -> None:
        body = json.dumps({"error": {"message": f"Wrong key {KEY}. " + "x" * 250 + KEY + "y" * 500}}).encode()
        error = await fail(status(401, body))
        assert KEY not in str(error)
        assert KEY[:12] not in str(error)
        assert len(error.user_text) < 400
        assert error.hint == "Send `/model local`, or run `talaria setup` to set another key."

    async def test_a_page_for_browsers_is_not_shown(self) -> None:
        error = await fail(status(502, b"<html><h1>Bad Gateway</h1></html>"))
        assert error.user_text == "acme (model gpt-x) is failing (HTTP 502)."

    async def test_half_an_error_body_is_still_that_error(self) -> None:
        error = await fail(says(b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\n{"))
        assert (type(error), error.status) == (ModelUnavailable, 503)

    async def test_a_closed_endpoint_refuses(self) -> None:
        endpoint = Endpoint("acme", ProviderSettings("http://127.0.0.1:9/v1"), WIRE)
        await endpoint.close()
        with pytest.raises(ModelUnavailable):
            await endpoint.complete(call(), ignore)


class TestCancellation:
    async def test_it_closes_the_connection_before_the_answer_came(self) -> None:
        started = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            started.set()

        async with serving(script) as (server, endpoint):
            task = asyncio.create_task(endpoint.complete(call(), ignore))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.gone.wait()

    async def test_it_closes_the_connection_while_a_long_body_is_sent(self) -> None:
        """The server reads nothing of 30 MB, so that most of it waits on our side."""
        connected, released = asyncio.Event(), asyncio.Event()
        read: list[int] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            connected.set()
            await released.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            try:
                read.append(len(await reader.read(-1)))
            except ConnectionError:
                read.append(0)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        endpoint = Endpoint("acme", ProviderSettings(url), WIRE)
        big = ModelCall(
            "m", WIRE.render_prefix("", []), [b'{"role":"user","content":"%b"}' % (b"x" * 30_000_000)]
        )
        task = asyncio.create_task(endpoint.complete(big, ignore))
        await connected.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        released.set()
        await endpoint.close()
        server.close()
        await server.wait_closed()
        await until(lambda: read, pause=0)
        assert read[0] < 30_000_000
