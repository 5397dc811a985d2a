"""`DELETE /api/sessions/X`: what goes, what stays, and what forbids it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from channels.http.test_roles import add_token, bearer
from channels.http.test_sent_files import SEND, put
from support.gateway import Api, in_process
from talaria.core.files import RESULTS
from talaria.core.ids import ChatKey
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder

ONE = "agent:main:http:api:one"


async def delete(api: Api, x: str, status: int = 200, **more: Any) -> Any:
    async with api.client.delete(f"{api.url}/api/sessions/{x}", **more) as response:
        assert response.status == status, await response.text()
        return await response.json()


def files_of(home: Path) -> set[str]:
    root = chat_folder(home, ChatKey(ONE))
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


async def test_a_session_goes_with_its_log_turns_and_files(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        own = {put(tmp_path, ONE, f"{number:0100}.txt", b"x").name for number in range(200)}
        put(tmp_path, ONE, "a.txt", b"secret")
        todo = '[[call todo {"items": [{"text": "rest"}]}]]'
        first = await api.say("one", f"[[call list_files {{}}]]{SEND % 'a.txt'}{todo}[[reply here]]")
        assert first["state"] == "done", first
        assert len(files_of(tmp_path) - own) == 4, "a.txt, its copy, the saved result, the list"
        other = await api.say("two", "hello")
        session_id = first["session_id"]
        assert any(agent["session_id"] == session_id for agent in (await api.get("/api/pool"))["agents"])

        assert await delete(api, "one") == {
            "id": session_id,
            "chat_key": "agent:main:http:api:one",
            "deleted": True,
        }
        for path in (
            f"/api/sessions/{session_id}",
            "/api/sessions/one",
            f"/api/sessions/{session_id}/entries",
            f"/api/turns/{first['id']}",
            f"/api/turns/{first['id']}/events",
            f"/api/files/{first['files'][0]['id']}",
        ):
            assert (await api.get(path, 404))["error"]["type"] == "not_found", path
        assert [item["id"] for item in (await api.get("/api/sessions"))["items"]] == [other["session_id"]]
        assert [agent["session_id"] for agent in (await api.get("/api/pool"))["agents"]] == [
            other["session_id"]
        ]
        assert files_of(tmp_path) == {"a.txt", *own}, "the chat's own files stay"
        assert (await api.get("/api/status"))["store"]["sessions"] == 1
        await delete(api, "one", 404)
        fresh = await api.say("one", "hello")
        assert fresh["session_id"] != session_id
        assert b"secret" not in model.bodies[-1] and b"list_files {}" not in model.bodies[-1]


async def test_it_is_refused_while_a_turn_is_not_over(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        turn_id = await api.begin("one", "[[hang]]")
        refused = await delete(api, "one", 409)
        assert refused["error"]["type"] == "busy"
        assert turn_id in refused["error"]["hint"]
        await api.post(f"/api/turns/{turn_id}/cancel")
        assert (await delete(api, "one"))["deleted"]


async def test_a_message_of_it_that_is_sent_again_does_not_run_again(tmp_path: Path) -> None:
    key = {"headers": {"Idempotency-Key": "k"}}
    async with ModelServer() as model:
        async with in_process(tmp_path, model) as api:
            first = await api.say("one", "hello", **key)
            await delete(api, "one")
            again = await api.say("one", "hello", **key)
            assert (again["id"], again["state"], again["reply"]) == (first["id"], "done", None)
        async with in_process(tmp_path, model) as api:
            assert (await api.say("one", "hello", **key))["id"] == first["id"]
            await api.get("/api/sessions/one", 404)
        assert len(model.bodies) == 1


async def test_a_branch_keeps_its_log_and_the_results_that_it_names(tmp_path: Path) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        for number in range(200):
            put(tmp_path, ONE, f"{number:0100}.txt", b"x")
        first = await api.say("one", "[[call list_files {}]][[reply here]]")
        await api.say("one", "/branch")
        branch = await api.get("/api/sessions/one")
        before = await api.get("/api/sessions/one/entries?limit=500")
        saved = {path for path in files_of(tmp_path) if path.startswith(RESULTS)}
        assert branch["id"] != first["session_id"] and saved and next(iter(saved)) in str(before)
        await delete(api, first["session_id"])
        assert await api.get("/api/sessions/one/entries?limit=500") == before
        assert saved <= files_of(tmp_path)
        assert (await api.say("one", "and now?"))["state"] == "done"


async def test_a_caller_deletes_its_own_only_and_each_deletion_is_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        phone, laptop, reader = [
            bearer(await add_token(api, *token))
            for token in (("phone", "chat"), ("laptop", "chat"), ("eye", "read"))
        ]
        mine = await api.say("demo", "mine", headers=phone)
        await delete(api, mine["session_id"], 404, headers=laptop)
        await delete(api, "demo", 404, headers=laptop)
        await delete(api, mine["session_id"], 403, headers=reader)
        with caplog.at_level(logging.INFO, logger="talaria.audit"):
            await delete(api, "demo", headers=phone)
        told = [vars(record) for record in caplog.records if record.message == "session.delete"]
        assert mine["session_id"] in str(told[-1])


async def test_its_room_in_the_database_is_used_again(tmp_path: Path) -> None:
    text = "x" * 1_000_000
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        sizes = []
        for _ in range(6):
            await api.say("one", f"[[reply ok]] {text}")
            await delete(api, "one")
            status = await api.get("/api/status")
            sizes.append(status["store"]["size_bytes"])
        assert sizes[-1] < 6 * len(text), sizes  # of 12 that were written
