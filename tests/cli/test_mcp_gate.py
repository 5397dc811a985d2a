"""The gate of `talaria mcp serve --http`, and what its tools refuse before they ask a gateway."""

from __future__ import annotations

import httpx2
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from talaria.cli.gateway_tools import CallPlace, gateway_tools
from talaria.cli.mcp_server import TokenGate, gateway_opener
from talaria.console.gateway_client import GatewayAddress, GatewayClient
from talaria.core.errors import BadRequest


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("inside")(scope, receive, send)


@pytest.mark.parametrize(
    ("authorization", "status"), [("", 401), ("Basic x", 401), ("Bearer ", 401), ("Bearer abc", 503)]
)
async def test_nobody_passes_whose_token_no_gateway_has_accepted(authorization: str, status: int) -> None:
    gate = TokenGate(inside, gateway_opener(lambda: None))
    headers = {"Authorization": authorization} if authorization else {}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(gate), base_url="http://mcp") as client:
        answer = await client.get("/mcp", headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["hint"]


async def test_clients_that_look_for_oauth_are_told_that_there_is_none() -> None:
    gate = TokenGate(inside, gateway_opener(lambda: None))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(gate), base_url="http://mcp") as client:
        for path in ("oauth-protected-resource/mcp", "oauth-authorization-server", "openid-configuration"):
            assert (await client.get(f"/.well-known/{path}")).status_code == 404


async def report(said: str) -> None:
    raise AssertionError(said)


@pytest.mark.parametrize("text", ["/approve ap_1 session", "  /yes", "/new"])
async def test_a_program_sends_no_commands(text: str) -> None:
    nowhere = GatewayClient(GatewayAddress("http://127.0.0.1:9", "none"))
    (ask,) = (tool for tool in gateway_tools() if tool.name == "ask")
    with pytest.raises(BadRequest, match="for people"):
        await ask.call(CallPlace(nowhere, report), {"text": text})
