"""The client, `ask` and the chat against a gateway that misbehaves on demand."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from support.ports import port_of, reserve_port
from support.waiting import until
from talaria.console.chat import Interrupted, Screen, TerminalChat
from talaria.console.gateway_client import (
    NO_RETRY,
    GatewayAddress,
    GatewayClient,
    GatewayGone,
    GatewayRefusal,
    RetryPolicy,
)
from talaria.console.plain import AskRequest, PlainRenderer, TurnFailed, ask
from talaria.core.errors import BadRequest, ErrorInfo, TalariaError
from talaria.core.events import EVENT_NAMES, Cancelled, Delta, Done, Event, Failed, Reset
from talaria.core.problems import Action, Do

TOKEN = "a-token-of-sixteen-characters"
SENT = {"turn_id": "turn_1", "session_id": "ses_1", "state": "accepted"}


class FakeGateway:
    """Plays `streams` one after another; a stream without a final event is cut there."""

    def __init__(self, *streams: list[Event]) -> None:
        self.streams = list(streams)
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.uploads: list[tuple[str, bytes]] = []
        self.refusals: list[tuple[int, ErrorInfo]] = []
        self.unknown_events = False
        self.reply = ""
        self.hangs = False
        self.cancelled = asyncio.Event()
        self.following = asyncio.Event()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/api/sessions/{name}/messages", self._send)
        app.router.add_post("/api/files", self._upload)
        app.router.add_get("/api/turns/{id}/events", self._events)
        app.router.add_post("/api/turns/{id}/cancel", self._cancel)
        app.router.add_get("/api/turns/{id}", self._turn)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _send(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        self.bodies.append(await request.read())
        if self.refusals:
            status, info = self.refusals.pop(0)
            return web.Response(status=status, body=msgspec.json.encode({"error": info}))
        return web.json_response(SENT, status=202)

    async def _upload(self, request: web.Request) -> web.Response:
        self.uploads.append((request.query["name"], await request.read()))
        return web.json_response({"id": f"file_{len(self.uploads)}"}, status=201)

    async def _turn(self, request: web.Request) -> web.Response:
        turn = {"id": request.match_info["id"], "state": "done", "reply": self.reply}
        return web.Response(body=msgspec.json.encode(turn))

    async def _cancel(self, request: web.Request) -> web.Response:
        self.cancelled.set()
        return web.json_response({})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = int(request.headers.get("Last-Event-ID", 0))
        if self.unknown_events:
            await response.write(b"event: later.kind\ndata: {}\n\nevent: delta\ndata: {broken\n\n")
        for event in self.streams.pop(0):
            number += 1
            name = EVENT_NAMES[type(event)].encode()
            await response.write(
                b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name, msgspec.json.encode(event))
            )
        self.following.set()
        if self.hangs:
            await self.cancelled.wait()
            await response.write(b'id: 99\nevent: cancelled\ndata: {"type":"cancelled","reply":"so far"}\n\n')
        return response


@asynccontextmanager
async def talking(*streams: list[Event], port: int = 0) -> AsyncIterator[tuple[FakeGateway, GatewayClient]]:
    gateway = FakeGateway(*streams)
    await gateway.start(port)
    try:
        async with asyncio.timeout(20), GatewayClient(GatewayAddress(gateway.url, TOKEN)) as client:
            yield gateway, client
    finally:
        await gateway.stop()


async def collect(client: GatewayClient, retry: RetryPolicy = NO_RETRY) -> list[Event]:
    return [event async for event in client.follow("turn_1", retry)]


# -- the client


async def test_a_message_carries_token_and_key() -> None:
    async with talking() as (gateway, client):
        sent = await client.send("work", "hi", "key-1", model="fast")
    assert sent.turn_id == "turn_1"
    (request,) = gateway.requests
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Idempotency-Key"] == "key-1"
    assert msgspec.json.decode(gateway.bodies[0]) == {"text": "hi", "model": "fast"}


async def test_a_cut_stream_goes_on_behind_the_last_event() -> None:
    async with talking([Delta("a"), Delta("b")], [Done("ab")]) as (gateway, client):
        assert await collect(client) == [Delta("a"), Delta("b"), Done("ab")]
    assert [request.headers.get("Last-Event-ID") for request in gateway.requests] == [None, "2"]


async def test_events_of_a_later_version_and_broken_ones_are_passed_over() -> None:
    async with talking([Done("x")]) as (gateway, client):
        gateway.unknown_events = True
        assert await collect(client) == [Done("x")]


async def test_a_refusal_keeps_the_gateways_words() -> None:
    async with talking() as (gateway, client):
        gateway.refusals.append((404, ErrorInfo("not_found", "There is no model x.", "Known: y.")))
        with pytest.raises(GatewayRefusal) as caught:
            await client.send("a", "hi", "k")
    assert (caught.value.type, caught.value.user_text, caught.value.hint) == (
        "not_found",
        "There is no model x.",
        "Known: y.",
    )


async def test_a_wrong_token_is_explained() -> None:
    async with talking() as (gateway, client):
        gateway.refusals.append((401, ErrorInfo("unauthorized", "The token is wrong.")))
        with pytest.raises(GatewayRefusal, match="TALARIA_HTTP_TOKEN"):
            await client.send("a", "hi", "k")


async def test_without_a_gateway_the_error_says_where_and_what_to_do() -> None:
    async with talking() as (gateway, client):
        await gateway.stop()
        with pytest.raises(GatewayGone, match=r"127\.0\.0\.1.*nothing answers there.*talaria serve"):
            await client.send("a", "hi", "k")


@pytest.mark.parametrize("refusal", ["draining", "overloaded"])
async def test_a_gateway_that_takes_nothing_now_is_tried_again_with_the_same_key(refusal: str) -> None:
    told: list[str] = []
    retry = RetryPolicy(5, on_gone=lambda error: told.append("gone"), on_back=lambda: told.append("back"))
    async with talking() as (gateway, client):
        gateway.refusals += [(503, ErrorInfo(refusal, "It takes nothing on."))] * 2
        await client.send("a", "hi", "k", retry=retry)
    assert told == ["gone", "back"]
    assert [request.headers["Idempotency-Key"] for request in gateway.requests] == ["k"] * 3


async def test_a_gateway_that_comes_back_elsewhere_is_found() -> None:
    old, new = FakeGateway([Delta("a")]), FakeGateway([Reset(), Done("again")])
    await old.start()
    await new.start()
    try:
        address = GatewayAddress(new.url, TOKEN)
        async with (
            asyncio.timeout(10),
            GatewayClient(GatewayAddress(old.url, TOKEN), lambda: address) as client,
        ):
            events = client.follow("turn_1", RetryPolicy(math.inf))
            assert await anext(events) == Delta("a")
            await old.stop()
            assert [event async for event in events] == [Reset(), Done("again")]
    finally:
        await old.stop()
        await new.stop()


async def test_an_event_that_is_too_long_is_told_and_not_asked_for_again() -> None:
    async with talking([Done("\0" * (3 << 20))]) as (_, client):
        with pytest.raises(TalariaError, match="longer than 16777216 bytes"):
            await collect(client, RetryPolicy(5.0))


async def test_patience_ends() -> None:
    async with talking() as (gateway, client):
        await gateway.stop()
        with pytest.raises(GatewayGone):
            await collect(client, RetryPolicy(0.25))


# -- ask


async def answer(
    events: list[Event], *, is_live: bool = False, as_json: bool = False
) -> tuple[str, str, TalariaError | None]:
    out, err, failure = StringIO(), StringIO(), None
    async with talking(events) as (_, client):
        try:
            renderer = PlainRenderer(out, None, is_live=is_live)
            await ask(client, AskRequest("q"), renderer, json_out=out if as_json else None)
        except TurnFailed as error:
            failure = error
    return out.getvalue(), err.getvalue(), failure


async def test_a_reply_is_printed_once_streamed_or_not() -> None:
    events: list[Event] = [Delta("one "), Delta("two"), Done("one two")]
    for is_live in (False, True):
        assert await answer(events, is_live=is_live) == ("one two\n", "", None)


async def test_what_was_streamed_before_a_reset_is_told_apart() -> None:
    out, _, _ = await answer([Delta("half"), Reset(), Delta("whole"), Done("whole")], is_live=True)
    assert out == "half\nwhole\n"


async def test_a_failed_turn_is_raised_with_its_reason() -> None:
    out, _, failure = await answer([Delta("hm"), Failed(ErrorInfo("model", "It broke.", "Mend it."))])
    assert out == ""
    assert failure is not None
    assert failure.user_text == "It broke."
    assert failure.hint == "Mend it.\nThe whole story: talaria why turn_1"


async def test_a_cancelled_turn_is_no_success() -> None:
    out, _, failure = await answer([Cancelled("so far")])
    assert out == "so far\n"
    assert failure is not None


@pytest.mark.parametrize(
    ("hint", "action", "told"),
    [
        ("{}, or run X.", Action(Do.USE_LOCAL_MODEL), "Add `--model local`, or run X."),
        (
            "Wait, or {}.",
            Action(Do.USE_MODEL, "choose another model"),
            "Wait, or choose another model with --model.",
        ),
        ("{}.", Action(Do.NEW_SESSION, "Start a new one"), "Begin another session: leave --session out."),
        ("{}.", Action(Do.SHORTER), "Begin another session: leave --session out."),
        ("{}, or pay.", Action(Do.NEW_BUDGET), "Begin another session, with a budget of its own, or pay."),
        ("{}.", Action(Do.ANSWER_AGAIN), "Ask again."),
        ("Wait, or {}.", Action(Do.STOP_TURN), "Wait, or send /stop."),
    ],
)
async def test_a_hint_names_options_of_the_command_line(hint: str, action: Action, told: str) -> None:
    error = ErrorInfo("model", "It broke.", hint.format(action), action=action)
    _, _, failure = await answer([Failed(error)])
    assert failure is not None
    assert failure.hint == f"{told}\nThe whole story: talaria why turn_1"


async def test_json_is_the_turn_and_nothing_else() -> None:
    out, _, _ = await answer([Delta("x"), Done("x")], is_live=True, as_json=True)
    assert msgspec.json.decode(out) == {"id": "turn_1", "state": "done", "reply": ""}


async def test_json_shows_characters_that_could_deceive_a_terminal_as_escapes() -> None:
    out = StringIO()
    async with talking([Done("x")]) as (gateway, client):
        gateway.reply = 'a\u202eb \x9b2J \x7f "é"\n\U000e0041'
        await ask(client, AskRequest("q"), PlainRenderer(StringIO(), None), json_out=out)
        assert all(char.isprintable() or char == "\n" for char in out.getvalue()), ascii(out.getvalue())
        assert msgspec.json.decode(out.getvalue())["reply"] == gateway.reply and "é" in out.getvalue()


async def test_an_interrupted_ask_cancels_its_turn() -> None:
    async with talking([Delta("x")]) as (gateway, client):
        gateway.hangs = True
        task = asyncio.create_task(ask(client, AskRequest("q"), PlainRenderer(StringIO(), None)))
        await gateway.following.wait()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert gateway.cancelled.is_set()


async def test_files_are_uploaded_and_named_with_the_message(tmp_path: Path) -> None:
    path = tmp_path / "notes ü.txt"
    path.write_bytes(b"a\0b")
    async with talking([Done("x")]) as (gateway, client):
        await ask(client, AskRequest("Read this.", files=(path,)), PlainRenderer(StringIO(), None))
        assert gateway.uploads == [("notes ü.txt", b"a\0b")]
        assert msgspec.json.decode(gateway.bodies[-1]) == {"text": "Read this.", "files": ["file_1"]}


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    async with talking() as (gateway, client):
        with pytest.raises(BadRequest, match=r"nope.*No such file"):
            await ask(client, AskRequest("x", files=(tmp_path / "nope",)), PlainRenderer(StringIO(), None))
        assert not gateway.bodies


# -- the chat


class Script:
    """What someone types: texts and interrupts, then the end."""

    def __init__(self, *lines: str | type[Interrupted]) -> None:
        self._lines = list(lines)

    async def read(self, chat: TerminalChat) -> str | None:
        await chat.until_wanted()
        if not self._lines:
            return None
        line = self._lines.pop(0)
        if isinstance(line, str):
            return line
        raise line


class Paper:
    def __init__(self) -> None:
        self._out = StringIO()

    def chat(self, client: GatewayClient, lines: Script, *files: Path) -> TerminalChat:
        screen = Screen(messages=lines, renderer=lambda _: PlainRenderer(self._out, self._out), say=self.say)
        return TerminalChat(client, "terminal", screen, files=files)

    def say(self, text: str) -> None:
        self._out.write(f"[{text}]\n")

    @property
    def text(self) -> str:
        return self._out.getvalue()


async def test_messages_are_answered_in_turn() -> None:
    screen = Paper()
    async with talking([Done("one")], [Done("two")]) as (gateway, client):
        await screen.chat(client, Script("a", "  ", "b")).run()
    assert screen.text == "one\ntwo\n"
    assert len(gateway.bodies) == 2


@pytest.mark.parametrize("lines", [("a",), ("a", "b")])
async def test_an_error_of_the_program_ends_the_chat(lines: tuple[str, ...]) -> None:
    def broken(is_markdown: bool) -> PlainRenderer:
        raise ZeroDivisionError

    async with talking() as (_, client):
        screen = Screen(messages=Script(*lines), renderer=broken, say=print)
        with pytest.raises(ZeroDivisionError):
            await TerminalChat(client, "terminal", screen).run()


async def test_a_file_goes_with_the_first_message_and_not_with_a_command(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"x")
    async with talking([Done("")], [Done("")], [Done("")]) as (gateway, client):
        await Paper().chat(client, Script("/status", "one", "two"), path).run()
    sent = [msgspec.json.decode(body).get("files") for body in gateway.bodies]
    assert sent == [None, ["file_1"], None]


async def test_an_error_ends_the_exchange_but_not_the_chat() -> None:
    screen = Paper()
    async with talking([Failed(ErrorInfo("x", "It broke."))], [Done("fine")]) as (gateway, client):
        gateway.refusals.append((400, ErrorInfo("bad_request", "No such thing.", "Try another.")))
        await screen.chat(client, Script("a", "b", "c")).run()
    assert screen.text == "✗ No such thing.\n  Try another.\n✗ It broke.\n  (talaria why turn_1)\nfine\n"


async def test_ctrl_c_twice_leaves_and_once_only_hints() -> None:
    screen = Paper()
    async with talking([Done("one")]) as (gateway, client):
        await screen.chat(client, Script(Interrupted, "a", Interrupted, Interrupted, "never")).run()
    assert screen.text.count("Press Ctrl-C again") == 2
    assert len(gateway.bodies) == 1


async def test_ctrl_c_cancels_the_turn_and_keeps_what_came() -> None:
    screen = Paper()
    async with talking([Delta("so far")], [Done("next")]) as (gateway, client):
        gateway.hangs = True
        chat = asyncio.create_task(screen.chat(client, Script("a", "b")).run())
        await gateway.following.wait()
        signal.raise_signal(signal.SIGINT)
        await gateway.cancelled.wait()
        gateway.hangs = False
        await chat
    assert "Cancelling" in screen.text
    assert screen.text.endswith("so far\n(cancelled)\nnext\n")


@asynccontextmanager
async def orphaned(chat: Callable[[GatewayClient], TerminalChat], paper: Paper) -> AsyncIterator[int]:
    """A chat whose gateway goes away in the middle of a turn; gives the port at which it was."""
    with reserve_port() as place:
        async with talking([Delta("half")], port=port_of(place)) as (gateway, client):
            gateway.hangs = True
            running = asyncio.create_task(chat(client).run())
            await gateway.following.wait()
            await gateway.stop()
            await until(lambda: "cannot be reached" in paper.text)
            yield port_of(place)
            await running


async def test_a_reply_that_nobody_waited_for_is_shown_before_the_next() -> None:
    paper, other = Paper(), FakeGateway([Done("late reply")], [Done("next reply")])
    async with orphaned(lambda client: paper.chat(client, Script("a", "b")), paper) as port:
        signal.raise_signal(signal.SIGINT)
        await other.start(port)
    await other.stop()
    assert "Your message is safe" in paper.text
    assert "No longer waiting. Its reply is shown with your next message." in paper.text
    assert "[The reply to your earlier message:]\nlate reply\nnext reply\n" in paper.text


async def test_a_gateway_that_comes_back_goes_on_with_the_turn() -> None:
    paper, other = Paper(), FakeGateway([Reset(), Done("whole")])
    async with orphaned(lambda client: paper.chat(client, Script("a")), paper) as port:
        await other.start(port)
    await other.stop()
    assert paper.text.endswith("The gateway is back.\nwhole\n")


async def test_a_message_that_a_busy_gateway_refuses_is_sent_again() -> None:
    paper = Paper()
    async with talking([Done("at last")]) as (gateway, client):
        gateway.refusals.append((503, ErrorInfo("overloaded", "The gateway was held up.")))
        await paper.chat(client, Script("a")).run()
    assert "The gateway was held up. Your message is sent again by itself." in paper.text
    assert paper.text.endswith("at last\n")
