"""The reference servers of MCP, from npm and PyPI, in a whole gateway: real calls through chats.

`./dev clients --install mcp` installs them; `.ci/run` does so.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients import installation
from support.gateway import running_gateway
from support.proved_sandbox import proved
from talaria.testing.gateway_process import GatewayProcess

PACKAGES = "mcp-node", "mcp-python"
MORE = "mcp-more-node", "mcp-more"
DEADLINE = 60

if sys.platform != "linux":
    pytest.skip("sandboxes are for Linux", allow_module_level=True)


def node_server(name: str, *arguments: str, place: str = PACKAGES[0]) -> list[str]:
    node = installation.node(place)
    if node is None:
        pytest.skip("the MCP servers of npm are not installed (./dev clients --install mcp)")
    script = installation.folder() / place / "node_modules/@modelcontextprotocol" / f"server-{name}"
    return [node, str(script / "dist" / "index.js"), *arguments]


def python_server(name: str, *arguments: str, place: str = PACKAGES[1]) -> list[str]:
    python = installation.python_of(place)
    if python is None:
        pytest.skip("the MCP servers of PyPI are not installed (./dev clients --install mcp)")
    return [str(python), "-c", f"import mcp_server_{name} as server; server.main()", *arguments]


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a repository of git, of a user that commands can run as."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "notes.txt").write_text("tomatoes\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "First notes"]):
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        subprocess.run(["git", *identity, *words], cwd=folder, check=True)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
    return folder


def settings(name: str, command: list[str], **more: object) -> str:
    places = [str(installation.folder() / each) for each in (PACKAGES[0], MORE[0])]
    readable = [place for place in places if command[1].startswith(f"{place}/")]
    fields = {"command": command, "approvals": "never", "readable": readable, **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join((f"[mcp.servers.{name}]", *lines, ""))


async def call(gateway: GatewayProcess, tool: str, **arguments: object) -> str:
    """Let the model call the tool, in a chat of the server, and return the whole result."""
    chat = tool.split("_")[1]
    text = f"[[call {tool} {json.dumps(arguments)}]]"
    await gateway.say(chat, text)
    page = await gateway.call("GET", f"/api/sessions/{chat}/entries?limit=100")
    results = [entry["body"] for entry in page["entries"] if entry["body"]["type"] == "tool_results"]
    (result,) = results[-1]["results"]
    assert (result["name"], result["outcome"]) == (tool, "ok"), result
    return json.dumps(result, ensure_ascii=False)


async def ready(gateway: GatewayProcess, names: set[str]) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE):
        while True:
            servers = (await gateway.call("GET", "/api/status"))["mcp_servers"]
            if {name for name, each in servers.items() if each["state"] == "ready"} == names:
                return dict(servers)
            failed = [each for each in servers.values() if each["trouble"]]
            assert not failed, failed
            await asyncio.sleep(0.05)


async def test_the_reference_servers_work_through_chats(project: Path) -> None:
    await proved()
    config = "".join(
        (
            settings("everything", node_server("everything")),
            settings("files", node_server("filesystem", str(project)), writable=[str(project)]),
            settings("memory", node_server("memory")),
            settings("time", python_server("time")),
            settings("git", python_server("git"), writable=[str(project)]),
        )
    )
    config += '[mcp.servers.memory.env]\nMEMORY_FILE_PATH = "/proc/self/cwd/memory.jsonl"\n'
    async with running_gateway(config=config) as (gateway, _):
        servers = await ready(gateway, {"everything", "files", "memory", "time", "git"})
        assert all(each["tools"] for each in servers.values())
        await check_node(gateway, project)
        await check_python(gateway, project)


async def test_more_servers_work_through_chats(tmp_path: Path) -> None:
    """The one that fetches pages has no network here. It says so, and the turn ends well."""
    await proved()
    config = "".join(
        (
            settings("thinking", node_server("sequential-thinking", place=MORE[0])),
            settings("sqlite", python_server("sqlite", "--db-path", "/proc/self/cwd/a.db", place=MORE[1])),
            settings("sums", python_server("calculator", place=MORE[1])),
            settings("fetch", python_server("fetch", place="mcp-fetch")),
        )
    )
    async with running_gateway(config=config) as (gateway, _):
        servers = await ready(gateway, {"thinking", "sqlite", "sums", "fetch"})
        assert all(each["tools"] for each in servers.values())
        thought = {"thought": "tomatoes", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
        told = await call(gateway, "mcp_thinking_sequentialthinking", **thought)
        assert "thoughtHistoryLength" in told
        await call(gateway, "mcp_sqlite_create_table", query="CREATE TABLE plants (name TEXT)")
        await call(gateway, "mcp_sqlite_write_query", query="INSERT INTO plants VALUES ('tomato')")
        assert "tomato" in await call(gateway, "mcp_sqlite_read_query", query="SELECT * FROM plants")
        assert "42" in await call(gateway, "mcp_sums_calculate", expression="6 * 7")
        turn = await gateway.say("fetch", '[[call mcp_fetch_fetch {"url": "http://example.org/"}]]')
        assert turn["state"] == "done"


async def check_node(gateway: GatewayProcess, project: Path) -> None:
    assert "Echo: Grüße" in await call(gateway, "mcp_everything_echo", message="Grüße")
    assert "The sum of 2 and 3 is 5" in await call(gateway, "mcp_everything_get-sum", a=2, b=3)
    assert "image" in await call(gateway, "mcp_everything_get-tiny-image")
    environment = await call(gateway, "mcp_everything_get-env")
    assert "TALARIA" not in environment
    assert "tomatoes" in await call(gateway, "mcp_files_read_text_file", path=str(project / "notes.txt"))
    await call(gateway, "mcp_files_write_file", path=str(project / "new.txt"), content="basil")
    assert (project / "new.txt").read_text() == "basil"
    ada = {"name": "Ada", "entityType": "person", "observations": ["likes tomatoes"]}
    await call(gateway, "mcp_memory_create_entities", entities=[ada])
    assert "likes tomatoes" in await call(gateway, "mcp_memory_search_nodes", query="tomatoes")
    assert (gateway.home / "mcp" / "servers" / "memory" / "memory.jsonl").exists()


async def check_python(gateway: GatewayProcess, project: Path) -> None:
    assert "Asia/Tokyo" in await call(gateway, "mcp_time_get_current_time", timezone="Asia/Tokyo")
    times = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"}
    assert "21:00" in await call(gateway, "mcp_time_convert_time", **times)
    assert "First notes" in await call(gateway, "mcp_git_git_log", repo_path=str(project))
    assert "new.txt" in await call(gateway, "mcp_git_git_status", repo_path=str(project))
    await call(gateway, "mcp_git_git_add", repo_path=str(project), files=["new.txt"])
    assert "basil" in await call(gateway, "mcp_git_git_diff_staged", repo_path=str(project))
