"""`GET /api/search` and the tool `session_search` over a real gateway: what is found, where, and by whom."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from support.gateway import Api
from talaria.core.ids import ChatAddress
from talaria.core.messages import Text, ToolResults
from talaria.core.turns import Inbound, Sender

FERRY = "[[reply Noted.]] The ferry to Hjelmvik leaves at six."


async def found(api: Api, query: str, **more: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await api.get("/api/search", params={"q": query}, **more))["items"]
    return items


async def test_what_was_said_is_found_with_its_place_and_date(api: Api) -> None:
    said = await api.say("trip", FERRY)
    await api.say("food", "[[reply Fish soup.]] What is for lunch?")
    hit = (await found(api, "when does the ferry leave"))[0]
    assert (hit["session_id"], hit["name"], hit["speaker"]) == (said["session_id"], "trip", "user")
    assert hit["title"] == "[[reply Noted.]] The ferry to Hjelmvik leaves at six."
    assert "ferry to Hjelmvik" in hit["excerpt"]
    assert hit["at"] >= said["accepted_at"]
    entries = (await api.get(f"/api/sessions/{hit['session_id']}/entries"))["entries"]
    (entry,) = [entry for entry in entries if entry["seq"] == hit["seq"]]
    assert entry["body"]["type"] == "user"
    assert await found(api, "helicopter") == []
    assert [hit["name"] for hit in await found(api, "ferry")] == ["trip"]


async def test_chinese_japanese_and_accents_are_found(api: Api) -> None:
    await api.say("jp", "[[reply 了解です。]] フェリーは朝六時に出ます")
    await api.say("fr", "[[reply D'accord.]] Le café de la gare ouvre à sept heures")
    assert [hit["name"] for hit in await found(api, "フェリー")] == ["jp"]
    assert [hit["name"] for hit in await found(api, "CAFE gare")] == ["fr"]


async def test_a_caller_finds_only_what_it_may_read(api: Api) -> None:
    async def token(name: str, role: str) -> dict[str, str]:
        secret = (await api.post("/api/tokens", {"name": name, "role": role}, 201))["secret"]
        return {"Authorization": f"Bearer {secret}"}

    phone, laptop, reader = (
        await token("phone", "chat"),
        await token("laptop", "chat"),
        await token("r", "read"),
    )
    await api.say("trip", FERRY)
    await api.say("trip", "[[reply Aha.]] My ferry is the red one", headers=phone)
    assert {hit["excerpt"] for hit in await found(api, "ferry", headers=phone)} == {
        "[[reply Aha.]] My ferry is the red one"
    }
    assert await found(api, "ferry", headers=laptop) == []
    assert len(await found(api, "ferry", headers=reader)) == 2


async def test_a_deleted_session_is_never_found(api: Api) -> None:
    said = await api.say("trip", FERRY)
    assert await found(api, "ferry")
    async with api.client.delete(f"{api.url}/api/sessions/{said['session_id']}") as response:
        assert response.status == 200
    assert await found(api, "ferry") == []


async def test_pages_hold_every_hit_once(api: Api) -> None:
    for number in range(7):
        await api.say(f"many-{number}", f"[[reply ok {number}]] marmalade recipe {number}")
    seen: list[str] = []
    after = ""
    for _ in range(9):
        page = await api.get("/api/search", params={"q": "marmalade", "limit": "3", "after": after})
        seen += [hit["name"] for hit in page["items"]]
        after = page["next"] or ""
        if not after:
            break
    assert sorted(seen) == [f"many-{number}" for number in range(7)]


BAD_SEARCHES = [
    ({}, "In the field `q`: it is missing."),
    ({"q": "  "}, "The search query is empty"),
    ({"q": "x" * 1001}, "`q`: expected `str` of length <= 1000"),
    ({"q": "?!"}, "The query has no words"),
    ({"q": "ferry", "limit": "0"}, "`limit`: expected `int` >= 1"),
    ({"q": "ferry", "limit": "x"}, "limit"),
    ({"q": "ferry", "after": "elsewhere"}, "page of the search"),
    ({"q": "ferry", "after": "9" * 300}, "`after`: expected `str` of length <= 200"),
]


async def test_a_bad_search_says_what_is_wrong(api: Api) -> None:
    for params, said in BAD_SEARCHES:
        error = (await api.get("/api/search", 400, params=params))["error"]
        assert said in error["message"], params


# -- the tool ---------------------------------------------------------------------------------------------


async def ask(api: Api, chat: ChatAddress, text: str) -> str:
    """Say something in a chat of a platform, and return what tools gave back."""
    inbound = Inbound(chat.key(), Sender(chat.chat, "Somebody"), (Text(text),))
    turn = await api.gateway.turns.wait(await api.gateway.turns.submit(inbound))
    entries = await api.gateway.store.log(turn.session_id, 0)
    results = [entry.body for entry in entries if isinstance(entry.body, ToolResults)]
    return "\n".join(result.text for body in results for result in body.results)


SEARCH = '[[call session_search {"query":"ferry Hjelmvik"}]] when was it?'


async def test_the_owner_hears_on_one_channel_what_was_said_on_another(api: Api) -> None:
    await ask(api, ChatAddress("main", "telegram", "dm", "7"), FERRY)
    turn = await api.say("page", SEARCH)
    entries = await api.gateway.store.log(turn["session_id"], 0)
    (text,) = [body.results[0].text for entry in entries if isinstance(body := entry.body, ToolResults)]
    line = text.splitlines()[0]
    assert "telegram, “[[reply Noted.]] The ferry" in line
    assert f"{datetime.now().astimezone():%Y-%m-%d}" in line
    assert "when was it" not in text, "the question itself is no answer"
    found = line[1 : line.index("]")]
    turn = await api.say("page", f'[[call recall_expand {{"id":"{found}"}}]] all of it')
    entries = await api.gateway.store.log(turn["session_id"], 0)
    texts = [body.results[0].text for entry in entries if isinstance(body := entry.body, ToolResults)]
    assert texts[-1].endswith("leaves at six.")


async def test_a_search_is_not_found_by_the_next_one(api: Api) -> None:
    await api.say("trip", FERRY)
    await api.say("page", SEARCH)
    hits = [*await found(api, "ferry Hjelmvik"), *await found(api, "session_search")]
    assert sorted(hit["speaker"] for hit in hits) == ["assistant", "user", "user", "user"]
    assert not any("[call]" in hit["excerpt"] for hit in hits)


async def test_nobody_hears_what_another_person_or_a_group_said(api: Api) -> None:
    ann, bob = (ChatAddress("main", "telegram", "dm", name) for name in ("7", "8"))
    group = ChatAddress("main", "telegram", "group", "-5")
    await ask(api, ann, FERRY)
    assert "Hjelmvik leaves" in await ask(api, ann, SEARCH)
    assert "Nothing was found" in await ask(api, bob, SEARCH)
    assert "Nothing was found" in await ask(api, group, SEARCH)
    await ask(api, group, FERRY.replace("six", "nine"))
    heard = await ask(api, group, SEARCH)
    assert "at nine" in heard
    assert "at six" not in heard
    assert "at nine" not in await ask(api, bob, SEARCH)


async def test_a_search_without_words_is_told_to_the_model(api: Api) -> None:
    said = await ask(
        api, ChatAddress("main", "telegram", "dm", "7"), '[[call session_search {"query":"?!"}]]'
    )
    assert "no words" in said
