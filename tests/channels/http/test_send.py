"""Messages that programs send to chats: `POST /api/send`."""

from __future__ import annotations

from support.gateway import Api


async def test_message_is_in_the_chat_and_told_of(api: Api) -> None:
    home = await api.say("home", "hello")
    for chat in ("home", home["session_id"], "agent:main:http:api:home"):
        sent = await api.post("/api/send", {"chat": chat, "text": f"to {chat}"}, 202)
        story = (await api.get(f"/api/turns/{sent['id']}"))["story"]
        assert story[0]["kind"] == "sent"
    entries = (await api.get("/api/sessions/home/entries"))["entries"]
    told = [entry["body"]["text"] for entry in entries if entry["body"]["type"] == "announcement"]
    assert told == ["to home", f"to {home['session_id']}", "to agent:main:http:api:home"]


async def test_key_makes_a_retry_the_same_message(api: Api) -> None:
    await api.say("home", "hello")
    body, headers = {"chat": "home", "text": "once"}, {"Idempotency-Key": "k1"}
    first = await api.post("/api/send", body, 202, headers=headers)
    assert await api.post("/api/send", body, 202, headers=headers) == first
    await api.post("/api/send", {**body, "text": "twice"}, 422, headers=headers)


async def test_file_goes_along(api: Api) -> None:
    await api.say("home", "hello")
    async with api.client.post(f"{api.url}/api/files?name=a.txt", data=b"all is well") as response:
        upload = await response.json()
    sent = await api.post("/api/send", {"chat": "home", "files": [upload["id"]]}, 202)
    turn = await api.get(f"/api/turns/{sent['id']}")
    (file,) = turn["files"]
    async with api.client.get(f"{api.url}/api/files/{file['id']}") as response:
        assert await response.read() == b"all is well"


async def test_unknown_chat_and_empty_message_are_refused(api: Api) -> None:
    await api.say("home", "hello")
    missing = await api.post("/api/send", {"chat": "hoem", "text": "x"}, 404)
    assert "no chat hoem" in missing["error"]["message"]
    off = await api.post("/api/send", {"chat": "agent:main:telegram:dm:1", "text": "x"}, 400)
    assert "not connected" in off["error"]["message"]
    wrong = await api.post("/api/send", {"chat": "agent:other:http:api:home", "text": "x"}, 400)
    assert "agent" in wrong["error"]["message"]
    await api.post("/api/send", {"chat": "home", "text": " "}, 400)
