"""A scripted model behind real HTTP: `python -m talaria.testing.model_server`, or `ModelServer` in tests.

It speaks the APIs below, refuses what a real server refuses, and records the requests. It is cheap enough to
run beside a gateway that is measured.

  GET /v1/models              the models
  POST /v1/chat/completions   an answer of OpenAI's chat completions, streamed or whole
  POST /v1/responses          an answer of OpenAI's responses API, stateless
  POST /v1/messages           an answer of Anthropic's messages API
  DELETE /_recorded           returns the bodies of the recorded requests as texts, and forgets them
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

import httptools
import msgspec

from talaria.testing import script
from talaria.testing.anthropic_api import MessagesApi
from talaria.testing.billing import Bill, Bills, output_bytes
from talaria.testing.fake_server import ChangeNotifier, print_and_wait
from talaria.testing.hostile_answers import HostileAnswer, find_attack
from talaria.testing.model_api import ModelApi, ModelNotFound, RequestRefused, ScriptedReply, WrongKey
from talaria.testing.openai_chat_api import ChatCompletionsApi
from talaria.testing.openai_responses_api import ResponsesApi
from talaria.testing.script import AttemptCounter, ScriptedAnswer, ScriptedFault, decide

_CHAT = ChatCompletionsApi()
APIS: Mapping[str, ModelApi] = {api.path: api for api in (_CHAT, ResponsesApi(), MessagesApi())}
DEFAULT_PORT = 8766
MAX_RECORDED = 10_000
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed"}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_STREAM_END = b"0\r\n\r\n"


class ModelServer(ChangeNotifier):
    """Serves inside its `async with` block. `latency` is the pause before each answer's first byte.

    A strict server refuses what a real server refuses; another one reads only what the answer depends on.
    `bodies` are the received requests, byte for byte, unless `record` is off. With a `key`, requests without
    it are refused; with `models`, requests for other models are. `bills` has what a provider would bill.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        latency: float = 0.0,
        strict: bool = True,
        record: bool = True,
        key: str = "",
        models: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._key = key
        self._models = tuple(models)
        self._host = host
        self._port = port
        self._record = record
        self._server: asyncio.Server | None = None
        self._attempts = AttemptCounter()
        self.bills = Bills()
        self.strict = strict
        self.latency = latency
        self.bodies: deque[bytes] = deque(maxlen=MAX_RECORDED)
        self.requests = 0
        self.accepted = 0  # connections in total
        self.connections: set[_Connection] = set()

    @property
    def base_url(self) -> str:
        return f"http://{self._host}:{self._port}/v1"

    @property
    def answering(self) -> int:
        """The number of connections with an unfinished answer."""
        return sum(connection.is_answering for connection in self.connections)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await self.until(lambda: not self.connections)
        await self._server.wait_closed()

    def take(self, body: bytes, headers: Mapping[str, str], api: ModelApi) -> tuple[ScriptedReply, bool]:
        """Record a request. Returns the reply, and whether it is streamed. Raises `RequestRefused`."""
        self.requests += 1
        if self._record:
            self.bodies.append(body)
        if self.strict:
            api.check_headers(headers)
        self.check_key(headers)
        request = api.read(body) if self.strict else api.read_loosely(body)
        if self._models and request.model not in self._models:
            raise ModelNotFound(f"The model {request.model} does not exist.")
        answer = decide(request.context, self._attempts.count(request.context))
        usage = answer.usage_after(len(body))
        bill = self.bills.open(request.context.user, len(body), answer)
        reply = ScriptedReply(answer, f"{api.id_prefix}{self.requests}", request.model, usage, bill)
        return reply, request.stream

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Check the headers, whose names are in lower case. Raises `RequestRefused`."""
        given = (headers.get("authorization", "").removeprefix("Bearer "), headers.get("x-api-key"))
        if self._key and self._key not in given:
            raise WrongKey("Incorrect API key provided.")

    def listing(self) -> list[dict[str, object]]:
        names = self._models or ("scripted",)
        return [{"id": name, "object": "model", "created": 0, "owned_by": "talaria"} for name in names]


class _Connection(asyncio.Protocol):
    """A client's connection. Each request is answered before the next one is read."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._frames: list[bytes] = []  # of the answer being sent, in reverse
        self._bill = Bill()
        self._unbilled = 0  # bytes of output in the frames that are not sent yet
        self._timer: asyncio.TimerHandle | None = None
        self._attack: Iterator[bytes] | None = None  # the rest of a hostile answer
        self._is_full = False  # the client does not read
        self.is_answering = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._server.accepted += 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._server.connections.discard(self)
        self._server.notify()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._attack is not None:
            self._go_on()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._server.strict:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        method = self._parser.get_method()
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        match method, path:
            case b"POST", _ if (api := APIS.get(path)) is not None:
                self._answer(body, api)
                self._server.notify()  # not before: an answer that is sent at once was never unfinished
            case b"GET", "/v1/models":
                self._list()
            case b"POST", "/v1/embeddings":
                self._embed(body)
            case b"DELETE", "/_recorded":
                self._json([body.decode(errors="replace") for body in self._server.bodies])
                self._server.bodies.clear()
            case _:
                text = f"Unknown request URL: {method.decode()} {path}."
                self._send(404, _CHAT.refusal(text, "invalid_request_error"))

    # -- answers

    def _list(self) -> None:
        try:
            self._server.check_key(self._headers)
        except RequestRefused as error:
            self._send(error.status, _CHAT.refusal(str(error), error.kind))
        else:
            self._json({"object": "list", "data": self._server.listing()})

    def _embed(self, body: bytes) -> None:
        """Answer with a vector of each text: its length and the number of its words. `[[status 429]]` in the
        request fails."""
        self._server.bodies.append(body)
        if b"[[status 429]]" in body:
            self._send(429, _CHAT.refusal("Slow down.", "rate_limit_exceeded"))
            return
        given = msgspec.json.decode(body)
        texts = [given["input"]] if isinstance(given["input"], str) else given["input"]
        vectors = [[float(len(text)), float(len(text.split()))] for text in texts]
        data = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(vectors)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        self._json({"object": "list", "data": data, "model": given["model"], "usage": usage})

    def _answer(self, body: bytes, api: ModelApi) -> None:
        self.is_answering = True
        try:
            reply, is_streamed = self._server.take(body, self._headers, api)
        except RequestRefused as error:
            self._play([_response(error.status, api.refusal(str(error), error.kind))], 0.0, 0.0)
            return
        answer = reply.answer
        match answer.fault:
            case ScriptedFault.HANG:
                return
            case ScriptedFault.HOSTILE:
                self._begin_attack(api, *answer.hostile)
                return
            case ScriptedFault.STATUS:
                frames = [_error_response(answer, api)]
            case _ if is_streamed:
                frames = self._stream(api, reply)
            case ScriptedFault.CUT | ScriptedFault.HALF_CALL:
                frames = [b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", b""]
            case ScriptedFault.MALFORMED:
                frames = [_response(200, b'{"choices":')]
            case _:
                frames = [_response(200, api.whole(reply))]
        self._bill, self._unbilled = reply.bill, output_bytes(answer)
        self._play(frames, self._server.latency + answer.delay, answer.chunk_delay)

    def _stream(self, api: ModelApi, reply: ScriptedReply) -> list[bytes]:
        """Return the HTTP chunks of a stream: one for each event, or one for all if there are no delays. An
        empty last chunk means that the connection breaks there."""
        events, is_cut = api.stream(reply)
        if reply.answer.chunk_delay <= 0 and events:
            events = [b"".join(events)]
        frames = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        if not frames:
            return [_STREAM_HEAD, b""]
        frames[0] = _STREAM_HEAD + frames[0]
        if is_cut:
            frames.append(b"")
        else:
            frames[-1] += _STREAM_END
        return frames

    def _play(self, frames: list[bytes], delay: float, chunk_delay: float) -> None:
        """Send the frames. Without delays they go out in one write."""
        if chunk_delay <= 0:
            frames = [b"".join(frames), b""] if not frames[-1] else [b"".join(frames)]
        self._frames = frames[::-1]
        self._later(delay + chunk_delay, chunk_delay)

    def _later(self, delay: float, chunk_delay: float) -> None:
        if delay <= 0:
            self._next(chunk_delay)
        else:
            self._timer = asyncio.get_running_loop().call_later(delay, self._next, chunk_delay)

    def _next(self, chunk_delay: float) -> None:
        self._timer = None
        if frame := self._frames.pop():
            sent = -(-self._unbilled // (len(self._frames) + 1))
            self._bill.output_bytes += sent
            self._unbilled -= sent
            self._write(frame)
        elif self._transport is not None:
            self._transport.close()
        if self._frames:
            self._later(chunk_delay, chunk_delay)
        else:
            self.is_answering = False
            self._server.notify()

    def _begin_attack(self, api: ModelApi, name: str, size: int) -> None:
        try:
            attack = find_attack(api.wire, name)
        except KeyError as error:
            self._play([_response(400, api.refusal(str(error), "invalid_request_error"))], 0.0, 0.0)
            return
        self._write(_attack_head(attack))
        self._attack = attack.pieces(size)
        self._go_on()

    def _go_on(self) -> None:
        """Send the hostile answer as fast as the client reads it."""
        assert self._attack is not None
        while not self._is_full and self._transport is not None:
            piece = next(self._attack, None)
            if piece is None:
                self._write(_STREAM_END)
                self._attack, self.is_answering = None, False
                self._server.notify()
                return
            if piece:
                self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _json(self, value: object) -> None:
        self._send(200, msgspec.json.encode(value))

    def _send(self, status: int, body: bytes) -> None:
        self._write(_response(status, body))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _response(status: int, body: bytes, header: bytes = b"") -> bytes:
    reason = _REASONS.get(status, b"Scripted")
    return b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        status,
        reason,
        len(body),
        header,
        body,
    )


def _attack_head(attack: HostileAnswer) -> bytes:
    kind = b"application/json" if attack.is_json else b"text/event-stream"
    return b"HTTP/1.1 %d Hostile\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (
        attack.status,
        kind,
        attack.headers,
    )


