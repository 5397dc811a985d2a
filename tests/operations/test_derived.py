"""An operation that is declared once is on every surface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import aiohttp
import msgspec
import pytest
from msgspec import Meta

from support.gateway import TOKEN, TOKEN_ENV, without_http
from talaria.channels.http.http_channel import open_http
from talaria.channels.http.part import HTTP
from talaria.cli.gateway_tools import CallPlace, gateway_tools
from talaria.cli.operations import add_verbs
from talaria.cli.options import Group, Invocation, group
from talaria.console.gateway_client import GatewayAddress, GatewayClient
from talaria.core.errors import BadRequest
from talaria.gateway import Records
from talaria.operations.operation import CHAT, OperationCall, operation
from talaria.operations.sessions import SessionLookup, SessionName
from talaria.operations.table import OPERATIONS, render_reference
from talaria.testing.model_server import ModelServer


class PinBody(msgspec.Struct, frozen=True, kw_only=True):
    x: SessionName
    place: Annotated[int, Meta(ge=1, le=9, description="Its place among the pinned.")] = 1


class Pinned(msgspec.Struct, frozen=True):
    id: str
    place: int


@operation(
    "sessions.pin",
    "POST /api/sessions/{x}/pin",
    CHAT,
    audit="session.pin",
    errors=("not_found",),
    usage=("talaria sessions pin work --place 2",),
    tool="pin_session",
)
async def pin_session(records: Records, call: OperationCall, wanted: PinBody) -> Pinned:
    """Keep a session at the top of the list."""
    session = await SessionLookup(records).session(wanted.x, call)
    return Pinned(session.id, wanted.place)


WITH_PIN = (*OPERATIONS, pin_session)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[GatewayClient]:
    """Give a client of a gateway that has one more operation, and a session `work`."""
    async with (
        ModelServer() as model,
        without_http(
            tmp_path / "home", model, tables={"http": {"port": 0}}, environ={TOKEN_ENV: TOKEN}
        ) as gateway,
        open_http(gateway, gateway.settings.of(HTTP), operations=WITH_PIN) as http,
        GatewayClient(GatewayAddress(http.server.address, TOKEN)) as client,
    ):
        sent = await client.send("work", "hello", "key")
        async for _ in client.follow(sent.turn_id):
            pass
        yield client


async def test_it_is_a_call_that_openapi_describes(client: GatewayClient) -> None:
    async with aiohttp.ClientSession(client.url, headers={"Authorization": f"Bearer {TOKEN}"}) as plain:
        async with plain.post("/api/sessions/work/pin", json={"place": 3}) as answer:
            assert (answer.status, (await answer.json())["place"]) == (200, 3)
        async with plain.post("/api/sessions/work/pin", json={"place": 10}) as answer:
            assert answer.status == 400
            assert "`place`: expected `int` <= 9" in (await answer.json())["error"]["message"]
        async with plain.get("/openapi.json") as answer:
            described = (await answer.json())["paths"]["/api/sessions/{x}/pin"]["post"]
    assert described["summary"] == "Keep a session at the top of the list"
    assert described["parameters"][0]["description"] == "Session name or id."
    assert described["x-roles"] == ["chat", "operate"]
    assert described["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/PinBody")


async def test_a_client_carries_it_out(client: GatewayClient) -> None:
    pinned = await client.carry_out(pin_session, PinBody(x="work", place=4))
    assert (pinned.id[:4], pinned.place) == ("ses_", 4)


async def test_it_is_a_tool_of_mcp_serve(client: GatewayClient) -> None:
    (tool,) = (tool for tool in gateway_tools(WITH_PIN) if tool.name == "pin_session")
    assert tool.schema["properties"]["place"]["description"] == "Its place among the pinned."
    assert tool.schema["required"] == ["x"]

    async def report(text: str) -> None:
        raise AssertionError(text)

    answer = await tool.call(CallPlace(client, report), {"x": "work", "place": 2})
    assert answer.data["place"] == 2
    assert json.loads(answer.text) == answer.data
    with pytest.raises(BadRequest, match="place"):
        await tool.call(CallPlace(client, report), {"x": "work", "place": 10})


def sessions_group() -> Group:
    @group("sessions", "talaria sessions list")
    def command() -> None:
        """Sessions."""

    add_verbs(command, {}, WITH_PIN)
    return command


def test_it_is_a_verb_without_a_gateway_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, home = sessions_group(), tmp_path / "home"
    home.mkdir(mode=0o700)
    shown = command.get_command(command.make_context("sessions", ["pin", "work"]), "pin")
    assert shown is not None
    assert [parameter.name for parameter in shown.params][:3] == ["x", "place", "as_json"]
    with pytest.raises(Exception, match="There is no session work"):
        command.main(["pin", "work"], obj=Invocation(str(home)), standalone_mode=False)
    with pytest.raises(Exception, match="1<=x<=9"):
        command.main(["pin", "work", "--place", "10"], obj=Invocation(str(home)), standalone_mode=False)
    command.main(["list"], obj=Invocation(str(home)), standalone_mode=False)
    assert capsys.readouterr().out == "There is nothing to list.\n"
    command.main(["list", "--json"], obj=Invocation(str(home)), standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"items": [], "next": None}
    command.main(["pin", "--help"], obj=Invocation(str(home)), standalone_mode=False)
    shown_help = capsys.readouterr().out
    for text in ("Keep a session at the top of the list.", "Its place among the pinned.", "--json"):
        assert text in shown_help


def test_it_is_in_the_reference() -> None:
    page = render_reference(WITH_PIN)
    assert "### sessions.pin\n\nKeep a session at the top of the list.\n" in page
    assert "- HTTP: `POST /api/sessions/{x}/pin`, for the roles `chat`, `operate`" in page
    assert "- Command: `talaria sessions pin work --place 2`" in page
    assert "- MCP tool: `pin_session`" in page
    assert "- `place`: Its place among the pinned." in page


def test_the_reference_in_docs_is_made_of_the_operations(request: pytest.FixtureRequest) -> None:
    path = Path(__file__).parents[2] / "docs/reference.md"
    page = render_reference(OPERATIONS)
    if request.config.getoption("--update-golden", default=False):
        path.write_text(page)
    assert path.read_text() == page, "run ./dev pytest tests/golden tests/operations --update-golden"
