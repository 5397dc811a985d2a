"""Turns of another member, followed over real HTTP: whole, in order, once, and healing when streams break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from store.cutting_proxy import CuttingProxy
from support.gateway import TOKEN, in_process
from support.rig import inbound
from support.waiting import until
from talaria.access.credentials import Logins
from talaria.channels.http.cluster_api import ClusterApi
from talaria.channels.http.login_api import LOGIN_PATH, MemberLogin
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING
from talaria.channels.http.routes import create_app
from talaria.channels.http.server import HttpServer, allowed_hosts, bind
from talaria.cluster import signing
from talaria.cluster.following import PeerClient, PeerTiming, PeerUnreachable
from talaria.cluster.signing import (
    MAC_HEADER,
    ROLE_HEADER,
    AnswerSigner,
    ClusterKey,
    PassedEvent,
    SignedCall,
    decode_line,
)
from talaria.core.cluster import Member, StopAsked, Wake
from talaria.core.events import Delta, Done, Event, Queued, Reset, ToolOutput, ToolStarted
from talaria.core.ids import OwnerId, PlaceId, TurnId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh, TurnEnd
from talaria.core.turns import Turn, TurnState
from talaria.gateway import Gateway
from talaria.testing.model_server import ModelServer
from talaria.turns.followed import FollowedTurns
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.states import LiveState

SECRET = "a-cluster-token-for-tests"
HERE, THERE = OwnerId("own_here"), OwnerId("own_there")
QUICK = PeerTiming(1.0, silence_seconds=0.4, keep_alive_seconds=0.05, look_seconds=0.01, take_up_seconds=0.05)


class Directory:
    """Which member has the chats, as the store tells it."""

    def __init__(self) -> None:
        self.member: Member | None = None
        self.asked: list[TurnId] = []
        self.woken: list[OwnerId | None] = []

    async def member_of_turn(self, turn_id: TurnId) -> Member | None:
        return self.member

    async def ask_stop(self, turn_id: TurnId, by: str) -> StopAsked:
        self.asked.append(turn_id)
        return StopAsked(turn_id, THERE)

    async def wake(self, what: Wake, owner: OwnerId | None = None) -> None:
        self.woken.append(owner)


class Stage:
    """A gateway that has turns, and the turns of another process that follows them."""

    def __init__(
        self, gateway: Gateway, address: str, proxy: CuttingProxy, peers: PeerClient, logins: Logins
    ) -> None:
        self.gateway = gateway
        self.logins = logins
        self.address = address
        self.there = gateway.turns.owner
        self.proxy = proxy
        self.directory = Directory()
        self.directory.member = self.member(address)
        self.here = LiveTurns(gateway.clock, gateway.metrics)
        self.peers = peers
        cluster: Any = self.directory
        self.followed = FollowedTurns(gateway.store, cluster, self.here, peers, HERE)
        self.here.use_followed(self.followed.find)

    def member(self, address: str) -> Member:
        return Member(self.gateway.turns.owner, PlaceId("p"), "boot", "host", address, "1", 24, 0.0)

    def signed(
        self, method: str, path: str, role: str, body: bytes = b"", *, token: str = SECRET, to: str = ""
    ) -> dict[str, str]:
        """Return the headers of a call by another member."""
        now = self.gateway.store.clock.now()
        call = SignedCall.new(OwnerId(to) or self.there, now, method, path, role=role, body=body)
        return {"authorization": call.credential(ClusterKey(token)), ROLE_HEADER: role}

    @property
    def connections(self) -> int:
        return int(self.gateway.limits.readings()["connections"].used or 0)

    async def accept(self, name: str = "one") -> Turn:
        """Return a row that is not in the hands of any process."""
        order = Accept(new_turn_id(), inbound("hello", name), Fresh(new_session_id(), None))
        return (await self.gateway.store.accept(order)).turn

    def take_up(self, turn: Turn, *events: Event) -> LiveTurn:
        """Let the gateway have the turn, as far as these events."""
        live = self.gateway.turns.live.open(turn)
        for event in events:
            live.emit(event)
        return live

    async def settle(self, live: LiveTurn, reply: str) -> None:
        row = await self.gateway.store.settle(live.turn.id, TurnEnd(TurnState.DONE, reply))
        self.gateway.turns.live.settle(live, row)


@asynccontextmanager
async def listen(
    gateway: Gateway, timing: PeerTiming, logins: Logins
) -> AsyncIterator[tuple[HttpServer, CuttingProxy]]:
    """Serve the API to other members, also through a proxy that loses connections."""
    settings = gateway.settings.of(HTTP)
    bound = bind(settings)
    proxy = CuttingProxy(bound.port)
    hosts = allowed_hosts(settings, bound) | {f"127.0.0.1:{proxy.port}"}
    member = replace(gateway, peers=PeerClient(SECRET, timing, now=gateway.store.clock.now))
    app = create_app(member, settings, logins, hosts, DEFAULT_TIMING)
    server = HttpServer(app, bound, gateway.limits)
    await server.start()
    try:
        yield server, proxy
    finally:
        await server.stop(1.0)
        proxy.close()


@asynccontextmanager
async def open_stage(
    tmp_path: Path, timing: PeerTiming = QUICK, most_streams: int = 256
) -> AsyncIterator[Stage]:
    async with (
        ModelServer() as model,
        in_process(tmp_path / "home", model) as api,
        listen(api.gateway, timing, logins := Logins(TOKEN, api.gateway.clock)) as (server, proxy),
    ):
        peers = PeerClient(SECRET, timing, most_streams, now=api.gateway.store.clock.now)
        stage = Stage(api.gateway, server.address, proxy, peers, logins)
        try:
            yield stage
        finally:
            await stage.followed.close()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    before = asyncio.all_tasks()
    async with open_stage(tmp_path) as stage:
        yield stage
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}


class Reader:
    """Collects what a follower gets."""

    def __init__(self, live: LiveTurn) -> None:
        self.events: list[Event] = []
        self._live = live
        self._arrived = asyncio.Condition()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with aclosing(self._live.follow()) as events:
            async for _, event in events:
                async with self._arrived:
                    self.events.append(event)
                    self._arrived.notify_all()

    async def until(self, *events: Event) -> None:
        """Wait until the last events are these. Texts that came in pieces count as one."""
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(lambda: joined(self.events)[-len(events) :] == [*events])

    async def end(self) -> list[Event]:
        async with asyncio.timeout(20):
            await self._task
        return joined(self.events)


def joined(events: Sequence[Event]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Delta) and isinstance(last, Delta):
            found[-1] = Delta(last.text + event.text)
        else:
            found.append(event)
    return found


async def test_a_follower_gets_all_events_from_the_beginning_and_the_end_from_the_row(stage: Stage) -> None:
    turn = await stage.accept()
    there = stage.take_up(turn, Queued(1), Delta("Hel"), ToolStarted("c1", "look", '{"a": "ü"}'))
    followed = stage.here.find(turn)
    assert followed is stage.here.find(turn), "all followers share one stream"
    reader = Reader(followed)
    await reader.until(ToolStarted("c1", "look", '{"a": "ü"}'))
    late = Reader(followed)
    there.emit(ToolOutput("c1", "seen"))
    await reader.until(ToolOutput("c1", "seen"))
    await stage.settle(there, "Hello")
    assert await reader.end() == await late.end()
    assert reader.events == [
        Queued(1),
        Delta("Hel"),
        ToolStarted("c1", "look", '{"a": "ü"}'),
        ToolOutput("c1", "seen"),
        Done("Hello"),
    ]
    assert followed.settled.result().reply == "Hello"
    assert stage.here.find(followed.turn).is_recorded


async def test_a_turn_that_nobody_follows_is_not_read(stage: Stage) -> None:
    turn = await stage.accept()
    stage.take_up(turn)
    stage.here.find(turn)
    assert len(stage.followed) == 0


async def test_a_turn_that_is_not_taken_up_yet_is_waited_for(tmp_path: Path) -> None:
    async with open_stage(tmp_path, PeerTiming(look_seconds=600.0)) as stage:
        turn = await stage.accept()
        reader = Reader(stage.here.find(turn))
        await until(lambda: stage.connections, pause=0)
        there = stage.take_up(turn, Delta("Now"))
        await reader.until(Delta("Now"))
        await stage.settle(there, "Now")
        assert await reader.end() == [Delta("Now"), Done("Now")]


async def test_all_requests_for_a_turn_are_answered_when_it_is_taken_up(stage: Stage) -> None:
    api = ClusterApi(stage.gateway, PeerTiming(take_up_seconds=10.0), stage.logins, 0)
    turn = await stage.accept()
    requests = [asyncio.create_task(api._find(turn.id)) for _ in range(2)]
    await asyncio.sleep(0)
    there = stage.take_up(turn)
    assert await asyncio.gather(*requests) == [there, there]


async def test_a_broken_connection_goes_on_where_it_was(stage: Stage) -> None:
    proxy = stage.proxy
    stage.directory.member = stage.member(f"http://127.0.0.1:{proxy.port}")
    turn = await stage.accept()
    there = stage.take_up(turn, Delta("one "))
    reader = Reader(stage.here.find(turn))
    await reader.until(Delta("one "))
    proxy.lose()
    there.emit(Delta("two "))
    proxy.is_gone = False
    await reader.until(Delta("one two "))
    await stage.settle(there, "one two three")
    assert await reader.end() == [Delta("one two "), Done("one two three")]


async def test_after_another_process_took_over_the_text_begins_anew(stage: Stage) -> None:
    turn = await stage.accept()
    first = stage.take_up(turn, Queued(1), Delta("half an ans"))
    reader = Reader(stage.here.find(turn))
    await reader.until(Delta("half an ans"))
    stage.gateway.turns.live.let_go(first)
    second = stage.take_up(turn, Delta("a whole answer"))
    await reader.until(Reset(), Delta("a whole answer"))
    await stage.settle(second, "a whole answer")
    assert await reader.end() == [
        Queued(1),
        Delta("half an ans"),
        Reset(),
        Delta("a whole answer"),
        Done("a whole answer"),
    ]


async def test_a_turn_that_comes_here_is_followed_here(stage: Stage) -> None:
    turn = await stage.accept()
    first = stage.take_up(turn, Delta("there"))
    reader = Reader(stage.here.find(turn))
    await reader.until(Delta("there"))
    here = stage.here.open(turn)
    here.emit(Delta("here"))
    stage.gateway.turns.live.let_go(first)
    await reader.until(Reset(), Delta("here"))
    stage.here.settle(here, await stage.gateway.store.settle(turn.id, TurnEnd(TurnState.DONE, "here")))
    assert await reader.end() == [Delta("there"), Reset(), Delta("here"), Done("here")]


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_a_turn_that_ends_between_two_looks_has_its_end(stage: Stage, is_reachable: bool) -> None:
    """Nobody has it, or the member that has it cannot be reached."""
    if not is_reachable:
        stage.directory.member = None
    turn = await stage.accept()
    followed = stage.here.find(turn)
    reader = Reader(followed)
    await stage.gateway.store.settle(turn.id, TurnEnd(TurnState.DONE, "over"))
    assert await reader.end() == [Done("over")]


async def test_a_member_that_is_silent_is_left(stage: Stage) -> None:
    """As one that was stopped: its connections are open, and nothing comes."""

    kind = ("content-type", "application/octet-stream")

    async def hold(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={MAC_HEADER: signer_of(request).head(200, [kind])})
        await answer.prepare(request)
        await is_over.wait()
        return answer

    is_over = asyncio.Event()
    turn = await stage.accept()
    async with stranger(hold) as url:
        stage.directory.member = stage.member(url)
        reader = Reader(stage.here.find(turn))
        await until(lambda: stage.there in stage.peers.unreachable)
        assert "in time" in stage.peers.unreachable[stage.there]
        stage.directory.member = stage.member(stage.address)
        there = stage.take_up(turn, Delta("back"))
        await reader.until(Delta("back"))
        await stage.settle(there, "back")
        assert await reader.end() == [Delta("back"), Done("back")]
        assert not stage.peers.unreachable
        is_over.set()


async def test_an_answer_that_is_no_stream_ends_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing, "MOST_BYTES", 64)
    event = b'{"type":"event","number":1,"event":{"type":"delta"}}\n'
    bodies = [b"<html>\n", b'{"type":"head"}\n', event, b"x" * 99]
    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        return signed_answer(request, bodies[(calls - 1) % len(bodies)])

    turn = await stage.accept()
    async with stranger(answer) as url:
        stage.directory.member = stage.member(url)
        reader = Reader(stage.here.find(turn))
        await until(lambda: calls > len(bodies))
        await stage.gateway.store.settle(turn.id, TurnEnd(TurnState.DONE, "over"))
        assert await reader.end() == [Done("over")]


def test_an_event_that_a_newer_version_has_is_left_out() -> None:
    line = decode_line(b'{"type":"event","number":3,"event":{"type":"song","text":"la"},"more":1}')
    assert isinstance(line, PassedEvent)
    assert (line.number, line.decode()) == (3, None)


async def test_more_streams_than_allowed_read_the_rows_only(tmp_path: Path) -> None:
    async with open_stage(tmp_path, most_streams=1) as stage:
        first, second = await stage.accept("one"), await stage.accept("two")
        live = stage.take_up(first, Delta("a")), stage.take_up(second, Delta("b"))
        reader = Reader(stage.here.find(first))
        await reader.until(Delta("a"))
        other = Reader(stage.here.find(second))
        await stage.settle(live[1], "b")
        assert await other.end() == [Done("b")]
        await stage.settle(live[0], "a")
        assert await reader.end() == [Delta("a"), Done("a")]


async def test_closing_lets_followers_go_and_ends_all_streams(stage: Stage) -> None:
    turn = await stage.accept()
    stage.take_up(turn, Delta("a"))
    followed = stage.here.find(turn)
    reader = Reader(followed)
    await reader.until(Delta("a"))
    await stage.followed.close()
    assert await reader.end() == [Delta("a")]
    assert followed.state is LiveState.LET_GO
    assert len(stage.followed) == 0


# -- who is let in, and who gets the token ------------------------------------------------------------------


async def test_only_the_cluster_token_opens_the_cluster(stage: Stage) -> None:
    table = [
        (SECRET, "read", 404),
        (SECRET, "", 400),
        (SECRET, "king", 400),
        (SECRET[:-1], "read", 401),
        (TOKEN, "operate", 401),
        ("", "read", 401),
    ]
    async with aiohttp.ClientSession() as client:
        for token, role, status in table:
            for path in ("/cluster/turns/turn_0/events", "/cluster/nothing"):
                headers = stage.signed("GET", path, role, token=token) if token else {ROLE_HEADER: role}
                async with client.get(stage.address + path, headers=headers) as answer:
                    assert (token, role, answer.status) == (token, role, status)
                    assert SECRET.encode() not in (text := await answer.read())
                    assert status != 401 or b"cluster.token_env" in text, "the hint names the right token"


async def test_a_member_of_an_older_version_gets_a_login_for_a_code(stage: Stage) -> None:
    body = msgspec.json.encode({"code": stage.logins.new_code()})
    there = stage.member(stage.address)
    async with stage.peers.call(there, "POST", LOGIN_PATH, "operate", data=body) as answer:
        login = msgspec.json.decode(await answer.read(), type=MemberLogin)
    assert stage.logins.find(login.cookie, login.secret) is not None


async def test_the_cluster_token_opens_nothing_else(stage: Stage) -> None:
    bearer = {"authorization": f"Bearer {SECRET}", ROLE_HEADER: "operate"}
    async with aiohttp.ClientSession() as client:
        for path in ("/api/status", "/api/turns", "/clusters", "/cluster"):
            for headers in (bearer, stage.signed("GET", path, "operate")):
                async with client.get(stage.address + path, headers=headers) as answer:
                    assert answer.status == 401


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 200),
        ({"method": "GET"}, 401),
        ({"path": "/cluster/files?chat=b&name=n"}, 401),
        ({"path": "/cluster/files"}, 401),
        ({"role": "chat"}, 401),
        ({"body": b"other"}, 401),
        ({"to": "own_other"}, 401),
        ({"seconds": 31.0}, 401),
        ({"seconds": -31.0}, 401),
    ],
    ids=str,
)
async def test_a_call_is_the_one_that_was_signed(stage: Stage, changed: dict[str, Any], status: int) -> None:
    """Each part of the call is changed after it was signed; and the time, before."""
    made: dict[str, Any] = {
        "method": "POST",
        "path": "/cluster/login",
        "role": "operate",
        "body": b'{"code": "x"}',
    }
    signed = made | {name: value for name, value in changed.items() if name in made}
    now = stage.gateway.store.clock.now() + changed.get("seconds", 0.0)
    signed["target"] = signed.pop("path")
    call = SignedCall.new(OwnerId(changed.get("to", stage.there)), now, **signed)
    headers = {"authorization": call.credential(ClusterKey(SECRET)), ROLE_HEADER: "operate"}
    async with (
        aiohttp.ClientSession() as client,
        client.post(stage.address + "/cluster/login", data=made["body"], headers=headers) as answer,
    ):
        assert answer.status == (404 if status == 200 else status), "nobody has made the code"


async def test_a_call_that_is_sent_again_is_refused(stage: Stage) -> None:
    headers = stage.signed("GET", "/cluster/greeting", "read")
    async with aiohttp.ClientSession(headers=headers) as client:
        statuses = []
        for _ in range(2):
            async with client.get(stage.address + "/cluster/greeting") as answer:
                statuses.append(answer.status)
    assert statuses == [204, 401]


@pytest.mark.parametrize("what", ["status", "type", "a byte", "order", "cut", "another call"])
async def test_an_answer_is_the_one_that_the_member_signed(stage: Stage, what: str) -> None:
    """A relay between two members changes the answer."""
    lines = [b'{"type":"head","stream":"s","state":"running"}\n', b'{"type":"end"}\n']

    async def relay(request: web.Request) -> web.Response:
        signer = signer_of(request)
        if what == "another call":
            signer = AnswerSigner(ClusterKey(SECRET), "0" * 32)
        mac = signer.head(200, [("content-type", "text/plain")])
        pieces = [signer.piece(line, is_last=line is lines[-1]) for line in lines]
        if what == "order":
            pieces.reverse()
        body = b"".join(pieces[:1] if what == "cut" else pieces)
        body = body.replace(b"running", b"waiting") if what == "a byte" else body
        kind = "text/html" if what == "type" else "text/plain"
        return web.Response(
            body=body,
            status=206 if what == "status" else 200,
            headers={MAC_HEADER: mac, "content-type": kind},
        )

    async with stranger(relay) as url:
        read = []
        with pytest.raises(PeerUnreachable):
            async for line in stage.peers.turn_events(stage.member(url), TurnId("turn_0")):
                read.append(line)
    assert len(read) == (1 if what == "cut" else 0)


async def test_the_token_itself_is_accepted_while_an_older_gateway_is_alive(stage: Stage) -> None:
    headers = {"authorization": f"Bearer {SECRET}", ROLE_HEADER: "read"}
    older = msgspec.structs.replace(stage.member("http://127.0.0.1:1"), owner=OwnerId("own_old"), schema=23)
    cluster, statuses = stage.gateway.store.cluster, []
    async with aiohttp.ClientSession(headers=headers) as client:
        for step in (None, cluster.join(older, 30.0), cluster.leave(older.owner)):
            if step is not None:
                await step
            async with client.get(stage.address + "/cluster/greeting") as answer:
                statuses.append(answer.status)
                assert MAC_HEADER not in answer.headers
    assert statuses == [401, 204, 401]


async def test_the_token_follows_no_redirect_and_is_in_no_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str | None] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.Response()

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{elsewhere}/")

    turn = await stage.accept()
    async with stranger(note) as elsewhere, stranger(redirect) as url:
        stage.directory.member = stage.member(url)
        reader = Reader(stage.here.find(turn))
        await until(lambda: stage.there in stage.peers.unreachable)
        await stage.gateway.store.settle(turn.id, TurnEnd(TurnState.DONE, "over"))
        await reader.end()
    assert not seen
    assert "status 302" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("schema", [23, 24])
async def test_an_address_in_the_members_table_never_gets_the_cluster_token(
    stage: Stage, schema: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody who can write the table names an address, and a schema of an older version."""
    heard: list[str] = []

    async def note(request: web.Request) -> web.Response:
        heard.append(f"{request.rel_url} {[*request.headers.items()]} {await request.text()}")
        return web.json_response({"cookie": "x", "secret": "y"})

    async with stranger(note) as url:
        member = msgspec.structs.replace(stage.member(url), schema=schema)
        with pytest.raises(PeerUnreachable):
            await stage.peers.greet(member)
        with pytest.raises(PeerUnreachable):
            async with stage.peers.call(member, "POST", "/cluster/login", "operate", data=b"{}"):
                pass
    assert len(heard) == (2 if schema == 24 else 0)
    assert SECRET not in "".join(heard) + caplog.text