def _error_response(answer: ScriptedAnswer, api: ModelApi) -> bytes:
    header = b"Retry-After: %b\r\n" % answer.retry_after.encode() if answer.retry_after else b""
    kind = answer.code or ("server_error" if answer.status >= 500 else "invalid_request_error")
    return _response(
        answer.status, api.refusal(f"The script asked for status {answer.status}.", kind), header
    )


async def _serve(arguments: argparse.Namespace) -> None:
    server = ModelServer(
        arguments.host,
        arguments.port,
        latency=arguments.latency,
        strict=not arguments.fast,
        record=not arguments.fast,
        key=arguments.key,
        models=arguments.model,
    )
    async with server:
        is_usual = (arguments.host, arguments.port) == ("127.0.0.1", DEFAULT_PORT)
        address = "" if is_usual else f" TALARIA_PROVIDERS__SCRIPTED__BASE_URL={server.base_url}"
        await print_and_wait(
            f"Scripted model at {server.base_url}; to use it, start the gateway with "
            f"TALARIA_MODEL__PROVIDER=scripted{address} (--help lists the marks that it understands)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m talaria.testing.model_server",
        description="A scripted model behind an OpenAI-compatible API, for trying Talaria without a key.",
        epilog=script.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="0 picks a free one (default: %(default)s)"
    )
    parser.add_argument("--latency", type=float, default=0.0, metavar="S", help="seconds before each answer")
    parser.add_argument("--key", default="", help="refuse requests without this key")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="have only this model (repeatable)"
    )
    parser.add_argument("--fast", action="store_true", help="for benchmarks: check and record nothing")
    arguments = parser.parse_args()
    try:
        import uvloop  # noqa: PLC0415 - optional, and of no use when this module is only imported

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    try:
        with runner:
            runner.run(_serve(arguments))
    except OSError as error:
        parser.exit(
            1, f"model_server: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}\n"
        )


if __name__ == "__main__":
    main()
