"""Two gateways on one PostgreSQL: clients of one of them follow, stop and decide the turns of the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from channels.http.test_approvals import waiting
from channels.http.test_events import Sse, collect, open_stream, read
from channels.http.test_roles import add_token, bearer
from contracts.job_suite import add
from support.asking_tools import Danger, calling
from support.fake_outlet import FakeOutlet
from support.gateway import TOKEN, Api, in_process
from support.postgres_server import PostgresServer, postgres  # noqa: F401 - fixtures
from support.waiting import until
from talaria.core.cluster import Wake
from talaria.core.errors import ToolError
from talaria.core.ids import ChatAddress, ChatKey, OwnerId, PlaceId, TurnId, new_job_id
from talaria.core.jobs import (
    NOWHERE,
    AddJob,
    AfterProcess,
    ClaimSlots,
    Cron,
    JobOrigin,
    JobPlan,
    JobState,
    SlotState,
)
from talaria.core.ledger import Page
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.jobs.runs import JobRuns, ProcessEnds
from talaria.testing.model_server import ModelServer
from talaria.workspace.member_uploads import MemberUploads

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOW = "[[chunks 8]][[chunk-delay 0.02]][[words 40]]"


class Pair(NamedTuple):
    """Gateway `a` has the chat `one`; `b` is another one."""

    a: Api
    b: Api
    model: ModelServer
    danger: Danger


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,  # noqa: F811
) -> AsyncIterator[Pair]:
    danger, environ = Danger(), {"TALARIA_CLUSTER_TOKEN": "a-cluster-token-for-tests"}
    homes, url = tmp_path_factory.mktemp("homes"), postgres.new_database()
    tables = {"store": {"url": url}}
    async with (
        ModelServer() as model,
        in_process(homes / "a", model, tables=tables, parts=danger.parts(), environ=environ) as a,
        in_process(homes / "b", model, tables=tables, parts=danger.parts(), environ=environ) as b,
    ):
        assert (await a.say("one", "hello"))["reply"] == "You said: hello"
        yield Pair(a, b, model, danger)
    postgres.drop(url)


def text_of(events: list[Sse]) -> str:
    """The text that a client shows, before the last event."""
    text = ""
    for _, name, data in events:
        text = "" if name == "reset" else text + data["text"] if name == "delta" else text
    return text


async def test_identities_that_link_joins_are_joined_at_the_other_gateway(pair: Pair) -> None:
    here = ChatAddress("main", "telegram", "dm", "7").key()
    there = ChatAddress("main", "discord", "dm", "9").key()

    async def say(key: ChatKey, sender: str, text: str) -> str:
        turns = pair.a.gateway.turns
        live = await turns.submit(Inbound(key, Sender(sender), (Text(text),)))
        return str((await turns.wait(live)).reply)

    people = pair.b.gateway.people
    assert people.of_chat(here) != people.of_chat(there)
    code = (await say(here, "7", "/link")).split("is ")[1].split()[0]
    assert "one person" in await say(there, "9", f"/link {code}")
    await until(lambda: people.of_chat(here) == people.of_chat(there))


async def test_every_kind_of_client_of_the_other_gateway_is_served(pair: Pair) -> None:
    a, b = pair.a, pair.b
    said = await b.say("one", "second")
    assert said["reply"] == "You said: second"
    assert not b.gateway.turns.live and len(b.gateway.pool.stats().agents) == 0, "it ran where the chat is"
    turn_id = await b.begin("one", SLOW)
    there, here = await asyncio.gather(collect(a, turn_id), collect(b, turn_id))
    assert there[-1][2] == here[-1][2]
    assert text_of(there) == text_of(here) == here[-1][2]["reply"]
    await _complete(pair)


async def _complete(pair: Pair) -> None:
    """OpenAI's chat completions, whole and streamed."""
    a, b = pair.a, pair.b
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "third"}]}
    headers = {"X-Talaria-Session": "one"}
    whole = await b.post("/v1/chat/completions", body, headers=headers)
    assert whole["choices"][0]["message"]["content"] == "You said: third"
    assert whole["usage"]["total_tokens"] > 0
    body = {"messages": [{"role": "user", "content": SLOW}], "stream": True}
    async with b.client.post(f"{b.url}/v1/chat/completions", json=body, headers=headers) as answer:
        lines = [line.decode() async for line in answer.content if line.startswith(b"data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines]
    assert len(deltas) > 5, "it came in pieces"
    turn = await a.get(f"/api/turns/{answer.headers['X-Talaria-Turn-Id']}")
    assert "".join(deltas) == turn["reply"]


async def test_stops_and_decisions_reach_the_member_that_has_the_turn(pair: Pair) -> None:
    a, b, model, danger = pair
    hanging = await a.begin("one", "[[hang]]")
    await model.until(lambda: model.answering == 1)
    assert (await b.post(f"/api/turns/{hanging}/cancel"))["state"] == "cancelled"
    asking = await a.begin("one", calling("go"))
    async with open_stream(b, asking) as stream:
        [asked] = await waiting(b)
        await b.post(f"/api/approvals/{asked['id']}", {"decision": "approve"})
        events = [event async for event in read(stream)]
    names = [name for _, name, _ in events]
    assert names.count("approval") == names.count("approval.decided") == 1
    assert (names[-1], danger.ran) == ("done", ["go"])


async def test_a_client_goes_on_at_another_gateway_and_has_each_text_once(pair: Pair) -> None:
    turn_id = await pair.a.begin("one", SLOW)
    shown: list[Sse] = []
    last, gateways = None, [pair.a, pair.b, pair.a, pair.b]
    for number, gateway in enumerate(gateways):
        async with open_stream(gateway, turn_id, last) as stream:
            new = 0
            async for event in read(stream):
                assert last != event[0]
                shown.append(event)
                last, new = event[0], new + (event[1] == "delta")
                if new == 1 and number < len(gateways) - 1:
                    break
    assert [name for _, name, _ in shown].count("reset") == 3
    assert text_of(shown) == shown[-1][2]["reply"]
    async with pair.b.client.get(
        f"{pair.b.url}/api/turns/{turn_id}/events", headers={"Last-Event-ID": str(last)}
    ) as answer:
        assert answer.status == 204


async def test_the_feed_tells_the_turns_and_records_of_all_gateways(pair: Pair) -> None:
    a, b, model, _ = pair
    before = await a.begin("one", "[[hang]]")
    await model.until(lambda: model.answering == 1)
    seen: list[tuple[str, str]] = []
    async with b.client.get(f"{b.url}/api/events") as answer:
        feed = read(answer)

        async def heard(turn_id: str, state: str) -> None:
            async with asyncio.timeout(20):
                while (turn_id, state) not in seen:
                    _, name, data = await anext(feed)
                    seen.append((data.get("id", ""), name))

        await heard(before, "running")
        await a.post(f"/api/turns/{before}/cancel")
        await heard(before, "cancelled")
        after = (await a.say("one", "hello"))["id"]
        await heard(after, "done")
        await a.say("three", "hello")
        session = (await a.get("/api/sessions/three"))["id"]
        await heard(session, "session.created")
        async with a.client.patch(f"{a.url}/api/sessions/three", json={"title": "Talk"}) as renamed:
            assert renamed.status == 200
        await heard(session, "session.titled")
        assert len(a.gateway.turns.live.feed.listeners) == 1
        async with b.client.get(f"{b.url}/api/events"), a.client.get(f"{a.url}/api/events"):
            assert (await b.say("two", "hello"))["reply"] == "You said: hello"
        assert all(name != "lagged" for _, name in seen)
    await until(lambda: not a.gateway.turns.live.feed.listeners)


async def test_a_channel_that_one_gateway_has_shows_the_turns_of_the_other(pair: Pair) -> None:
    """As Telegram: one gateway polls it, and sends what the other one answers."""
    outlet, key = FakeOutlet(shows=True), ChatAddress("main", "test", "dm", "1").key()
    pair.b.gateway.delivery.attach("test", outlet, is_only=True)
    try:
        message = Inbound(key, Sender("u1"), (Text(SLOW),), address="1")
        live = await pair.a.gateway.turns.submit(message)
        reply = (await pair.a.gateway.turns.wait(live)).reply
        async with asyncio.timeout(20):
            while not outlet.taken:
                pair.b.gateway.delivery.wake()
                await asyncio.sleep(0.01)
        assert outlet.texts("1") == [reply]
        [shown] = outlet.messages.values()
        assert shown.edits > 2, "it was shown as it grew"
    finally:
        await pair.b.gateway.delivery.detach("test")


async def test_files_are_where_the_chat_is_whichever_gateway_gets_or_gives_them(pair: Pair) -> None:
    a, b = pair.a, pair.b
    async with b.client.post(f"{b.url}/api/files?name=note.txt", data=b"a note for one") as answer:
        upload = (await answer.json())["id"]
    key = ChatAddress("main", "http", "api", "one").key()
    for gateway in (b, a):  # the message may come by either, and again
        body = {"text": '[[call read_file {"path": "note.txt"}]]', "files": [upload]}
        turn = await gateway.post("/api/sessions/one/messages?wait=30", body)
        assert "a note for one" in turn["reply"], turn
    folder = a.gateway.chat_folder(key)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["note.txt"]
    assert not b.gateway.chat_folder(key).exists()
    async with a.client.get(f"{a.url}/api/files/{upload}") as answer:
        assert (await answer.read(), answer.headers["Content-Length"]) == (b"a note for one", "14")
    turn = await a.say("one", '[[call send_file {"path": "note.txt"}]]')
    [sent] = turn["files"]
    async with b.client.get(f"{b.url}/api/files/{sent['id']}", headers={"Range": "bytes=2-5"}) as answer:
        assert (answer.status, await answer.read()) == (206, b"note")
    for token, status in ((await add_token(a, "other-files", "chat"), 404), (TOKEN, 200)):
        async with a.client.get(f"{a.url}/api/files/{upload}", headers=bearer(token)) as answer:
            assert answer.status == status, "another member's upload belongs to its caller too"
    uploads = b.gateway.uploads
    assert isinstance(uploads, MemberUploads)
    assert await uploads.routes.read(key, "note.txt") == b"a note for one"
    with pytest.raises(ToolError, match="does not have it"):
        await uploads.routes.read(key, "../../../http.token")
    page = a.gateway.metrics.render().decode()
    assert 'route="/cluster/files",status="404"' in page and 'status="500"' not in page
    async with a.client.get(f"{a.url}/api/files/file_{'0' * 32}") as answer:
        assert answer.status == 404
    made = await b.post("/api/tokens", {"name": "guest", "role": "chat"}, status=201)
    guest = {"Authorization": f"Bearer {made['secret']}"}
    for lead in (f"../files?chat={quote(key)}&path=note.txt", f"../turns/{turn['id']}/events", sent["id"]):
        body = {"text": "show me the file of another's chat", "files": [lead]}
        async with b.client.post(f"{b.url}/api/sessions/own/messages", json=body, headers=guest) as answer:
            assert answer.status == 404, f"{lead} leads a guest into another's chat"
    text = "x " * 400_000
    assert (await b.say("one", text))["state"] == "done"
    assert not any(path.is_file() for path in b.gateway.chat_folder(key).rglob("*"))


async def test_a_login_that_one_gateway_made_or_ended_counts_at_the_other(pair: Pair) -> None:
    a, b = pair.a, pair.b
    code = (await a.post("/api/login/codes", status=201))["code"]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as browser:

        async def call(api: Api, method: str, path: str, cookie: str, secret: str) -> int:
            port = api.url.rpartition(":")[2]
            headers = {
                "Cookie": f"talaria_login_{port}={cookie}",
                "X-Talaria-Login": secret,
                "Origin": api.url,
            }
            async with browser.request(method, api.url + path, headers=headers) as answer:
                return answer.status

        async with browser.post(f"{b.url}/api/login", json={"code": code}) as answer:
            assert answer.status == 200
            secret = (await answer.json())["secret"]
            cookie = answer.headers["Set-Cookie"].partition("=")[2].partition(";")[0]
        for again in (a, b):
            async with browser.post(f"{again.url}/api/login", json={"code": code}) as answer:
                assert answer.status == 401, "a code is good for once"
            assert await call(again, "GET", "/api/turns", cookie, secret) == 200
        assert await call(a, "POST", "/api/logout", cookie, secret) == 204
        assert await call(a, "GET", "/api/turns", cookie, secret) == 401
        async with asyncio.timeout(20):
            while await call(b, "GET", "/api/turns", cookie, secret) != 401:
                await asyncio.sleep(0.05)


async def test_an_address_in_the_members_table_cannot_use_a_login_code(pair: Pair) -> None:
    """A gateway asks all others whether they have made a code. One of them could redeem it first."""
    a, b = pair.a, pair.b
    heard = bytearray()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(65536))
        heard.extend(await reader.read(65536) if heard.endswith(b"\r\n\r\n") else b"")
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert a.gateway.cluster is not None
    row = {"owner": OwnerId("own_spy"), "place": PlaceId("plc_spy"), "url": url, "started_at": 0.0}
    spy = msgspec.structs.replace(a.gateway.cluster.me, **row)
    await a.gateway.store.cluster.join(spy, 30.0)
    code = (await a.post("/api/login/codes", status=201))["code"]
    async with b.client.post(f"{b.url}/api/login", json={"code": code}) as answer:
        assert answer.status == 200
    await a.gateway.store.cluster.leave(spy.owner)
    server.close()
    await server.wait_closed()
    assert b"POST /cluster/login" in heard
    assert code.encode() not in heard


async def test_a_job_that_one_gateway_takes_is_known_to_the_scheduler_of_the_other(pair: Pair) -> None:
    rang, rings = asyncio.Event(), 0

    def ring() -> None:
        nonlocal rings
        rings += 1
        rang.set()

    pair.a.gateway.store.jobs.bell.watch(ring)
    await pair.b.post("/api/jobs", {"text": "say hello", "every": "1h", "name": "hello"}, 201)
    async with asyncio.timeout(10):
        await rang.wait()
    assert pair.a.gateway.cluster is not None
    heard = asyncio.Event()
    pair.a.gateway.cluster.on_wake(Wake.OUTBOX, heard.set)
    await pair.b.gateway.store.cluster.wake(Wake.OUTBOX)
    async with asyncio.timeout(10):
        await heard.wait()
    assert rings == 1, "what is heard is not told again"


async def test_a_job_after_a_process_is_left_to_the_gateway_that_has_the_process(pair: Pair) -> None:
    store, states = pair.a.gateway.store, []
    for name, place in (("placed", "plc_third"), ("free", "")):
        record = await store.turn_record(TurnId((await pair.a.say(name, "hello"))["id"]))
        assert record is not None
        if place:
            await store.cluster.place_chat(record.turn.chat_key, PlaceId(place))
        job = await add(store, schedule=AfterProcess(record.turn.session_id, "p1"))
        for api in (pair.a, pair.b):
            await ProcessEnds(api.gateway).look()
        found = await store.jobs.find(job.id)
        assert found is not None
        states.append(found.state)
    assert states == [JobState.ACTIVE, JobState.DONE], "a process that is nowhere has ended"


async def test_the_check_of_a_job_runs_at_the_gateway_that_has_the_files(pair: Pair) -> None:
    store, agent = pair.a.gateway.store, pair.a.gateway.settings.agent.name
    chat = ChatAddress(agent, "http", "api", "one").key()
    assert pair.a.gateway.cluster is not None
    place = pair.a.gateway.cluster.here.place
    assert await store.cluster.place_chat(chat, place) == place
    folder = pair.a.gateway.chat_folder(chat)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "news").write_text("it rains")
    plan = JobPlan("look", Cron("0 9 1 1 *"), "UTC", check="cat news", to=NOWHERE)
    origin = JobOrigin("ada", chat, Sender("u1"))
    job = await store.jobs.add(AddJob(new_job_id(), origin, plan, store.clock.now() + 3600, 10))
    await store.jobs.fire(job.id, 1000.0, is_manual=True)
    for claimed in await store.jobs.claim(ClaimSlots(pair.b.gateway.turns.owner, 10)):
        await JobRuns(pair.b.gateway).start(claimed)
    async with asyncio.timeout(30):
        while (slot := (await store.jobs.slots(job.id, Page())).items[-1]).ended_at is None:
            assert not slot.reason
            await asyncio.sleep(0)
    assert (slot.state, slot.attempts) == (SlotState.DONE, 1)
    assert slot.turn_id is not None
    record = await store.turn_record(slot.turn_id)
    assert record is not None and "it rains" in record.turn.inbound.text
