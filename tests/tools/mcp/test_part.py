from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.mcp_world import PROGRAM, open_world
from support.waiting import until
from talaria.access.people import People
from talaria.config.load import load_text
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError
from talaria.core.problems import Problem, Severity
from talaria.core.settings import Examination
from talaria.mcp import pins
from talaria.mcp.part import MCP, McpServer, McpSettings, McpSource
from talaria.mcp.pins import PinnedTool
from talaria.parts import PARTS
from talaria.tools.part import ToolScope
from talaria.tools.settings import ToolSettings

GOOD = McpServer((sys.executable, str(PROGRAM)))


async def test_a_server_that_is_added_to_a_running_gateway_is_started(tmp_path: Path) -> None:
    scope = ToolScope(
        tmp_path, {}, SystemClock(), People(), current=lambda part: ToolSettings(sandbox="none")
    )
    source = McpSource(scope, McpSettings())
    changed = asyncio.Event()
    source.subscribe(changed.set)
    source.start()
    assert source.tools() == ()
    try:
        source.change(McpSettings({"one": GOOD}))
        async with asyncio.timeout(30):
            while not source.tools():
                changed.clear()
                await changed.wait()
        assert source.servers()["one"].tools == len(source.tools())
    finally:
        await source.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[mcp.servers.x]\n", "command or url: expected one of them"),
        ('[mcp.servers.x]\ncommand = ["a"]\nurl = "https://a.example/"\n', "expected one of them"),
        (
            '[mcp.servers.x]\nurl = "https://a.example/"\nenv = { A = "1" }\n',
            "env is for servers with a command",
        ),
        ('[mcp.servers.x]\ncommand = ["a"]\nheaders = { A = "1" }\n', "headers is for servers with a url"),
        ('[mcp.servers.x]\ncommand = ["a"]\nwritable = ["data"]\n', "expected whole paths of folders"),
        ('[mcp.servers.x]\nurl = "docs.example"\n', "expected an address"),
        ('[mcp.servers."a b"]\ncommand = ["a"]\n', "has the name"),
        ('[mcp.servers.x]\ncommand = ["a"]\nenv = { A = "${B" }\n', "expected a text on one line"),
    ],
)
def test_wrong_settings_are_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, text, {}, PARTS)
    assert problem in str(refused.value)


def test_keys_in_values_are_secrets_and_others_are_not(tmp_path: Path) -> None:
    text = """[mcp.servers.x]
url = "https://a.example/mcp"
headers = { Authorization = "Bearer ${TOKEN}", Accept = "application/json", X-Key = "abcdef123456" }
"""
    loaded = load_text(tmp_path, text, {"TOKEN": "sk-secret-1"}, PARTS)
    assert loaded.warnings == ()
    assert {secret.value for secret in loaded.secrets} == {"sk-secret-1", "abcdef123456"}
    warnings = load_text(tmp_path, text, {}, PARTS).warnings
    assert "names TOKEN, which is not set" in str(warnings[0])


async def test_doctor_tells_of_each_server(tmp_path: Path) -> None:
    servers = {
        "good": GOOD,
        "off": msgspec.structs.replace(GOOD, enabled=False),
        "gone": McpServer(("no-such",)),
    }
    pins.note_listing(tmp_path, "good", GOOD.identity, {})
    pins.note_listing(tmp_path, "good", GOOD.identity, {"new": PinnedTool("New.", '{"type":"object"}')})
    found = await examine(tmp_path, servers, None)
    assert [(finding.severity, finding.text.split()[0]) for finding in found] == [
        (Severity.WARN, "good"),
        (Severity.OK, "good"),
        (Severity.OK, "off"),
        (Severity.PROBLEM, "gone:"),
    ]
    assert "(new)" in found[0].text
    running = {"good": {"state": "resting", "trouble": "It ended with exit code 7."}}
    (_, down, *_) = await examine(tmp_path, servers, {"mcp_servers": running})
    assert (down.severity, down.text) == (Severity.PROBLEM, "good is resting. It ended with exit code 7.")


async def examine(home: Path, servers: dict[str, McpServer], status: Any) -> list[Problem]:
    assert MCP.findings is not None
    examination = Examination(home, McpSettings(servers), {"PATH": "/usr/bin"}, status)
    return [finding async for finding in MCP.findings(examination)]


@pytest.mark.parametrize(
    ("server", "key"),
    [
        (McpServer(url="http://127.0.0.1:9/mcp", headers={"X": "Bearer ${OWN}"}), "headers.X"),
        (McpServer((sys.executable, str(PROGRAM)), env={"X": "${OWN}"}), "env.X"),
        (McpServer((sys.executable, str(PROGRAM), "${OWN}")), "command"),
    ],
)
async def test_a_configured_server_never_gets_a_secret_of_the_gateway(
    server: McpServer, key: str, tmp_path: Path
) -> None:
    async with open_world(tmp_path, {"x": server}, environ={"OWN": "own-secret-1"}, own=("OWN",)) as world:
        await until(lambda: world.state("x") == "refused")
        assert f"mcp.servers.x.{key} names OWN" in world.source.servers()["x"].trouble


def test_secrets_of_the_gateway_in_settings_are_named_with_their_line(tmp_path: Path) -> None:
    text = '[mcp.servers.x]\nurl = "https://a.example/mcp"\nheaders = { X = "${TALARIA_HTTP_TOKEN}" }\n'
    loaded = load_text(tmp_path, text, {"TALARIA_HTTP_TOKEN": "t"}, PARTS)
    assert "line 3: mcp.servers.x.headers.X names TALARIA_HTTP_TOKEN, a secret" in loaded.warnings[0]
