"""`/api/memory`: each caller reads and edits its own memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway import Api, in_process
from talaria.access.credentials import TokenAdmin
from talaria.core.access import Role
from talaria.testing.model_server import ModelServer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        yield api


def texts(view: Any) -> dict[str, str]:
    return {page["name"]: page["text"] for page in view["pages"]}


async def with_role(api: Api, role: Role) -> dict[str, str]:
    fresh = await TokenAdmin(api.gateway.store.tokens).add_token(f"a-{role}", role)
    return {"Authorization": f"Bearer {fresh.secret}"}


async def test_a_page_is_read_edited_and_never_overwritten_unseen(api: Api, tmp_path: Path) -> None:
    before = await api.get("/api/memory")
    assert (before["agent"], before["person"]) == ("main", "owner")
    assert texts(before) == {"MEMORY.md": "", "USER.md": ""}
    digest = before["pages"][0]["digest"]
    view = await api.post("/api/memory/MEMORY.md", {"text": "- Has a cat.", "digest": digest})
    assert texts(view)["MEMORY.md"] == "- Has a cat."
    assert (tmp_path / "memory" / "main" / "MEMORY.md").read_text().startswith("- Has a cat.\n")
    error = await api.post("/api/memory/MEMORY.md", {"text": "late", "digest": digest}, 400)
    assert "was changed meanwhile" in error["error"]["message"]
    error = await api.post("/api/memory/USER.md", {"text": "x" * 5000}, 400)
    assert "USER.md is full" in error["error"]["message"]
    await api.post("/api/memory/OTHER.md", {"text": ""}, 404)
    assert "- Has a cat." in (await api.say("one", "/memory"))["reply"]


async def test_a_caller_that_chats_has_memory_of_its_own(api: Api) -> None:
    await api.post("/api/memory/MEMORY.md", {"text": "- the owner's"})
    async with aiohttp.ClientSession(headers=await with_role(api, Role.CHAT)) as client:
        other = Api(api.gateway, api.server, client)
        view = await other.get("/api/memory")
        assert (view["person"], texts(view)["MEMORY.md"]) == ("http:token:a-chat", "")
        await other.post("/api/memory/MEMORY.md", {"text": "- the token's"})
        own = "agent:main:http:token:a-chat:x"
        assert texts(await other.get(f"/api/memory?chat={own}"))["MEMORY.md"] == "- the token's"
        await other.get("/api/memory?chat=agent:main:http:api:one", 403)
        await other.post("/api/memory/MEMORY.md?chat=agent:main:telegram:dm:2", {"text": ""}, 403)
        assert "the token's" in (await other.say("x", "/memory"))["reply"]
    assert texts(await api.get("/api/memory"))["MEMORY.md"] == "- the owner's"
    assert texts(await api.get(f"/api/memory?chat={own}"))["MEMORY.md"] == "- the token's"


async def test_operators_see_the_memory_of_a_chat_and_readers_do_not_write(api: Api) -> None:
    group = "agent:main:telegram:group:-5"
    view = await api.post(f"/api/memory/MEMORY.md?chat={group}", {"text": "- of the group"})
    assert (view["person"], view["chat"], texts(view)) == (
        None,
        "telegram:group:-5",
        {"MEMORY.md": "- of the group"},
    )
    await api.get("/api/memory?chat=nonsense", 400)
    async with aiohttp.ClientSession(headers=await with_role(api, Role.READ)) as client:
        reader = Api(api.gateway, api.server, client)
        assert texts(await reader.get(f"/api/memory?chat={group}"))["MEMORY.md"] == "- of the group"
        await reader.post("/api/memory/MEMORY.md", {"text": ""}, 403)


async def test_without_the_family_there_is_no_memory(tmp_path: Path) -> None:
    tables = {"tools": {"enabled": ["files"]}}
    async with ModelServer() as model, in_process(tmp_path, model, tables=tables) as api:
        await api.get("/api/memory", 404)
        assert "There is no memory here" in (await api.say("one", "/memory"))["reply"]
