"""A peer that stops at any point: each client of the gateway ends its call after the documented time.

A peer does not take the connection, takes it and is silent, is silent after the head of its answer, or in the
middle of the body. The table has the seconds after which each client gives up, for each of these.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from models.local.index import weights
from support.mcp_world import open_world, scripted
from support.waiting import until
from talaria.channels.platform_api import PlatformError
from talaria.channels.telegram.account import examine_bot
from talaria.channels.telegram.bot_api import BotApi, User
from talaria.channels.telegram.part import TelegramSettings
from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.signing import MAC_HEADER, AnswerSigner, ClusterKey
from talaria.console.gateway_client import GatewayAddress, GatewayClient, GatewayGone
from talaria.core.cluster import Member
from talaria.core.errors import ModelUnavailable, StoreError, ToolError
from talaria.core.ids import OwnerId, PlaceId, TurnId
from talaria.core.messages import Text, UserMessage
from talaria.core.settings import Examination
from talaria.core.specs import ModelCall
from talaria.mcp.part import McpServer
from talaria.mcp.probe import probe_server
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.discovery import DetectedProvider, detect_servers
from talaria.models.endpoint import Endpoint
from talaria.models.local.fetch import WeightsError, fetch
from talaria.models.local.weights import WeightsCache
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.settings import ProviderSettings
from talaria.models.wire import Wire
from talaria.net.dialer import Dialer
from talaria.net.fetcher import PageFetcher
from talaria.store.postgres.connections import connect, connect_listener
from talaria.tools.search_providers import HttpSearch
from talaria.tools.settings import SearchSettings

TOKEN = "a-cluster-token-for-tests"
NEVER_TAKEN, SILENT, AFTER_HEAD, IN_BODY = "connection not taken", "silent", "after the head", "in the body"
STEP = 0.25  # seconds of the loop's clock
EARLIEST, LATEST = 1.0, 2.0  # seconds around the limit: timers of HTTP clients are rounded to seconds

Call = Callable[[str, Path], Awaitable[object]]
Wait = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Client:
    """A call of a peer at an address, and the seconds after which it ends when the peer stops at each point.

    The call itself checks the error. The peer answers with `head` and `body` as far as it comes.
    """

    name: str
    call: Call
    seconds: dict[str, float]
    body: bytes = b'{"a'
    head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class StoppingPeer:
    """Answers a request as far as `stops` says, and then holds the connection. `asked` gets each request."""

    def __init__(self, client: Client, stops: str) -> None:
        self._client = client
        self._stops = stops
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            request = await reader.readuntil(b"\r\n\r\n")
            head, body = self._client.head, self._client.body
            if b"nonce=" in request:
                head, body = sign(request, body)
            if self._stops in (AFTER_HEAD, IN_BODY):
                writer.write(head + b"Content-Length: 100000\r\n\r\n")
            if self._stops == IN_BODY:
                writer.write(body)
            await writer.drain()
            self.asked.put_nowait(request)
            await reader.read()


def sign(request: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Return the head and the first piece of a body as a gateway with the cluster's token sends them."""
    nonce = request.partition(b"nonce=")[2][:32].decode()
    signer = AnswerSigner(ClusterKey(TOKEN), nonce)
    mac = signer.head(200, [("content-type", "text/plain")])
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{MAC_HEADER}: {mac}\r\n".encode()
    return head, signer.piece(body, is_last=False)


@asynccontextmanager
async def stopping_peer(
    client: Client, stops: str
) -> AsyncIterator[tuple[str, Callable[[], Awaitable[object]]]]:
    """Yield the address of a peer, and a function that waits until a client waits for it."""
    peer = StoppingPeer(client, stops)
    if stops == NEVER_TAKEN:
        with full_listener() as (port, begun):
            yield f"http://127.0.0.1:{port}", lambda: until(lambda: handshakes(port) > begun)
        return
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", peer.asked.get


@contextmanager
def full_listener() -> Iterator[tuple[int, int]]:
    """Yield the port of a listener whose queue is full, and the number of handshakes that it leaves open."""
    with ExitStack() as scopes:
        full = scopes.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = full.getsockname()[1]
        for _ in range(3):
            filler = scopes.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port, handshakes(port)


def handshakes(port: int) -> int:
    """Return the number of handshakes with a port that were begun and not answered."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(state == "02" and remote.endswith(f":{port:04X}") for _, _, remote, state, *_ in lines)


async def seconds_until_done(task: asyncio.Future[Any], most: float) -> float:
    """Move the loop's clock in small steps until the task is done. Return how far it was moved."""
    loop = asyncio.get_running_loop()
    now = loop.time
    passed = 0.0
    loop.time = lambda: now() + passed  # type: ignore[method-assign]
    for _ in range(100):
        await asyncio.sleep(0)  # what the peer has sent arrives
    for _ in range(20):
        await asyncio.to_thread(int)  # and what a thread does with it ends, also on a busy machine
    while not task.done() and passed < most:
        passed += STEP
        for _ in range(10):
            await asyncio.sleep(0)
    return passed


