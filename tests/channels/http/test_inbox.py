"""`GET /api/inbox`: what waits for a person or for the gateway. And reading a log from its end."""

from __future__ import annotations

from channels.http.test_roles import add_token, bearer
from support.gateway import Api
from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.ids import ChatKey, TurnId
from talaria.store.sql import delivery

ASK = '[[call ask_user {"question":"Which?","choices":["red","blue"]}]]'
NOBODY = ChatKey("agent:main:nowhere:dm:1")


async def test_all_that_is_open_is_listed_and_only_to_those_who_may_see_it(api: Api) -> None:
    other = bearer(await add_token(api, "other", "chat"))
    asking = await api.begin("one", ASK)
    while not (await api.get("/api/approvals"))["items"]:
        pass
    running = await api.begin("two", "[[hang]]")
    job = (await api.post("/api/jobs", {"text": "stretch", "every": "1h"}, 201))["id"]
    async with api.client.patch(f"{api.url}/api/jobs/{job}", json={"state": "paused"}) as response:
        assert response.status == 200
    await _owe(api, TurnId(asking), OutboxState.PENDING, "unsent")
    await _owe(api, TurnId(asking), OutboxState.FAILED, "given up")
    await _owe(api, TurnId(asking), OutboxState.SENT, "sent")
    await _owe(api, TurnId(asking), OutboxState.FAILED, "old", age=8 * 86_400.0)
    found = await api.get("/api/inbox")
    assert [item["turn_id"] for item in found["questions"]] == [asking]
    assert [(item["id"], item["state"]) for item in found["turns"]] == [
        (asking, "waiting"),
        (running, "running"),
    ]
    assert [(item["text"], item["state"]) for item in found["replies"]] == [
        ("unsent", "pending"),
        ("given up", "failed"),
    ]
    assert [(item["id"], item["state"]) for item in found["jobs"]] == [(job, "paused")]
    theirs = await api.get("/api/inbox", headers=other)
    assert theirs == {"questions": [], "turns": [], "replies": [], "jobs": []}
    await api.post(f"/api/turns/{running}/cancel")
    await api.post(f"/api/turns/{asking}/cancel")


async def _owe(api: Api, turn_id: TurnId, state: OutboxState, body: str, age: float = 0.0) -> None:
    now = api.gateway.store.clock.now() - age
    row = OutboxRow(0, turn_id, NOBODY, "nowhere", "1", body, state, now, now + 1e9)
    await api.gateway.store._executor.write(lambda tx: delivery.write_replies(tx, [row]))


async def test_a_paused_job_is_listed_however_many_jobs_are_older(api: Api) -> None:
    for number in range(3):
        await api.post("/api/jobs", {"text": "stretch", "every": "1h", "name": f"active-{number}"}, 201)
    await api.post("/api/jobs", {"text": "stretch", "every": "1h", "name": "late"}, 201)
    async with api.client.patch(f"{api.url}/api/jobs/late", json={"state": "paused"}) as response:
        assert response.status == 200
    assert [job["name"] for job in (await api.get("/api/inbox?limit=2"))["jobs"]] == ["late"]


async def test_a_session_is_pinned_archived_and_found_by_its_mark(api: Api) -> None:
    for name in ("one", "two", "three"):
        await api.say(name, "hello")
    other = bearer(await add_token(api, "other", "chat"))
    await api.post("/api/sessions/one/mark", {"mark": "pinned"})
    assert (await api.post("/api/sessions/two/mark", {"mark": "archived"}))["mark"] == "archived"
    await api.post("/api/sessions/one/mark", {"mark": "lost"}, 400)
    await api.post("/api/sessions/nowhere/mark", {"mark": "pinned"}, 404)
    marks = {item["name"]: item["mark"] for item in (await api.get("/api/sessions"))["items"]}
    assert marks == {"one": "pinned", "two": "archived", "three": ""}
    pinned = await api.get("/api/sessions?mark=pinned")
    assert [item["name"] for item in pinned["items"]] == ["one"]
    assert (await api.get("/api/sessions?mark=pinned", headers=other))["items"] == []
    await api.say("one", "it goes on")
    assert (await api.get("/api/sessions/one"))["mark"] == "pinned", "a turn keeps it"
    await api.post("/api/sessions/one/mark", {})
    assert (await api.get("/api/sessions?mark=pinned"))["items"] == []


