"""Which credentials create and revoke tokens that operate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.http.test_roles import add_token, bearer
from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer


@pytest.fixture
async def api(tmp_path: Path, model: ModelServer) -> AsyncIterator[Api]:
    async with in_process(tmp_path / "home", model) as api:
        yield api


async def test_a_named_token_creates_and_revokes_no_token_that_operates(api: Api) -> None:
    named: dict[str, Any] = {"headers": bearer(await add_token(api, "ops", "operate"))}
    await add_token(api, "spare", "operate")
    refused = await api.post("/api/tokens", {"name": "more", "role": "operate"}, 403, **named)
    assert refused["error"]["type"] == "token_needed"
    refused = await api.post("/api/tokens/revoke", {"name": "spare"}, 403, **named)
    assert refused["error"]["type"] == "token_needed"
    names = {item["name"] for item in (await api.get("/api/tokens"))["tokens"]}
    assert names == {"ops", "spare"}
    for role in ("read", "chat"):
        await api.post("/api/tokens", {"name": role, "role": role}, 201, **named)
        await api.post("/api/tokens/revoke", {"name": role}, **named)
    await api.post("/api/tokens/revoke", {"name": "none"}, 404, **named)
    await api.post("/api/tokens/revoke", {"name": "ops"}, **named)  # it may end itself
    await api.post("/api/tokens/revoke", {"name": "spare"})