# -- the clients ------------------------------------------------------------------------------------------


@asynccontextmanager
async def endpoint_at(url: str, wire: Wire) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint("acme", ProviderSettings(f"{url}/v1"), wire)
    try:
        yield endpoint
    finally:
        await endpoint.close()


def model_call(wire: Wire) -> Call:
    async def call(url: str, folder: Path) -> None:
        asked = [wire.encode(UserMessage((Text("hello"),)))]
        request = ModelCall("gpt-x", wire.render_prefix("Be kind.", []), asked)
        async with endpoint_at(url, wire) as endpoint:
            with pytest.raises(ModelUnavailable, match=r"within 10 s|within 120 s|silent for 120 s|500"):
                await endpoint.complete(request, lambda delta: None)

    return call


async def list_models(url: str, folder: Path) -> None:
    async with endpoint_at(url, OpenAIChat()) as endpoint:
        with pytest.raises(ModelUnavailable, match="within"):
            await endpoint.list_models()


async def detect(url: str, folder: Path) -> None:
    assert await detect_servers([DetectedProvider("Silent", "silent", f"{url}/v1")]) == []


async def fetch_weights(url: str, folder: Path) -> None:
    known = weights(urls=(f"{url}/tiny.gguf",), parts=0)
    with pytest.raises(WeightsError, match="no answer in time"):
        await fetch(known, WeightsCache(folder), {}, lambda progress: None)


def telegram(use: Callable[[BotApi], Awaitable[object]]) -> Call:
    async def call(url: str, folder: Path) -> None:
        async with BotApi(url, "1:token") as api:
            with pytest.raises(PlatformError, match=r"did not answer in time|cannot be reached"):
                await use(api)

    return call


async def examine_telegram(url: str, folder: Path) -> None:
    settings = TelegramSettings(token="1:token", api_url=url)
    (found,) = [problem async for problem in examine_bot(Examination(folder, settings, {}))]
    assert "answer" in found.text


async def fetch_page(url: str, folder: Path) -> None:
    dialer = Dialer(lambda: {url.removeprefix("http://")})
    with pytest.raises(ToolError, match=r"within 30 seconds|could not be asked"):
        await PageFetcher(dialer).fetch(url)


async def search(url: str, folder: Path) -> None:
    with pytest.raises(ToolError, match="within 20 seconds"):
        await HttpSearch(SearchSettings("searxng", url), "").search("talaria")


def member(use: Callable[[PeerClient, Member], Awaitable[object]]) -> Call:
    async def call(url: str, folder: Path) -> None:
        peer = Member(OwnerId("own_there"), PlaceId("p"), "boot", "host", url, "1.0", 1_000, 0.0)
        client = PeerClient(TOKEN, now=lambda: 0.0)
        try:
            with pytest.raises(PeerUnreachable, match="host"):
                await use(client, peer)
        finally:
            await client.close()

    return call


async def follow_turn(client: PeerClient, peer: Member) -> None:
    async with aclosing(client.turn_events(peer, TurnId("turn_1"))) as lines:
        async for _ in lines:
            raise AssertionError


async def call_gateway(url: str, folder: Path) -> None:
    async with GatewayClient(GatewayAddress(url, "token")) as client:
        with pytest.raises(GatewayGone, match=r"does not answer in time|cannot be reached"):
            await client.cancel("turn_1")


async def list_tools(url: str, folder: Path) -> None:
    server = McpServer(url=f"{url}/mcp")
    with pytest.raises(ToolError, match=r"within 120 seconds|cannot be reached"):
        await probe_server(folder, "one", server, {}, is_own_secret=lambda name: False)