async def test_a_chat_tells_its_commands_and_how_full_its_window_is(api: Api) -> None:
    new = await api.get("/api/sessions/one/options")
    branch = next(each for each in new["commands"] if each["name"] == "branch")
    assert (branch["arguments"], branch["origin"]) == ("[@ENTRY] [TITLE]", "")
    assert (new["context_tokens"], new["context_window"]) == (None, None)
    await api.say("one", "hello")
    used = await api.get("/api/sessions/one/options")
    assert 0 < used["context_tokens"] < used["context_window"]
    await api.get("/api/sessions/ses_nothing/options", 404)


async def test_a_log_is_read_backwards_in_pages_without_a_gap(api: Api) -> None:
    for n in range(4):
        await api.say("one", f"message {n}")
    whole = (await api.get("/api/sessions/one/entries?limit=500"))["entries"]
    read: list[int] = []
    before: str | None = "9007199254740991"
    while before is not None:
        page = await api.get(f"/api/sessions/one/entries?limit=3&before={before}")
        seqs = [entry["seq"] for entry in page["entries"]]
        assert seqs == sorted(seqs)
        read, before = [*seqs, *read], page["next"]
    assert read == [entry["seq"] for entry in whole]
    assert (await api.get("/api/sessions/one/entries?before=0"))["entries"] == []
    assert (await api.get("/api/sessions/one/entries?before=-1", 400))["error"]["type"] == "bad_request"


async def test_a_title_that_a_person_gives_stays(api: Api) -> None:
    turn = await api.say("one", "hello")
    session = (await api.get("/api/sessions/one"))["id"]
    async with api.client.patch(f"{api.url}/api/sessions/one", json={"title": " Trip\u202e "}) as response:
        assert (response.status, (await response.json())["title"]) == (200, "Trip")
    assert turn["state"] == "done"
    assert not await api.gateway.store.retitle(session, "hello", "another")
    assert (await api.get("/api/sessions/one"))["title"] == "Trip"
    async with api.client.patch(f"{api.url}/api/sessions/one", json={"title": " \u202e "}) as response:
        assert response.status == 400


async def test_turns_of_a_page_have_their_cost_questions_and_the_commands_between(api: Api) -> None:
    asked = await api.begin("one", ASK)
    while not (found := (await api.get("/api/approvals"))["items"]):
        pass
    await api.post(f"/api/approvals/{found[0]['id']}", {"answer": "blue"})
    await (await api.gateway.turns.find(TurnId(asked))).settled
    await api.say("one", "/title Colours")
    last = "/api/sessions/one/entries?before=9007199254740991&turns=1"
    answered, command = (await api.get(last))["turns"]
    assert (answered["id"], answered["state"], answered["command"]) == (asked, "done", "")
    assert float(answered["cost_usd"]) == 0
    (question,) = answered["questions"]
    assert (question["decision"]["text"], question["decision"]["by"]) == ("blue", "api")
    assert (command["command"], command["said"]) == ("title", "/title Colours")
    assert "Colours" in command["reply"]
    await api.say("one", "later")
    assert sorted(turn["said"] for turn in (await api.get(last))["turns"]) == ["", "", "/title Colours"]
    assert (await api.get("/api/sessions/one/entries"))["turns"] == []
    first = (await api.get("/api/sessions/one/entries?limit=2&turns=1"))["turns"]
    assert [turn["id"] for turn in first] == [asked], "the command came after this page"