async def test_only_a_member_that_cannot_be_worked_with_counts_as_unreachable(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    is_over = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await is_over.wait()
        return web.Response()

    async def refuse(request: web.Request) -> web.Response:
        if request.path == "/cluster/greeting":
            return web.Response(status=204, headers={MAC_HEADER: signer_of(request).head(204, ())})
        error = {"type": "too_large", "message": "The folder is full.", "hint": "Delete files."}
        return signed_answer(request, msgspec.json.encode({"error": error}), 413)

    peers = stage.peers
    async with stranger(hang) as url:
        with pytest.raises(PeerUnreachable, match="in time"):
            await peers.greet(stage.member(url))
        is_over.set()
    assert "in time" in peers.unreachable[stage.there]
    async with stranger(refuse) as url:
        await peers.greet(stage.member(url))
        with pytest.raises(PeerUnreachable, match="The folder is full"):
            async with peers.call(stage.member(url), "POST", "/cluster/files", "chat"):
                pass
    assert not peers.unreachable, "it answers"
    caplog.clear()
    with pytest.raises(PeerUnreachable, match="no address yet"):
        await peers.greet(stage.member(""))
    assert not peers.unreachable and not caplog.text, "it is starting"


async def test_a_member_passes_nothing_on(stage: Stage) -> None:
    """What another member has asked for, and is not here, is not looked for at a third one."""
    turn = await stage.accept()
    stage.gateway.turns.live.use_followed(stage.followed.find)
    path = f"/cluster/turns/{turn.id}/events"
    async with (
        aiohttp.ClientSession(headers=stage.signed("GET", path, "read")) as client,
        client.get(stage.address + path) as answer,
    ):
        assert answer.status == 404
    assert len(stage.followed) == 0


def signer_of(request: web.Request) -> AnswerSigner:
    """Sign as a member that has the token."""
    nonce = request.headers["authorization"].partition("nonce=")[2][:32]
    return AnswerSigner(ClusterKey(SECRET), nonce)


def signed_answer(request: web.Request, body: bytes, status: int = 200) -> web.Response:
    signer = signer_of(request)
    headers = {"content-type": "text/plain"}
    headers[MAC_HEADER] = signer.head(status, headers.items())
    return web.Response(body=signer.piece(body, is_last=True), status=status, headers=headers)


@asynccontextmanager
async def stranger(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server that is no gateway. Gives its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