def limits(*seconds: float) -> dict[str, float]:
    """For a connection that is not taken, for silence, for silence after the head and in the body."""
    return dict(zip((NEVER_TAKEN, SILENT, AFTER_HEAD, IN_BODY), seconds, strict=False))


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FAILED = b"HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\n"
CHAT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
RESPONSES = b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"x"}\n\n'
ANTHROPIC = (
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
)
# connect_timeout, first_token, first_token, and silence with the 5 seconds by which it is read too late
MODEL = limits(10, 120, 120, 125)
CLIENTS = [
    Client("OpenAI chat", model_call(OpenAIChat()), MODEL, CHAT, STREAM),
    Client("OpenAI responses", model_call(OpenAIResponses()), MODEL, RESPONSES, STREAM),
    Client("Anthropic", model_call(AnthropicMessages()), MODEL, ANTHROPIC, STREAM),
    Client("a model's error", model_call(OpenAIChat()), {AFTER_HEAD: 10, IN_BODY: 10}, head=FAILED),
    Client("list of models", list_models, limits(10, 15, 15, 15)),
    Client("search for model servers", detect, limits(0.5, 0.5, 0.5, 0.5)),
    Client("weights", fetch_weights, limits(3, 6, 30, 30)),
    Client("Telegram", telegram(lambda api: api.call("getMe", User)), limits(10, 20, 20, 20)),
    Client("Telegram poll", telegram(lambda api: api.call("getUpdates", User, 50.0)), limits(10, 70, 70, 70)),
    Client(
        "Telegram upload",
        telegram(lambda api: api.upload("sendDocument", User, "document", ("a.txt", b"a"))),
        limits(10, 120, 120, 120),
    ),
    Client("Telegram file", telegram(lambda api: api.download("a", 1 << 20)), limits(10, 120, 120, 120)),
    Client("doctor's look at Telegram", examine_telegram, limits(10, 10, 10, 10)),
    Client("web_fetch", fetch_page, limits(30, 30, 30, 30)),
    Client("web_search", search, limits(20, 20, 20, 20)),
    Client("gateway's greeting", member(lambda client, peer: client.greet(peer)), limits(3, 12)),
    Client("gateway's turn", member(follow_turn), limits(3, 12, 12, 12)),
    Client("terminal chat", call_gateway, limits(5, 60, 60, 60)),
    Client("MCP over HTTP", list_tools, limits(20, 120, 120, 120)),
]


@pytest.mark.parametrize(
    ("client", "stops"),
    [(client, stops) for client in CLIENTS for stops in client.seconds],
    ids=[f"{client.name}: {stops}" for client in CLIENTS for stops in client.seconds],
)
async def test_a_call_ends_after_its_time_limit_wherever_the_peer_stops(
    client: Client, stops: str, tmp_path: Path
) -> None:
    limit = client.seconds[stops]
    async with stopping_peer(client, stops) as (url, is_waited_for):
        calling = asyncio.ensure_future(client.call(url, tmp_path))
        await is_waited_for()
        passed = await seconds_until_done(calling, limit + LATEST)
        assert calling.done(), f"it still waits after {passed} seconds"
        await calling
    assert limit - EARLIEST <= passed


async def test_events_that_stop_are_asked_for_again_after_a_minute() -> None:
    client = Client("events", call_gateway, {}, b"data: {", STREAM)
    async with (
        stopping_peer(client, IN_BODY) as (url, is_asked),
        GatewayClient(GatewayAddress(url, "token")) as chat,
        aclosing(chat.follow("turn_1")) as events,
    ):
        following = asyncio.ensure_future(anext(events))
        await is_asked()
        again = asyncio.ensure_future(is_asked())
        passed = await seconds_until_done(again, 60 + LATEST)
        assert again.done()
        assert passed >= 60 - EARLIEST
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_an_mcp_server_on_pipes_that_is_silent_ends_its_call_or_its_start(tmp_path: Path) -> None:
    """Ending a process takes real time, so the clock does not move for long after the limit."""
    deaf = McpServer(("/bin/sh", "-c", "touch begun; exec sleep 600"), start_timeout=timedelta(seconds=110))
    async with open_world(tmp_path, {"one": scripted(timeout=timedelta(seconds=100))}) as world:
        await world.ready()
        call = asyncio.ensure_future(world.error("mcp_one_slow", seconds=10_000))
        await until(lambda: world.events)  # it tells its progress, and then nothing
        start = asyncio.ensure_future(
            probe_server(world.home, "two", deaf, {}, is_own_secret=lambda name: False)
        )
        await until(lambda: list(world.home.rglob("begun")))
        assert 99 <= await seconds_until_done(call, 102) < 102
        assert "within 100 seconds" in await call
        await seconds_until_done(start, 8)
        assert not start.done()
        await seconds_until_done(start, 3)
        with pytest.raises(ToolError, match="within 110 seconds"):
            await start


async def test_a_postgresql_that_is_silent_ends_the_wait_for_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver has its own clock, which is faster here. Without a limit it waits for 130 seconds."""

    def now() -> float:
        return time.monotonic() * 20

    monkeypatch.setattr("psycopg.waiting.monotonic", now)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/db"
        began = now()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            await connect_listener(url, "test")
        listened = now()
        with pytest.raises(StoreError, match="timeout"):
            connect(url)
    assert 5 <= listened - began < 100
    assert 5 <= now() - listened < 100
    gc.collect()  # the driver leaves its sockets to it
